//! Many blocks on their way between one buffer and the files, without a copy.
//!
//! Where they lie behind one another they are one request: on a state of one stripe, that is the
//! rule. Where they do not, their segments go one after the other: a buffer is lent to one request
//! at a time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::draft::Draft;
use super::error::StoreError;
use super::shared::Shared;
use crate::layout::{Entry, Geometry, Place, Placed, Unsealable, checksum_padded};
use crate::memory::Buffer;
use crate::storage::{Pending, Priority};

/// Blocks on their way: [`Draft::read_part`], [`Draft::write_part`].
#[derive(Debug)]
#[must_use = "only the outcome says whether the bytes were moved"]
pub struct Run {
    shared: Arc<Shared>,
    priority: Priority,
    /// Of a write: its draft, by ticket and number.
    draft: Option<(u64, u64)>,
    segments: Vec<Segment>,
    /// Of the segments, how many were handed in.
    sent: usize,
    now: Now,
    /// Bytes of the buffer that are moved.
    bytes: usize,
    /// Of a read: the first block, and what its blocks should sum to.
    wanted: (u64, Vec<Entry>),
    /// Of a write: how many runs of its draft have segments that are not handed in yet.
    unsent: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Now {
    /// The segment handed in last.
    UnderWay(Pending),
    /// There is nothing left to do.
    Still(Buffer),
    /// A segment was not moved, and those after it were not tried.
    Failed(Broken),
    /// One has ended and the next is being handed in.
    Between,
}

/// Blocks that lie behind one another in a file.
#[derive(Clone, Debug)]
struct Segment {
    place: Place,
    range: Range<usize>,
}

/// What is left when a run fails: the error, and the buffer unless the system still has it.
#[derive(Debug)]
pub struct Broken {
    /// What has failed.
    pub error: Box<StoreError>,
    /// The memory.
    pub buffer: Option<Buffer>,
}

impl Broken {
    fn new(error: impl Into<StoreError>, buffer: Option<Buffer>) -> Self {
        Self { error: Box::new(error.into()), buffer }
    }
}

impl Draft {
    /// Read a part of a tensor, `from` so many bytes after its begin, to the begin of the buffer:
    /// what this draft has written there, if that has landed, or else what the newest generation
    /// has.
    ///
    /// The part begins with a block, and ends with one or with its tensor, which was packed at
    /// blocks. Cost: one request where the blocks lie behind one another. Errors: the blocks are
    /// shared with others, or nobody ever wrote one of them.
    pub fn read_part(
        &self,
        placed: &Placed,
        from: u64,
        bytes: usize,
        buffer: Buffer,
        priority: Priority,
    ) -> Result<Run, Broken> {
        match self.first_block(placed, from, bytes) {
            Err(error) => Err(Broken::new(error, Some(buffer))),
            Ok(first) => Run::read(self, first, bytes, buffer, priority).map_err(|buffer| {
                let blocks = self.geometry().blocks();
                Broken::new(Unsealable::Unwritten { block: first, blocks }, Some(buffer))
            }),
        }
    }

    /// Write a part of a tensor from the begin of the buffer. Which parts: as [`Draft::read_part`].
    ///
    /// Cost: a sum over the part on this thread, and the request. Errors: the blocks are shared
    /// with others, or a newer draft was begun. A run that is not waited for may fail the commit.
    pub fn write_part(
        &mut self,
        placed: &Placed,
        from: u64,
        bytes: usize,
        buffer: Buffer,
        priority: Priority,
    ) -> Result<Run, Broken> {
        match self.first_block(placed, from, bytes) {
            Err(error) => Err(Broken::new(error, Some(buffer))),
            Ok(first) => Run::write(self, first, bytes, buffer, priority),
        }
    }

    /// Whether no other tensor lies in the block that this one ends in.
    pub(crate) fn has_last_block(&self, placed: &Placed) -> bool {
        let end = placed.end();
        let last = end.next_multiple_of(self.geometry().block_bytes());
        let gaps = self.shared().blueprint.directory.gaps(end, last);
        gaps.map(|gap| gap.end - gap.start).sum::<u64>() == last - end
    }

