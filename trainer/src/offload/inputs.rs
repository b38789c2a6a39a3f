//! What goes into blocks, in a file between forward and backward (Rajbhandari et al. 2021, §5.1.2):
//! written while the next blocks are computed, and read one block before it is needed.
//!
//! Bytes of one slot, both ways: 4 · rows · width for each block but the last, in whole pages.

use super::{DiskUse, Offload, Tier, arena};
use crate::error::Error;
use crate::tape::Tape;
use crate::trace::{self, Lane};
use brigade_offload::memory::{Arena, Buffer, Category, span_bytes};
use brigade_offload::storage::{File, Pending, Priority, Settings, Storage};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long one transfer may take.
const LIMIT: Duration = Duration::from_secs(600);
/// One is being read and another waited for, or several are being written.
const BUFFERS: usize = 3;
/// Transfers of whole pages go past the page cache.
const PAGE: usize = 4096;

/// Room in a file for what goes into blocks of a few passes at once.
pub(crate) struct Inputs {
    arena: Arena,
    storage: Storage,
    file: File,
    /// Numbers of an input, and its bytes in the file.
    len: usize,
    span: usize,
    /// Those of some units: blocks but the last, which is the first that backward needs.
    kept: Range<usize>,
    /// Behind the last of the units.
    end: usize,
    /// By place in the file, oldest first.
    writing: VecDeque<(usize, Pending)>,
    reading: VecDeque<(usize, Pending)>,
    buffers: Vec<Buffer>,
    used: DiskUse,
}

impl Inputs {
    /// For the blocks among `units` of a model of so many `layers`, in `slots` passes that may be
    /// between forward and backward at the same time. Each input has `len` numbers. None for a tier
    /// that is no file.
    ///
    /// Errors: `Setting` or `Offload` for memory or a device that has not that much.
    pub(crate) fn new(
        offload: &Offload,
        layers: usize,
        units: Range<usize>,
        slots: usize,
        len: usize,
    ) -> Result<Option<Inputs>, Error> {
        let Offload { tier: Tier::Nvme(folder), place: (rank, ranks), .. } = offload else {
            return Ok(None);
        };
        let (first, end) = (units.start.max(1), units.end);
        let kept = first..end.min(layers + 1).saturating_sub(1).max(first);
        let span = (4 * len).next_multiple_of(PAGE);
        let arena = arena(None, BUFFERS * span_bytes(span))?;
        let storage = Storage::new(&arena, Settings::default()).map_err(Error::offload)?;
        let path = folder.join(format!("inputs-{rank:05}-of-{ranks:05}.brigade"));
        let bytes = (slots * kept.len()).max(1) * span;
        let file = storage.create(&path, bytes as u64).map_err(Error::offload)?;
        // Without a name nothing is left of it, however this process ends.
        std::fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        let buffers = (0..BUFFERS).map(|_| arena.take(span, Category::Activations));
        let buffers = buffers.collect::<Result<_, _>>().map_err(Error::offload)?;
        let (writing, reading, used) = Default::default();
        Ok(Some(Inputs {
            arena,
            storage,
            file,
            len,
            span,
            kept,
            end,
            writing,
            reading,
            buffers,
            used,
        }))
    }

    /// Memory that transfers go through. \[bytes\]
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena.capacity() as u64
    }

    /// What it has cost so far.
    pub(crate) fn used(&self) -> DiskUse {
        self.used
    }

    /// What one slot reads and writes.
    pub(crate) fn formula(&self) -> DiskUse {
        let bytes = (self.kept.len() * self.span) as u64;
        DiskUse { read_bytes: bytes, written_bytes: bytes, ..DiskUse::default() }
    }

    /// A unit has been computed in this slot: what went into it leaves memory, if it is kept here.
    pub(crate) fn leave(&mut self, slot: usize, unit: usize, tape: &mut Tape) -> Result<(), Error> {
        if !self.kept.contains(&unit) {
            return Ok(());
        }
        let mut buffer = self.buffer()?;
        buffer.view_mut::<f32>()[..self.len].copy_from_slice(tape.input(unit));
        tape.pass_on(unit);
        let (place, bytes) = (self.place(slot, unit), 0..self.span);
        let at = (place * self.span) as u64;
        let write = self.storage.write(&self.file, at, buffer, bytes, Priority::Background);
        self.used.written_bytes += self.span as u64;
        self.writing.push_back((place, write));
        Ok(())
    }

    /// Before the backward of a unit in this slot: what goes into it is in memory, and that on its
    /// way which is needed next. Units go backwards, all of a slot before those of another.
    pub(crate) fn come_back(
        &mut self,
        slot: usize,
        unit: usize,
        tape: &mut Tape,
    ) -> Result<(), Error> {
        if !self.kept.contains(&unit) {
            // The last block's input is here: there is time for that of the one before.
            let is_first = unit + 1 == self.end && !self.kept.is_empty();
            return if is_first { self.ahead(self.place(slot, self.kept.end - 1)) } else { Ok(()) };
        }
        let place = self.place(slot, unit);
        self.ahead(place)?;
        let (coming, read) = self.reading.pop_front().expect("it is on its way");
        assert_eq!(coming, place, "blocks go backwards");
        let buffer = self.land(read, unit)?;
        tape.take_back(unit).copy_from_slice(&buffer.view::<f32>()[..self.len]);
        self.buffers.push(buffer);
        if unit > self.kept.start { self.ahead(place - 1) } else { Ok(()) }
    }

    fn place(&self, slot: usize, unit: usize) -> usize {
        slot * self.kept.len() + unit - self.kept.start
    }

    /// Start to read an input, unless that has been done.
    fn ahead(&mut self, place: usize) -> Result<(), Error> {
        if self.reading.iter().any(|(coming, _)| *coming == place) {
            return Ok(());
        }
        while self.writing.iter().any(|(going, _)| *going == place) {
            self.settle()?;
        }
        let buffer = self.buffer()?;
        let (at, bytes) = ((place * self.span) as u64, 0..self.span);
        let read = self.storage.read(&self.file, at, buffer, bytes, Priority::Urgent);
        self.used.read_bytes += self.span as u64;
        self.reading.push_back((place, read));
        Ok(())
    }

    fn buffer(&mut self) -> Result<Buffer, Error> {
        while self.buffers.is_empty() {
            self.settle()?;
        }
        Ok(self.buffers.pop().expect("one has come back"))
    }

    /// Wait for the oldest write.
    fn settle(&mut self) -> Result<(), Error> {
        let (place, write) = self.writing.pop_front().expect("what is not here is being written");
        let buffer = self.land(write, place % self.kept.len() + self.kept.start)?;
        self.buffers.push(buffer);
        Ok(())
    }

    fn land(&mut self, transfer: Pending, unit: usize) -> Result<Buffer, Error> {
        let _waiting = trace::span(Lane::Files, "for what goes into unit", unit);
        let from = Instant::now();
        let buffer = transfer.wait(LIMIT).into_buffer().map_err(Error::offload);
        self.used.waited += from.elapsed();
        buffer
    }
}
