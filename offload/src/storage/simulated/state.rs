//! The files of a simulated device, and transfers on them with their faults.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::record::{Files, Record};
use crate::memory::Window;
use crate::storage::kind::Kind;

/// Where a write may begin: files lie in this machine's memory.
const FILE_BYTES_MAX: u64 = 64 << 30;

/// What goes wrong: as chances in a million transfers, unless it says otherwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Repeats all of it.
    pub seed: u64,
    /// Reads refused with EIO.
    pub read_refused: u32,
    /// Writes refused with EIO.
    pub write_refused: u32,
    /// Syncs refused with EIO.
    pub sync_refused: u32,
    /// This one of the syncs from now on refused with EIO, the first being 0.
    pub refused_sync: Option<u64>,
    /// Transfers that move less than they were asked to, at least one byte.
    pub short: u32,
    /// Reads that deliver one wrong bit and say nothing.
    pub read_flipped: u32,
    /// Writes that store one wrong bit and say nothing.
    pub write_flipped: u32,
    /// Writes refused with ENOSPC from so many written bytes on. The one that crosses it is short.
    pub full_after_bytes: Option<u64>,
    /// No file can be made or extended beyond this many bytes in all.
    pub capacity_bytes: Option<u64>,
}

/// What a simulated device has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Moved {
    /// Transfers from it.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Transfers to it.
    pub writes: u64,
    /// Bytes of them.
    pub write_bytes: u64,
    /// Syncs that it reported as done.
    pub syncs: u64,
    /// Faults of any sort that were put in.
    pub faults: u64,
}

/// All that a device knows.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) files: Files,
    pub(super) record: Option<Record>,
    pub(super) moved: Moved,
    /// Virtual time.
    pub(super) now: Duration,
    faults: Faults,
    written_since_faults: u64,
    syncs_since_faults: u64,
    /// How often each place was asked for, so that a repeated transfer meets its own fate.
    attempts: HashMap<(u8, PathBuf, u64), u32>,
}

/// What a transfer will meet.
#[derive(Debug, Default)]
struct Fate {
    is_refused: bool,
    /// Bytes at most.
    bytes: usize,
    /// A bit to turn over, by its number.
    flipped: Option<usize>,
}

