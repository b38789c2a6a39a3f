//! Copies: on the device, by its engines and by a kernel, and to and from the host.

use brigade_cuda::{Arg, DeviceMemory, Event, Launch, Pinned, Result, Stream, nvrtc};

use super::{Bench, SOURCE};

const THREADS: u32 = 512;

/// Copies within the device's memory.
pub(super) fn on_device(bench: &mut Bench<'_>) -> Result<()> {
    let module = nvrtc::module(&bench.context, &SOURCE)?;
    let kernel = module.function("copy16")?;
    let most = bench.effort.bytes_max;
    let mut source = DeviceMemory::new(&bench.context, most)?;
    let target = DeviceMemory::new(&bench.context, most)?;
    let pattern: Vec<u8> = (0..most).map(|at| (at * 31 / 7) as u8).collect();
    source.write(&bench.stream, 0, &pattern)?;
    let (to, from) = (target.address(), source.address());
    for bytes in bench.sizes() {
        // SAFETY: both ranges are ours, and waited for before they are freed.
        let us = bench.time(1, || unsafe { bench.stream.copy(to, from, bytes) })?;
        let row = bench.row("copy on the device", bytes, us);
        bench.copy_gb_s = row.gb_s;
        (bench.tell)(&row);
    }
    let blocks = bench.context.device().multiprocessors * 4;
    for bytes in bench.sizes() {
        let limit = bench.copy_gb_s;
        let count = (bytes / 16) as u64;
        let args = [Arg::of(&to), Arg::of(&from), Arg::of(&count)];
        let shape = Launch::linear(blocks, THREADS);
        // What the engines have left there must not be taken for the kernel's.
        // SAFETY: ours, and used by nobody else.
        unsafe { bench.stream.fill(to, 0, bytes)? };
        // SAFETY: the kernel's parameters; the ranges are ours and as long.
        let us = bench.time(1, || unsafe { kernel.launch(&bench.stream, &shape, &args) })?;
        let mut back = vec![0; bytes];
        target.read(&bench.stream, 0, &mut back)?;
        let row = bench.row("copy on the device, by a kernel", bytes, us);
        (bench.tell)(&row.beside(limit, "longest copy").checked(back == pattern[..bytes]));
    }
    Ok(())
}

/// Copies to and from pinned memory of the host, one after the other and both at once.
pub(super) fn with_host(bench: &mut Bench<'_>) -> Result<()> {
    let most = bench.effort.bytes_max.min(256 << 20);
    let [mut up, mut down] =
        [Pinned::new(&bench.context, most)?, Pinned::new(&bench.context, most)?];
    up.as_mut_slice().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 13 / 5) as u8);
    let memory = DeviceMemory::new(&bench.context, most)?;
    let other = DeviceMemory::new(&bench.context, most)?;
    let (host_up, host_down) = (up.as_ptr() as u64, down.as_mut_ptr() as u64);
    let (device, device_other) = (memory.address(), other.address());
    let mut alone = [0.0; 2];
    for bytes in bench.sizes().into_iter().filter(|bytes| *bytes <= most) {
        // SAFETY: all ranges are ours, and waited for before they are freed.
        let us = bench.time(1, || unsafe { bench.stream.copy(device, host_up, bytes) })?;
        let row = bench.row("pinned host to device", bytes, us);
        alone[0] = row.gb_s;
        (bench.tell)(&row);
        down.as_mut_slice()[..bytes].fill(0);
        // SAFETY: as above.
        let us = bench.time(1, || unsafe { bench.stream.copy(host_down, device, bytes) })?;
        let right = down.as_slice()[..bytes] == up.as_slice()[..bytes];
        let row = bench.row("device to pinned host", bytes, us);
        alone[1] = row.gb_s;
        (bench.tell)(&row.checked(right));
    }
    let second = Stream::new(&bench.context)?;
    let [begun, ended] = [Event::new(&bench.context)?, Event::new(&bench.context)?];
    let us = bench.time(1, || {
        bench.stream.record(&begun)?;
        second.wait(&begun)?;
        // SAFETY: four ranges of ours that do not overlap, waited for before they are freed.
        unsafe {
            bench.stream.copy(device, host_up, most)?;
            second.copy(host_down, device_other, most)?;
        }
        second.record(&ended)?;
        bench.stream.wait(&ended)
    })?;
    let row = bench.row("both directions at once", 2 * most, us);
    (bench.tell)(&row.beside(alone[0] + alone[1], "each alone"));
    Ok(())
}
