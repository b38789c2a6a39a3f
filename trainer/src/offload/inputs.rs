//! What goes into blocks, elsewhere between forward and backward (Rajbhandari et al. 2021, §5.1.2):
//! in a file, written while the next blocks are computed and read one block before it is needed; or
//! in the host's memory, where what computes has another.
//!
//! Bytes of one slot in a file, both ways: 4 · rows · width for each block that is kept, in whole
//! pages.

use super::{DiskUse, Offload, Tier, arena};
use crate::error::Error;
use crate::tape::Tape;
use crate::trace::{self, Lane};
use brigade_offload::memory::{Arena, Buffer, Category, span_bytes};
use brigade_offload::storage::{File, Pending, Priority, Settings, Storage};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one transfer may take.
const LIMIT: Duration = Duration::from_secs(600);
/// One is being read and another waited for, or several are being written.
const BUFFERS: usize = 3;
/// Transfers of whole pages go past the page cache.
const PAGE: usize = 4096;

/// Room for what goes into blocks of a few passes at once.
pub(crate) struct Inputs {
    /// Numbers of an input.
    len: usize,
    /// Those of some units: blocks but the last, which backward needs first.
    kept: Range<usize>,
    /// Behind the last of the units.
    end: usize,
    place: Place,
}

enum Place {
    /// [slots × kept × len]
    Memory(Vec<f32>),
    File(Box<InFile>),
}

struct InFile {
    arena: Arena,
    storage: Storage,
    file: File,
    /// Bytes of an input in the file.
    span: usize,
    /// The units whose inputs are there, slot by slot.
    kept: Range<usize>,
    /// By place in the file, oldest first.
    writing: VecDeque<(usize, Pending)>,
    reading: VecDeque<(usize, Pending)>,
    buffers: Vec<Buffer>,
    used: DiskUse,
}

/// What is kept of a run's passes.
pub(crate) struct Scope {
    /// Of the model.
    pub(crate) layers: usize,
    /// Those that passes go through.
    pub(crate) units: Range<usize>,
    /// How many passes may be between forward and backward at the same time.
    pub(crate) slots: usize,
    /// Numbers of each input.
    pub(crate) len: usize,
    /// Of how many of the last blocks what goes in stays where it is.
    pub(crate) stays: usize,
}

impl Inputs {
    /// For the blocks of such passes.
    ///
    /// Errors: `Setting` or `Offload` for memory or a device that has not that much.
    pub(crate) fn new(offload: &Offload, scope: Scope) -> Result<Inputs, Error> {
        let Scope { layers, units, slots, len, stays } = scope;
        let (first, end) = (units.start.max(1), units.end);
        let kept = first..end.min(layers + 1).saturating_sub(stays).max(first);
        let place = match &offload.tier {
            Tier::Cpu => Place::Memory(vec![0.0; slots * kept.len() * len]),
            Tier::Nvme(folder) => {
                let (rank, ranks) = offload.place;
                let path = folder.join(format!("inputs-{rank:05}-of-{ranks:05}.brigade"));
                Place::File(Box::new(InFile::new(&path, kept.clone(), (slots, 4 * len))?))
            }
        };
        Ok(Inputs { len, kept, end, place })
    }

    /// Memory of the host. \[bytes\]
    pub(crate) fn arena_bytes(&self) -> u64 {
        match &self.place {
            Place::Memory(all) => 4 * all.len() as u64,
            Place::File(file) => file.arena.capacity() as u64,
        }
    }

    /// What files have cost so far.
    pub(crate) fn used(&self) -> DiskUse {
        if let Place::File(file) = &self.place { file.used } else { DiskUse::default() }
    }

    /// What one slot reads from files and writes to them.
    pub(crate) fn formula(&self) -> DiskUse {
        let Place::File(file) = &self.place else { return DiskUse::default() };
        let bytes = (self.kept.len() * file.span) as u64;
        DiskUse { read_bytes: bytes, written_bytes: bytes, ..DiskUse::default() }
    }

    /// Whether what goes into a unit is kept here.
    pub(crate) fn keeps(&self, unit: usize) -> bool {
        self.kept.contains(&unit)
    }