impl State {
    pub(super) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        self.written_since_faults = 0;
        self.syncs_since_faults = 0;
        self.attempts.clear();
    }

    pub(super) fn start_record(&mut self) {
        self.record = Some(Record::new(self.files.clone()));
    }

    /// The number of the next recorded event.
    pub(super) fn next_event(&self) -> usize {
        self.record.as_ref().map_or(0, Record::next_event)
    }

    pub(super) fn create(&mut self, path: &Path, bytes: u64) -> Result<(), i32> {
        self.has_room(path, bytes)?;
        self.files.insert(path.into(), vec![0; bytes as usize]);
        if let Some(record) = &mut self.record {
            record.created(path, bytes);
        }
        Ok(())
    }

    pub(super) fn extend(&mut self, path: &Path, bytes: u64) -> Result<(), i32> {
        self.has_room(path, bytes)?;
        self.files.get_mut(path).ok_or(libc::ENOENT)?.resize(bytes as usize, 0);
        if let Some(record) = &mut self.record {
            record.extended(path, bytes);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> Result<(), i32> {
        self.files.remove(path).ok_or(libc::ENOENT)?;
        if let Some(record) = &mut self.record {
            record.removed(path);
        }
        Ok(())
    }

    /// Carry a transfer out. `since` is the event that would have been next when it began.
    pub(super) fn carry_out(
        &mut self,
        kind: Kind,
        path: &Path,
        offset: u64,
        window: Option<Window>,
        since: usize,
    ) -> Result<usize, i32> {
        let fate = self.fate(kind, path, offset, window.map_or(0, Window::bytes));
        if fate.is_refused {
            return Err(libc::EIO);
        }
        match (kind, window) {
            (Kind::Read, Some(window)) => self.read(path, offset, window, &fate),
            (Kind::Write, Some(window)) => self.write(path, offset, window, &fate, since),
            _ => {
                self.moved.syncs += 1;
                if let Some(record) = &mut self.record {
                    record.synced(path, since);
                }
                Ok(0)
            }
        }
    }

    fn read(
        &mut self,
        path: &Path,
        offset: u64,
        window: Window,
        fate: &Fate,
    ) -> Result<usize, i32> {
        let file = self.files.get(path).ok_or(libc::ENOENT)?;
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let from = file.get(start..).unwrap_or(&[]);
        let bytes = fate.bytes.min(from.len());
        window.part(0, bytes).with(|to| {
            to.copy_from_slice(&from[..bytes]);
            flip(to, fate.flipped);
        });
        self.moved.reads += 1;
        self.moved.read_bytes += bytes as u64;
        Ok(bytes)
    }

    fn write(
        &mut self,
        path: &Path,
        offset: u64,
        window: Window,
        fate: &Fate,
        since: usize,
    ) -> Result<usize, i32> {
        let room = self
            .faults
            .full_after_bytes
            .map_or(u64::MAX, |full| full.saturating_sub(self.written_since_faults));
        let bytes = fate.bytes.min(usize::try_from(room).unwrap_or(usize::MAX));
        if bytes < fate.bytes {
            self.moved.faults += 1;
        }
        if bytes == 0 {
            return Err(libc::ENOSPC);
        }
        if offset > FILE_BYTES_MAX {
            return Err(libc::EFBIG);
        }
        let file = self.files.get_mut(path).ok_or(libc::ENOENT)?;
        let (start, end) = (offset as usize, offset as usize + bytes);
        if file.len() < end {
            file.resize(end, 0);
        }
        window.part(0, bytes).with(|from| file[start..end].copy_from_slice(from));
        flip(&mut file[start..end], fate.flipped);
        if let Some(record) = &mut self.record {
            record.written(path, offset, &file[start..end], since);
        }
        self.moved.writes += 1;
        self.moved.write_bytes += bytes as u64;
        self.written_since_faults += bytes as u64;
        Ok(bytes)
    }

    /// Decide by the seed, the place, and how often it was asked for.
    fn fate(&mut self, kind: Kind, path: &Path, offset: u64, bytes: usize) -> Fate {
        let place = (kind as u8, path.to_path_buf(), offset);
        let mut hasher = DefaultHasher::new();
        place.hash(&mut hasher);
        let attempt = self.attempts.entry(place).or_default();
        *attempt += 1;
        (*attempt, self.faults.seed).hash(&mut hasher);
        let mut random = fastrand::Rng::with_seed(hasher.finish());
        let mut happens = |chances: u32| random.u32(..1_000_000) < chances;
        let (refused, flipped) = match kind {
            Kind::Read => (self.faults.read_refused, self.faults.read_flipped),
            Kind::Write => (self.faults.write_refused, self.faults.write_flipped),
            Kind::Sync => (self.faults.sync_refused, 0),
        };
        let mut is_refused = happens(refused);
        if kind == Kind::Sync {
            is_refused |= self.faults.refused_sync == Some(self.syncs_since_faults);
            self.syncs_since_faults += 1;
        }
        let is_short = happens(self.faults.short) && bytes > 1;
        let is_flipped = happens(flipped) && bytes > 0;
        self.moved.faults +=
            [is_refused, is_short, is_flipped].into_iter().map(u64::from).sum::<u64>();
        let bytes = if is_short { random.usize(1..bytes) } else { bytes };
        let flipped = is_flipped.then(|| random.usize(..bytes * 8));
        Fate { is_refused, bytes, flipped }
    }

    fn has_room(&self, path: &Path, bytes: u64) -> Result<(), i32> {
        let others = self.files.iter().filter(|(other, _)| *other != path);
        let held: u64 = others.map(|(_, file)| file.len() as u64).sum();
        let capacity = self.faults.capacity_bytes.unwrap_or(u64::MAX);
        if held.saturating_add(bytes) > capacity { Err(libc::ENOSPC) } else { Ok(()) }
    }
}

/// Turn one bit over.
fn flip(bytes: &mut [u8], bit: Option<usize>) {
    if let Some(byte) = bit.and_then(|bit| bytes.get_mut(bit / 8)) {
        *byte ^= 1 << (bit.unwrap_or(0) % 8);
    }
}
