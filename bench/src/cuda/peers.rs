//! Memory of another process on the same device: opened, written, and looked at by its owner.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use brigade_cuda::{
    Context, Cuda, DeviceMemory, Event, EventHandle, IpcHandle, Opened, Result, Stream,
};

use super::{Bench, system};

const HANDLE_BYTES: usize = IpcHandle::BYTES + 64;

/// Ended when dropped, so that no error leaves it behind.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Let a second process copy into memory of this one, and see that it has arrived.
pub(super) fn between_processes(bench: &mut Bench<'_>, command: &[String]) -> Result<()> {
    let bytes = bench.effort.bytes_max.min(256 << 20);
    let mut memory = DeviceMemory::new(&bench.context, bytes)?;
    memory.write(&bench.stream, 0, &vec![0; bytes])?;
    let written = Event::interprocess(&bench.context)?;
    bench.stream.record(&written)?;
    let handle = IpcHandle::of(&bench.context, memory.address())?;
    let words = [handle.to_bytes().as_slice(), written.handle()?.0.as_slice()].concat();
    let hex: String = words.iter().map(|byte| format!("{byte:02x}")).collect();
    let (program, args) = command.split_first().expect("a command has a program");
    let child = Command::new(program)
        .args(args)
        .args([bench.context.device().ordinal.to_string(), bench.effort.turns.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| system("starting a second process", &error))?;
    let mut child = Ended(child);
    let mut input = child.0.stdin.take().expect("asked for a pipe");
    writeln!(input, "{hex}").map_err(|error| system("telling the second process", &error))?;
    let mut answer = String::new();
    BufReader::new(child.0.stdout.take().expect("asked for a pipe"))
        .read_line(&mut answer)
        .map_err(|error| system("hearing from the second process", &error))?;
    let us: f64 = answer
        .trim()
        .parse()
        .map_err(|_| system("the second process says", &format!("`{}`", answer.trim())))?;
    // The other process has recorded the event behind its last copy.
    bench.stream.wait(&written)?;
    let mut back = vec![0; bytes];
    memory.read(&bench.stream, 0, &mut back)?;
    let right = back.iter().all(|byte| *byte == PATTERN);
    let limit = bench.copy_gb_s;
    let row = bench.row("copy into another process", bytes, us);
    (bench.tell)(&row.beside(limit, "longest copy").checked(right));
    Ok(())
}

const PATTERN: u8 = 0x5d;

/// The second process: open what a line of `input` names, copy into it `turns` times, and tell the
/// median time in microseconds once the copies are recorded in the owner's event.
///
/// # Errors
///
/// What the driver says, and input that is no handle.
pub fn peer(ordinal: u32, turns: usize, input: &mut dyn BufRead) -> Result<f64> {
    let mut line = String::new();
    input.read_line(&mut line).map_err(|error| system("reading a handle", &error))?;
    let words = parse(line.trim()).ok_or_else(|| system("reading a handle", &"no handle"))?;
    let context = Context::new(&Cuda::load()?.device(ordinal)?)?;
    let (handle, event) = words.split_at(IpcHandle::BYTES);
    let handle = IpcHandle::from_bytes(handle.try_into().expect("split there"));
    let event = EventHandle(event.try_into().expect("as long as is left"));
    // SAFETY: the owner keeps the memory until it has heard from us, or ended us.
    let opened = unsafe { Opened::open(&context, &handle) }?;
    let event = Event::open(&context, &event)?;
    let stream = Stream::new(&context)?;
    let ours = DeviceMemory::new(&context, opened.bytes())?;
    // SAFETY: ours, and waited for.
    unsafe { stream.fill(ours.address(), PATTERN, ours.bytes())? };
    let mut times = Vec::new();
    let [start, end] = [Event::timed(&context)?, Event::timed(&context)?];
    for _ in 0..turns.max(1) {
        stream.record(&start)?;
        // SAFETY: the owner does not touch its memory meanwhile; ours is waited for.
        unsafe { stream.copy(opened.address(), ours.address(), opened.bytes())? };
        stream.record(&end)?;
        end.synchronize()?;
        times.push(end.since(&start)?.as_secs_f64() * 1e6);
    }
    stream.record(&event)?;
    stream.synchronize()?;
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn parse(hex: &str) -> Option<[u8; HANDLE_BYTES]> {
    let mut bytes = [0; HANDLE_BYTES];
    if hex.len() != 2 * HANDLE_BYTES || !hex.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}
