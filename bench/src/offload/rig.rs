//! A file, an arena and a storage to be timed.

use std::collections::VecDeque;
use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use brigade_offload::memory::{Arena, Budget, Buffer, Category, span_bytes};
use brigade_offload::plan::show_bytes;
use brigade_offload::storage::simulated::SimulatedDevice;
use brigade_offload::storage::{File, Pending, Priority, Settings, Storage, wait_all};

use super::Failure;
use crate::failure::cannot_write;
use crate::sys::{Cpu, free_bytes};

/// How long a drive may be silent before it is given up.
const DEADLINE: Duration = Duration::from_secs(60);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// What one measurement found.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    pub(super) cpu: Duration,
    /// From handing in to the answer, of each request or batch, in ns.
    pub(super) waits_ns: Vec<u64>,
}

/// A file without a name, so that nothing is left of it however this process ends.
pub(super) struct Rig {
    pub(super) storage: Storage,
    pub(super) arena: Arena,
    file: File,
    /// The same, as far as it can be shown to others.
    shown: Option<fs::File>,
    settings: Settings,
}

/// How many files this process has made: each has a name of its own.
static FILES: AtomicU32 = AtomicU32::new(0);

impl Direction {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl Sample {
    pub(super) fn gb_s(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64() / 1e9
    }

    pub(super) fn cpu_s_per_gb(&self) -> f64 {
        self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9)
    }
}

impl Rig {
    /// A file of `bytes` in `folder`, and `memory` bytes of buffers.
    pub(super) fn new(
        folder: &Path,
        bytes: u64,
        settings: Settings,
        memory: usize,
    ) -> Result<Self, Failure> {
        let arena = Arena::new(Budget::new(memory))?;
        let storage = Storage::new(&arena, settings)?;
        let (file, shown) = create(&storage, folder, bytes)?;
        Ok(Self { storage, arena, file, shown: Some(shown), settings })
    }

    /// The same on a device that exists in memory only.
    pub(super) fn simulated(
        device: &SimulatedDevice,
        bytes: u64,
        settings: Settings,
        memory: usize,
    ) -> Result<Self, Failure> {
        let arena = Arena::new(Budget::new(memory))?;
        let storage = Storage::simulated(device, settings)?;
        let file = storage.create(Path::new("rig"), bytes)?;
        Ok(Self { storage, arena, file, shown: None, settings })
    }

    /// Where other processes find the file while this one lives.
    pub(super) fn path(&self) -> Option<PathBuf> {
        let number = |file: &fs::File| file.as_raw_fd();
        let number = self.shown.as_ref().map(number)?;
        Some(format!("/proc/{}/fd/{number}", std::process::id()).into())
    }

    /// What the memory lies on and what moves the bytes, a line each.
    pub(super) fn facts(&self) -> [String; 2] {
        let direct = if self.file.is_direct() { "past" } else { "through" };
        let storage = format!("storage: {}, {direct} the page cache", self.storage.describe());
        [format!("memory: {}", self.arena.describe()), storage]
    }