    fn first_block(&self, placed: &Placed, from: u64, bytes: usize) -> Result<u64, StoreError> {
        let block_bytes = self.geometry().block_bytes();
        let (begin, end) = (placed.offset + from, placed.offset + from + bytes as u64);
        assert!(end <= placed.end(), "{from} + {bytes} of {placed:?}");
        let ends_with_it = end == placed.end() && self.has_last_block(placed);
        let is_whole = begin.is_multiple_of(block_bytes)
            && (end.is_multiple_of(block_bytes) || ends_with_it)
            && placed.offset.is_multiple_of(block_bytes);
        match is_whole {
            true => Ok(begin / block_bytes),
            false => Err(StoreError::Shared { name: placed.tensor.name.clone() }),
        }
    }
}

impl Run {
    /// Read blocks from `first` on. The buffer comes back where nobody ever wrote one of them.
    pub(super) fn read(
        draft: &Draft,
        first: u64,
        bytes: usize,
        buffer: Buffer,
        priority: Priority,
    ) -> Result<Self, Buffer> {
        let geometry = draft.geometry();
        let blocks = first..first + (bytes as u64).div_ceil(geometry.block_bytes());
        let Some(entries) = blocks.map(|block| draft.entry(block)).collect::<Option<Vec<_>>>()
        else {
            return Err(buffer);
        };
        let places =
            (first..).zip(&entries).map(|(block, entry)| geometry.place(block, entry.side));
        let segments = segments(&geometry, places, bytes);
        let (shared, unsent) = (draft.shared().clone(), Arc::default());
        let (now, wanted, sent) = (Now::Still(buffer), (first, entries), 0);
        let draft = None;
        let run = Self { shared, priority, draft, segments, sent, now, bytes, wanted, unsent };
        Ok(run.start())
    }

    /// Write to blocks from `first` on. What is behind the end in the last of them was made zero
    /// with the state, and stays so.
    ///
    /// Errors: a newer draft was begun.
    pub(super) fn write(
        draft: &mut Draft,
        first: u64,
        bytes: usize,
        buffer: Buffer,
        priority: Priority,
    ) -> Result<Self, Broken> {
        let geometry = draft.geometry();
        let block_bytes = geometry.block_bytes() as usize;
        let mut places = Vec::new();
        for (block, part) in (first..).zip(buffer[..bytes].chunks(block_bytes)) {
            match draft.note(block, checksum_padded(part, block_bytes)) {
                Ok(place) => places.push(place),
                Err(error) => return Err(Broken::new(error, Some(buffer))),
            }
        }
        let segments = segments(&geometry, places.into_iter(), bytes);
        let (shared, unsent) = (draft.shared().clone(), draft.unsent().clone());
        let (now, wanted, sent) = (Now::Still(buffer), (first, Vec::new()), 0);
        let draft = Some(draft.mark());
        let run = Self { shared, priority, draft, segments, sent, now, bytes, wanted, unsent };
        Ok(run.start())
    }

    fn start(mut self) -> Self {
        if self.segments.len() > 1 {
            // Taken back when the last one is handed in; dropped before, it fails the commit.
            self.unsent.fetch_add(1, Ordering::AcqRel);
        }
        self.now = match self.now {
            Now::Still(buffer) if !self.segments.is_empty() => {
                self.sent = 1;
                let first = &self.segments[0];
                Now::UnderWay(self.shared.hand_in(
                    first,
                    buffer,
                    self.priority,
                    self.draft.is_some(),
                ))
            }
            now => now,
        };
        self
    }

    /// Whether waiting would end at once.
    pub fn is_done(&self) -> bool {
        match &self.now {
            Now::Still(_) | Now::Failed(_) => true,
            Now::UnderWay(pending) => self.sent == self.segments.len() && pending.is_done(),
            Now::Between => unreachable!("only within `turn`"),
        }
    }

    /// Somebody waits now: what is left of it goes like an urgent request.
    pub fn hurry(&mut self) {
        self.priority = Priority::Urgent;
        if let Now::UnderWay(pending) = &self.now {
            pending.hurry();
        }
    }