    /// What goes into a unit that is kept here, in this slot: `fill` writes it.
    pub(crate) fn put(
        &mut self,
        slot: usize,
        unit: usize,
        fill: impl FnOnce(&mut [f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (place, len) = (self.place(slot, unit), self.len);
        match &mut self.place {
            Place::Memory(all) => fill(&mut all[place * len..][..len]),
            Place::File(file) => {
                let mut buffer = file.buffer()?;
                fill(&mut buffer.view_mut::<f32>()[..len])?;
                file.write(place, buffer);
                Ok(())
            }
        }
    }

    /// Before the first backward of this slot: what is needed first is on its way.
    pub(crate) fn turn(&mut self, slot: usize) -> Result<(), Error> {
        if self.kept.is_empty() {
            return Ok(());
        }
        let place = self.place(slot, self.kept.end - 1);
        if let Place::File(file) = &mut self.place { file.ahead(place) } else { Ok(()) }
    }

    /// Have it again, and that on its way which is needed next. Units go backwards, all of a slot
    /// before those of another.
    pub(crate) fn take(
        &mut self,
        slot: usize,
        unit: usize,
        see: impl FnOnce(&[f32]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (place, len) = (self.place(slot, unit), self.len);
        let file = match &mut self.place {
            Place::Memory(all) => return see(&all[place * len..][..len]),
            Place::File(file) => file,
        };
        let buffer = file.read(place)?;
        see(&buffer.view::<f32>()[..len])?;
        file.buffers.push(buffer);
        if unit > self.kept.start { file.ahead(place - 1) } else { Ok(()) }
    }

    /// A unit has been computed in this slot: what went into it leaves memory, if it is kept here.
    pub(crate) fn leave(&mut self, slot: usize, unit: usize, tape: &mut Tape) -> Result<(), Error> {
        if !self.keeps(unit) {
            return Ok(());
        }
        self.put(slot, unit, |room| {
            room.copy_from_slice(tape.input(unit));
            Ok(())
        })?;
        tape.pass_on(unit);
        Ok(())
    }

    /// Before the backward of a unit in this slot: what goes into it is in memory.
    pub(crate) fn come_back(
        &mut self,
        slot: usize,
        unit: usize,
        tape: &mut Tape,
    ) -> Result<(), Error> {
        if !self.keeps(unit) {
            // The last block's input is here: there is time for that of the one before.
            return if unit + 1 == self.end { self.turn(slot) } else { Ok(()) };
        }
        self.take(slot, unit, |kept| {
            tape.take_back(unit).copy_from_slice(kept);
            Ok(())
        })
    }

    fn place(&self, slot: usize, unit: usize) -> usize {
        slot * self.kept.len() + unit - self.kept.start
    }
}

impl InFile {
    /// A file for so many slots, with `bytes` for each of these units.
    fn new(
        path: &Path,
        kept: Range<usize>,
        (slots, bytes): (usize, usize),
    ) -> Result<InFile, Error> {
        let span = bytes.next_multiple_of(PAGE);
        let count = (slots * kept.len()).max(1);
        let arena = arena(None, BUFFERS * span_bytes(span))?;
        let storage = Storage::new(&arena, Settings::default()).map_err(Error::offload)?;
        let file = storage.create(path, (count * span) as u64).map_err(Error::offload)?;
        // Without a name nothing is left of it, however this process ends.
        std::fs::remove_file(path).map_err(Error::file("remove", path))?;
        let buffers = (0..BUFFERS).map(|_| arena.take(span, Category::Activations));
        let buffers = buffers.collect::<Result<_, _>>().map_err(Error::offload)?;
        let (writing, reading, used) = Default::default();
        Ok(InFile { arena, storage, file, span, kept, writing, reading, buffers, used })
    }

    fn write(&mut self, place: usize, buffer: Buffer) {
        let (at, bytes) = ((place * self.span) as u64, 0..self.span);
        let write = self.storage.write(&self.file, at, buffer, bytes, Priority::Background);
        self.used.written_bytes += self.span as u64;
        self.writing.push_back((place, write));
    }

    /// Wait for what is at this place.
    fn read(&mut self, place: usize) -> Result<Buffer, Error> {
        self.ahead(place)?;
        let (coming, read) = self.reading.pop_front().expect("it is on its way");
        assert_eq!(coming, place, "blocks go backwards");
        self.land(read, place)
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
        let buffer = self.land(write, place)?;
        self.buffers.push(buffer);
        Ok(())
    }

    fn land(&mut self, transfer: Pending, place: usize) -> Result<Buffer, Error> {
        let unit = place % self.kept.len() + self.kept.start;
        let _waiting = trace::span(Lane::Files, "for what goes into unit", unit);
        let from = Instant::now();
        let buffer = transfer.wait(LIMIT).into_buffer().map_err(Error::offload);
        self.used.waited += from.elapsed();
        buffer
    }
}