    /// Whether bytes go past the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.file.is_direct()
    }

    /// One request after the other, in order, with twice as much handed in as is in flight; at
    /// least for so long, and over the whole file once. With two directions each has a half of it.
    pub(super) fn stream(
        &mut self,
        directions: &[Direction],
        request_bytes: usize,
        least: Duration,
    ) -> Result<Sample, Failure> {
        let ahead = requests_ahead(&self.settings, request_bytes) * directions.len();
        let part_bytes = self.file.bytes() / directions.len() as u64;
        let in_part = (part_bytes / request_bytes as u64).max(1);
        let mut free: Vec<Buffer> = (0..ahead)
            .map(|_| self.arena.take(request_bytes, Category::Staging))
            .collect::<Result<_, _>>()?;
        let mut pending = VecDeque::with_capacity(ahead);
        let (mut count, mut waits_ns) = (0_u64, Vec::new());
        let (cpu, start) = (Cpu::Process.used(), Instant::now());
        loop {
            let is_enough = start.elapsed() >= least && count >= in_part * directions.len() as u64;
            while !is_enough && let Some(buffer) = free.pop() {
                let which = count % directions.len() as u64;
                let at = count / directions.len() as u64 % in_part;
                let offset = which * part_bytes + at * request_bytes as u64;
                let direction = directions[which as usize];
                pending.push_back((self.request(direction, offset, buffer), Instant::now()));
                count += 1;
            }
            let Some((next, handed_in)) = pending.pop_front() else { break };
            free.push(next.wait(DEADLINE).into_buffer()?);
            waits_ns.push(handed_in.elapsed().as_nanos() as u64);
        }
        let (elapsed, cpu) = (start.elapsed(), Cpu::Process.used() - cpu);
        Ok(Sample { bytes: count * request_bytes as u64, elapsed, cpu, waits_ns })
    }

    /// Batches of tensors that lie side by side, each handed in at once and waited for as a whole.
    pub(super) fn batches(
        &mut self,
        direction: Direction,
        tensor_bytes: usize,
        tensors: usize,
        least: Duration,
    ) -> Result<Sample, Failure> {
        let batch_bytes = (tensor_bytes * tensors) as u64;
        let in_file = (self.file.bytes() / batch_bytes).max(1);
        let mut buffers: Vec<Buffer> = (0..tensors)
            .map(|_| self.arena.take(tensor_bytes, Category::Staging))
            .collect::<Result<_, _>>()?;
        let mut pending = Vec::with_capacity(tensors);
        let (mut count, mut waits_ns) = (0_u64, Vec::new());
        let (cpu, start) = (Cpu::Process.used(), Instant::now());
        while count == 0 || start.elapsed() < least {
            let handed_in = Instant::now();
            let mut offset = count % in_file * batch_bytes;
            for buffer in buffers.drain(..) {
                pending.push(self.request(direction, offset, buffer));
                offset += tensor_bytes as u64;
            }
            for outcome in wait_all(std::mem::take(&mut pending), DEADLINE) {
                buffers.push(outcome.into_buffer()?);
            }
            waits_ns.push(handed_in.elapsed().as_nanos() as u64);
            count += 1;
        }
        let (elapsed, cpu) = (start.elapsed(), Cpu::Process.used() - cpu);
        Ok(Sample { bytes: count * batch_bytes, elapsed, cpu, waits_ns })
    }

    /// How long it takes until what was written survives a loss of power.
    pub(super) fn sync(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        self.storage.sync(&self.file).wait(DEADLINE).result?;
        Ok(start.elapsed())
    }

    fn request(&self, direction: Direction, offset: u64, buffer: Buffer) -> Pending {
        let all = 0..buffer.len();
        match direction {
            Direction::Read => self.storage.read(&self.file, offset, buffer, all, Priority::Urgent),
            Direction::Write => {
                self.storage.write(&self.file, offset, buffer, all, Priority::Background)
            }
        }
    }
}

/// A file of `bytes` in `folder`, without a name; and the same as the system knows it.
pub(super) fn create(
    storage: &Storage,
    folder: &Path,
    bytes: u64,
) -> Result<(File, fs::File), Failure> {
    if !folder.is_dir() {
        let next = match folder.exists() {
            true => "it is a file; name the folder that files shall be in",
            false => "make it first",
        };
        let folder = folder.display();
        return Err(Failure::Usage(format!("--path: there is no folder {folder}; {next}")));
    }
    if let Some(free) = free_bytes(folder).filter(|free| *free < bytes) {
        let (folder, bytes, free) = (folder.display(), show_bytes(bytes), show_bytes(free));
        return Err(Failure::Usage(format!(
            "{folder} has no room for a file of {bytes}: {free} are free"
        )));
    }
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".brigade-bench-{}-{number}", std::process::id()));
    if let Err(error) = probe(&path) {
        let folder = folder.display();
        let why = format!("--path: no file can be made in {folder}: {error}; name another folder");
        return Err(Failure::Usage(why));
    }
    // Without a name before it takes its room, which may take long: so nothing is left of it,
    // however this process ends.
    let file = storage.create(&path, 0)?;
    let shown = fs::File::open(&path);
    let removed = fs::remove_file(&path);
    let shown = removed.and(shown).map_err(cannot_write(&path.display().to_string()))?;
    storage.extend(&file, bytes)?;
    Ok((file, shown))
}

/// Make a file and take it away.
fn probe(path: &Path) -> std::io::Result<()> {
    fs::File::create_new(path).map(drop).and_then(|()| fs::remove_file(path))
}

/// Requests of a stream that are handed in at once, each way: twice what is in flight.
fn requests_ahead(settings: &Settings, request_bytes: usize) -> usize {
    (2 * settings.in_flight * settings.block_bytes).div_ceil(request_bytes) + 1
}

/// Memory that streams in so many directions take together.
pub(super) fn stream_bytes(settings: &Settings, request_bytes: usize, directions: usize) -> usize {
    directions * requests_ahead(settings, request_bytes) * span_bytes(request_bytes)
}