    /// Wait for at most `limit`, and say whether it is done. One after the other, its segments are
    /// handed in by who waits: here, also without a limit.
    pub fn wait_until_done(&mut self, limit: Duration) -> bool {
        let start = Instant::now();
        while let Now::UnderWay(pending) = &self.now {
            if !pending.wait_until_done(limit.saturating_sub(start.elapsed())) {
                return false;
            }
            if self.sent == self.segments.len() {
                break;
            }
            self.turn(Duration::ZERO);
        }
        true
    }

    /// The buffer, once all was moved, and checked if it was read. Each segment may take `limit`.
    pub fn wait(mut self, limit: Duration) -> Result<Buffer, Broken> {
        let buffer = loop {
            match self.now {
                Now::Still(buffer) => break buffer,
                Now::Failed(broken) => return Err(broken),
                Now::UnderWay(_) | Now::Between => self.turn(limit),
            }
        };
        match self.shared.check(self.wanted, &buffer[..self.bytes]) {
            Ok(()) => Ok(buffer),
            Err(error) => Err(Broken::new(error, Some(buffer))),
        }
    }

    /// Wait for the segment under way, and hand in the next.
    fn turn(&mut self, limit: Duration) {
        self.now = match std::mem::replace(&mut self.now, Now::Between) {
            Now::UnderWay(pending) => {
                let outcome = pending.wait(limit);
                match (outcome.result, outcome.buffer) {
                    (Ok(_), Some(buffer)) => self.next(buffer),
                    (Ok(_), None) => unreachable!("a transfer gives its buffer back"),
                    (Err(error), buffer) => Now::Failed(Broken::new(error, buffer)),
                }
            }
            still => still,
        };
    }

    fn next(&mut self, buffer: Buffer) -> Now {
        let Some(next) = self.segments.get(self.sent) else { return Now::Still(buffer) };
        if let Some((ticket, number)) = self.draft
            && self.shared.last_draft.load(Ordering::Acquire) != ticket
        {
            // A newer draft writes to the same places.
            return Now::Failed(Broken::new(StoreError::Superseded { number }, Some(buffer)));
        }
        let pending = self.shared.hand_in(next, buffer, self.priority, self.draft.is_some());
        self.sent += 1;
        if self.sent == self.segments.len() {
            self.unsent.fetch_sub(1, Ordering::AcqRel);
        }
        Now::UnderWay(pending)
    }
}

impl Shared {
    fn hand_in(
        &self,
        segment: &Segment,
        buffer: Buffer,
        priority: Priority,
        is_write: bool,
    ) -> Pending {
        let Segment { place, range } = segment.clone();
        let (storage, file) = (&self.carrier.storage, &self.files[place.stripe as usize]);
        match is_write {
            true => storage.write(file, place.offset, buffer, range, priority),
            false => storage.read(file, place.offset, buffer, range, priority),
        }
    }

    fn check(&self, (first, wanted): (u64, Vec<Entry>), buffer: &[u8]) -> Result<(), StoreError> {
        let geometry = &self.blueprint.geometry;
        let block_bytes = geometry.block_bytes() as usize;
        for ((block, part), entry) in (first..).zip(buffer.chunks(block_bytes)).zip(&wanted) {
            let found = checksum_padded(part, block_bytes);
            if found != entry.checksum {
                return Err(self.blame(geometry.place(block, entry.side), entry.checksum, found));
            }
        }
        Ok(())
    }
}

/// Join places that lie behind one another.
fn segments(
    geometry: &Geometry,
    places: impl Iterator<Item = Place>,
    bytes: usize,
) -> Vec<Segment> {
    let block_bytes = geometry.block_bytes() as usize;
    let mut segments: Vec<Segment> = Vec::new();
    for (place, start) in places.zip((0..).step_by(block_bytes)) {
        let end = (start + block_bytes).min(bytes);
        match segments.last_mut() {
            Some(last)
                if last.place.stripe == place.stripe
                    && last.place.offset + last.range.len() as u64 == place.offset =>
            {
                last.range.end = end;
            }
            _ => segments.push(Segment { place, range: start..end }),
        }
    }
    segments
}
