//! How fast this machine's path is for the storage engine, in large requests and in small ones.
//!
//! `cargo run --release -p brigade-offload --example storage -- PATH [MIB] [REPEATS]
//! [threads|polled]`
//! writes and reads the file PATH (512 MiB of it, 3 times) and prints GB/s and CPU seconds for each
//! GB. The file stays, so that another program can be measured on the same one.

use std::path::Path;
use std::time::{Duration, Instant};

use brigade_offload::memory::{Arena, Budget, Buffer, Category};
use brigade_offload::storage::{EngineChoice, File, Priority, Settings, Storage, wait_all};

const MIB: usize = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = words.first() else {
        println!("storage PATH [MIB] [REPEATS] [threads|polled]");
        return Ok(());
    };
    let number = |at: usize, default: usize| words.get(at).map_or(Ok(default), |w| w.parse());
    let (mib, repeats) = (number(1, 512)?, number(2, 3)?);
    let says = |what: &str| words.iter().any(|word| word == what);
    let engine = if says("threads") { EngineChoice::Threads } else { EngineChoice::Auto };
    let is_polled = says("polled");
    let arena = Arena::new(Budget::new(80 * MIB))?;
    let storage = Storage::new(&arena, Settings { engine, is_polled, ..Settings::default() })?;
    println!("{}\n{}", arena.describe(), storage.describe());
    let bytes = (mib * MIB) as u64;
    let file = match storage.open(Path::new(path)) {
        Ok(file) if file.bytes() >= bytes => file,
        _ => storage.create(Path::new(path), bytes)?,
    };
    for round in 0..=repeats {
        for (request_bytes, depth) in [(16 * MIB, 4), (MIB, 32), (64 << 10, 256)] {
            for is_write in [true, false] {
                let (gbps, cpu) =
                    pass(&arena, &storage, &file, mib, request_bytes, depth, is_write)?;
                if round > 0 {
                    let direction = if is_write { "write" } else { "read" };
                    let kib = request_bytes >> 10;
                    println!("{direction} {kib} KiB x {depth}: {gbps:.3} GB/s, {cpu:.4} CPU s/GB");
                }
            }
        }
    }
    println!("{}", storage.describe());
    Ok(())
}

/// One pass over the file: GB/s and CPU seconds for each GB.
fn pass(
    arena: &Arena,
    storage: &Storage,
    file: &File,
    mib: usize,
    request_bytes: usize,
    depth: usize,
    is_write: bool,
) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let requests = mib * MIB / request_bytes;
    let begin = |at: usize, buffer: Buffer| {
        let offset = (at * request_bytes) as u64;
        let range = 0..request_bytes;
        if is_write {
            storage.write(file, offset, buffer, range, Priority::Background)
        } else {
            storage.read(file, offset, buffer, range, Priority::Background)
        }
    };
    let buffers = (0..depth.min(requests)).map(|_| arena.take(request_bytes, Category::Staging));
    let mut buffers = buffers.collect::<Result<Vec<_>, _>>()?;
    let (cpu, start) = (cpu_seconds()?, Instant::now());
    let mut pending = std::collections::VecDeque::new();
    let mut next = 0;
    // Large requests follow each other; small ones are handed in together and waited for together.
    while next < requests || !pending.is_empty() {
        while next < requests
            && let Some(buffer) = buffers.pop()
        {
            pending.push_back(begin(next, buffer));
            next += 1;
        }
        let batch = if request_bytes >= 16 * MIB { 1 } else { pending.len() };
        for outcome in wait_all(pending.drain(..batch).collect(), LIMIT) {
            buffers.push(outcome.into_buffer()?);
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let gb = (requests * request_bytes) as f64 / 1e9;
    Ok((gb / seconds, (cpu_seconds()? - cpu) / gb))
}

/// Seconds that all threads of this process have run, those of the kernel's workers for it too.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error>> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += text.split_whitespace().next().unwrap_or("0").parse::<u64>()?;
    }
    Ok(nanoseconds as f64 / 1e9)
}
