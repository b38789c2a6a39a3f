//! A whole tensor on its way between one buffer and its blocks, without a copy.
//!
//! Where its blocks lie behind one another, which is the rule, the whole tensor is one request. Where
//! they do not, its segments go one after the other: a buffer is lent to one request at a time.

use std::ops::Range;
use std::sync::Arc;

use super::carrier::damaged;
use super::draft::Draft;
use super::error::StoreError;
use super::state::Shared;
use crate::layout::{Entry, Fault, Geometry, Place, Wrong, checksum_padded};
use crate::memory::Buffer;
use crate::storage::{Pending, Priority};

/// A tensor on its way.
#[derive(Debug)]
pub(super) struct Run {
    shared: Arc<Shared>,
    priority: Priority,
    is_write: bool,
    segments: Vec<Segment>,
    /// Of the segments, how many were handed in.
    sent: usize,
    now: Now,
    /// Of a read: the first block, and what its blocks should sum to.
    wanted: (u64, Vec<Entry>),
}

#[derive(Debug)]
enum Now {
    /// The segment handed in last.
    UnderWay(Pending),
    /// There was nothing to do.
    Still(Buffer),
}

/// Blocks that lie behind one another in a file.
#[derive(Clone, Debug)]
struct Segment {
    place: Place,
    range: Range<usize>,
}

/// What is left when a run fails: the error, and the buffer unless the system still has it.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) error: Box<StoreError>,
    pub(super) buffer: Option<Buffer>,
}

impl Broken {
    fn new(error: impl Into<StoreError>, buffer: Option<Buffer>) -> Self {
        Self { error: Box::new(error.into()), buffer }
    }
}

impl Run {
    /// Read blocks from `first` on until the buffer is full. None, with the buffer: nobody ever wrote
    /// one of them.
    pub(super) fn read(
        draft: &Draft,
        first: u64,
        buffer: Buffer,
        priority: Priority,
    ) -> Result<Self, Buffer> {
        let geometry = draft.geometry();
        let blocks = first..first + (buffer.len() as u64).div_ceil(geometry.block_bytes());
        let Some(entries) = blocks.map(|block| draft.entry(block)).collect::<Option<Vec<_>>>()
        else {
            return Err(buffer);
        };
        let places =
            (first..).zip(&entries).map(|(block, entry)| geometry.place(block, entry.side));
        let segments = segments(&geometry, places, buffer.len());
        Ok(Self::start(draft, segments, buffer, priority, false, (first, entries)))
    }

    /// Write the whole buffer to blocks from `first` on. What is behind its end in the last of them is
    /// zero and stays so.
    ///
    /// Errors: a newer draft was begun.
    pub(super) fn write(
        draft: &mut Draft,
        first: u64,
        buffer: Buffer,
        priority: Priority,
    ) -> Result<Self, Broken> {
        let geometry = draft.geometry();
        let block_bytes = geometry.block_bytes() as usize;
        let mut places = Vec::new();
        for (block, part) in (first..).zip(buffer.chunks(block_bytes)) {
            match draft.note(block, checksum_padded(part, block_bytes)) {
                Ok(place) => places.push(place),
                Err(error) => return Err(Broken::new(error, Some(buffer))),
            }
        }
        let segments = segments(&geometry, places.into_iter(), buffer.len());
        Ok(Self::start(draft, segments, buffer, priority, true, (first, Vec::new())))
    }

    fn start(
        draft: &Draft,
        segments: Vec<Segment>,
        buffer: Buffer,
        priority: Priority,
        is_write: bool,
        wanted: (u64, Vec<Entry>),
    ) -> Self {
        let shared = draft.shared().clone();
        let mut run =
            Self { shared, priority, is_write, segments, sent: 0, now: Now::Still(buffer), wanted };
        run.now = match run.now {
            Now::Still(buffer) if !run.segments.is_empty() => {
                let pending = run.shared.hand_in(&run.segments[0], buffer, priority, is_write);
                run.sent = 1;
                Now::UnderWay(pending)
            }
            now => now,
        };
        run
    }

    /// Whether waiting would end at once.
    pub(super) fn is_done(&self) -> bool {
        match &self.now {
            Now::Still(_) => true,
            Now::UnderWay(pending) => self.sent == self.segments.len() && pending.is_done(),
        }
    }

    /// The buffer, once all of it was moved, and checked if it was read.
    pub(super) fn wait(self) -> Result<Buffer, Broken> {
        let Self { shared, priority, is_write, segments, sent, mut now, wanted } = self;
        let mut rest = segments[sent..].iter();
        let buffer = loop {
            now = match now {
                Now::Still(buffer) => break buffer,
                Now::UnderWay(pending) => {
                    let outcome = pending.wait(shared.carrier.wait_limit);
                    match (outcome.result, outcome.buffer) {
                        (Ok(_), Some(buffer)) => match rest.next() {
                            None => Now::Still(buffer),
                            Some(next) => {
                                Now::UnderWay(shared.hand_in(next, buffer, priority, is_write))
                            }
                        },
                        (Ok(_), None) => unreachable!("a transfer gives its buffer back"),
                        (Err(error), buffer) => return Err(Broken::new(error, buffer)),
                    }
                }
            }
        };
        match shared.check(wanted, &buffer) {
            Ok(()) => Ok(buffer),
            Err(error) => Err(Broken::new(error, Some(buffer))),
        }
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
                let Place { stripe, offset } = geometry.place(block, entry.side);
                let (wanted, found) = (entry.checksum.0, found.0);
                let wrong = Wrong::Checksum { what: "a block", wanted, found };
                return Err(damaged(&self.files[stripe as usize], Fault { offset, wrong }));
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
