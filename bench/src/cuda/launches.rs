//! Launches, by themselves and in graphs.

use std::time::Instant;

use brigade_cuda::{Arg, CaptureMode, DeviceMemory, Launch, Result, nvrtc};

use super::{Bench, SOURCE};

const LAUNCHES: usize = 200;
const NODES: usize = 20;
const NUMBERS: u32 = 1000;

/// What it costs to launch nothing: one after the other, and each waited for.
pub(super) fn launches(bench: &mut Bench<'_>) -> Result<()> {
    let nothing = nvrtc::module(&bench.context, &SOURCE)?.function("nothing")?;
    let shape = Launch::linear(1, 32);
    let us = bench.time(LAUNCHES, || {
        for _ in 0..LAUNCHES {
            // SAFETY: the kernel has no parameters and touches nothing.
            unsafe { nothing.launch(&bench.stream, &shape, &[])? };
        }
        Ok(())
    })?;
    bench.launch_us = us;
    let row = bench.row("launches in a row, each", 0, us);
    (bench.tell)(&row);
    let mut times = Vec::new();
    for _ in 0..LAUNCHES {
        let begin = Instant::now();
        // SAFETY: as above.
        unsafe { nothing.launch(&bench.stream, &shape, &[])? };
        bench.stream.synchronize()?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    let row = bench.row("a launch that is waited for", 0, times[times.len() / 2]);
    (bench.tell)(&row);
    Ok(())
}

/// The same in a graph, and whether a graph that is launched again does its work again.
pub(super) fn graphs(bench: &mut Bench<'_>) -> Result<()> {
    let module = nvrtc::module(&bench.context, &SOURCE)?;
    let add_one = module.function("add_one")?;
    let mut numbers = DeviceMemory::new(&bench.context, 4 * NUMBERS as usize)?;
    numbers.write(&bench.stream, 0, &[0; 4 * NUMBERS as usize])?;
    let address = numbers.address();
    let args = [Arg::of(&address), Arg::of(&NUMBERS)];
    let shape = Launch::linear(4, 128);
    bench.stream.begin_capture(CaptureMode::Thread)?;
    for _ in 0..NODES {
        // SAFETY: the kernel's parameters, of memory that outlives the graph.
        unsafe { add_one.launch(&bench.stream, &shape, &args)? };
    }
    let graph = bench.stream.end_capture()?;
    let mut executable = graph.instantiate()?;
    let mut replays = 0;
    let us = bench.time(NODES, || {
        replays += 1;
        // SAFETY: as when it was captured.
        unsafe { executable.launch(&bench.stream) }
    })?;
    let mut bytes = vec![0; 4 * NUMBERS as usize];
    numbers.read(&bench.stream, 0, &mut bytes)?;
    let expected = (replays * NODES as u32).to_le_bytes();
    let right = graph.nodes()? == NODES && bytes.chunks(4).all(|number| number == expected);
    let limit = bench.launch_us;
    let row = bench.row("launches in a graph, each", 0, us);
    (bench.tell)(&row.beside_us(limit, "launches in a row").checked(right));
    Ok(())
}
