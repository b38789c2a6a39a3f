//! The pipeline: chunks through a ring of slots.

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use super::error::{Doing, StepError};
use super::home::Home;
use super::ring::{Slot, Trouble};
use super::shape::Shape;
use crate::memory::{Arena, Buffer, Category, OverBudget};

/// Fewer would not let reading, updating and writing overlap.
const SLOTS_MIN: usize = 3;

/// Two chunks being read, one updated, two written: neither direction of a device is ever idle
/// because the one transfer it had has just ended.
const SLOTS: usize = 5;

/// How long a transfer may take before the step gives up on it.
const LIMIT: Duration = Duration::from_secs(60);

/// The memory through which state is streamed, taken once and used by every step.
#[derive(Debug)]
pub struct Pipeline {
    arena: Arena,
    shape: Shape,
    /// [slot × array]. None where a transfer of an earlier step never ended.
    buffers: Vec<Vec<Option<Buffer>>>,
    limit: Duration,
}

/// What happens to a chunk between reading and writing.
pub trait Middle {
    /// Update the streamed arrays of some elements in place. The arrays come in the order of the
    /// shape's widths, each as long as the elements; the chunks come in order, each once.
    ///
    /// It may wait for what it needs from elsewhere, with a deadline of its own: transfers of other
    /// chunks go on meanwhile.
    ///
    /// # Errors
    /// Whatever went wrong: the step stops, and this chunk is not written.
    fn update(
        &mut self,
        elements: Range<usize>,
        arrays: &mut [&mut [u8]],
    ) -> Result<(), Box<dyn Error + Send + Sync>>;
}

impl<F> Middle for F
where
    F: FnMut(Range<usize>, &mut [&mut [u8]]) -> Result<(), Box<dyn Error + Send + Sync>>,
{
    fn update(
        &mut self,
        elements: Range<usize>,
        arrays: &mut [&mut [u8]],
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        self(elements, arrays)
    }
}

/// What a step has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// From homes into memory. [bytes]
    pub read_bytes: u64,
    /// From memory to homes. [bytes]
    pub written_bytes: u64,
}

impl Pipeline {
    /// Memory for five chunks of `shape`, for as long as this lives.
    ///
    /// # Errors
    /// The arena has not that much left.
    pub fn new(arena: &Arena, shape: Shape) -> Result<Self, OverBudget> {
        Self::with_slots(arena, shape, SLOTS)
    }

    /// [`new`](Self::new) with memory for `slots` chunks, at least 3.
    ///
    /// # Errors
    /// The arena has not that much left.
    ///
    /// # Panics
    /// With fewer than 3 slots.
    pub fn with_slots(arena: &Arena, shape: Shape, slots: usize) -> Result<Self, OverBudget> {
        assert!(slots >= SLOTS_MIN, "{slots} slots: at least {SLOTS_MIN} overlap");
        let mut buffers: Vec<Vec<_>> = Vec::new();
        buffers.resize_with(slots, || shape.widths().iter().map(|_| None).collect());
        let mut pipeline = Self { arena: arena.clone(), shape, buffers, limit: LIMIT };
        pipeline.refill()?;
        Ok(pipeline)
    }

    /// Let a transfer take at most this long; a minute if nothing is said.
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// How the state is cut.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Pass every chunk from `home` through `middle` and back.
    ///
    /// When this returns, with or without an error, no transfer of this step is on its way, except
    /// one that took longer than the limit. Every write has been seen to end well if it is `Ok`.
    ///
    /// Cost: what the home's transfers cost, and one small allocation for each chunk.
    ///
    /// # Errors
    /// The first read, update or write that failed: see [`StepError::Stopped`] for what that leaves.
    pub fn run<H: Home>(
        &mut self,
        home: &mut H,
        middle: &mut impl Middle,
    ) -> Result<Moved, StepError> {
        self.refill()?;
        let taken = self.buffers.iter_mut().map(|slot| slot.iter_mut().filter_map(Option::take));
        let mut slots: Vec<Slot<H>> = taken.map(|slot| Slot::new(slot.collect())).collect();
        let mut updated = 0;
        let mut outcome = self.stream(&mut slots, home, middle, &mut updated);
        for slot in &mut slots {
            // After a first trouble the others only follow from it, or come too late to matter.
            outcome = outcome.and(slot.settle(self.limit));
        }
        self.buffers = slots.into_iter().map(Slot::into_buffers).collect();
        let chunks = self.shape.chunks();
        outcome.map_err(|(chunk, doing, cause)| StepError::Stopped {
            chunk,
            chunks,
            doing,
            updated,
            cause,
        })?;
        let bytes = self.shape.bytes();
        Ok(Moved { read_bytes: bytes, written_bytes: bytes })
    }

    /// The steady state. Slots may be left in any phase.
    fn stream<H: Home>(
        &self,
        slots: &mut [Slot<H>],
        home: &mut H,
        middle: &mut impl Middle,
        updated: &mut usize,
    ) -> Result<(), Trouble> {
        let (shape, count) = (&self.shape, slots.len());
        let mut next = 0;
        for chunk in 0..shape.chunks() {
            // Read ahead into every slot whose last write has ended; wait for one only if this very
            // chunk has no slot yet.
            while next < shape.chunks().min(chunk + count) {
                let slot = &mut slots[next % count];
                if next > chunk && !slot.is_still() {
                    break;
                }
                slot.settle(self.limit)?;
                slot.read(home, shape, next)?;
                next += 1;
            }
            let slot = &mut slots[chunk % count];
            slot.settle(self.limit)?;
            self.update(slot, chunk, middle)?;
            *updated = chunk + 1;
            slot.write(home, shape)?;
        }
        Ok(())
    }

    fn update<H: Home>(
        &self,
        slot: &mut Slot<H>,
        chunk: usize,
        middle: &mut impl Middle,
    ) -> Result<(), Trouble> {
        let elements = self.shape.range(chunk);
        let widths = self.shape.widths();
        let cut = |(buffer, width): (_, &usize)| {
            let all: &mut Buffer = buffer;
            &mut all[..elements.len() * width]
        };
        let mut arrays: Vec<&mut [u8]> = slot.arrays().zip(widths).map(cut).collect();
        middle.update(elements.clone(), &mut arrays).map_err(|cause| (chunk, Doing::Update, cause))
    }

    /// Take memory for whatever slot has none.
    fn refill(&mut self) -> Result<(), OverBudget> {
        let chunk_elements = self.shape.chunk_elements().min(self.shape.elements());
        for slot in &mut self.buffers {
            for (buffer, width) in slot.iter_mut().zip(self.shape.widths()) {
                if buffer.is_none() {
                    let bytes = chunk_elements * width;
                    *buffer = Some(self.arena.take(bytes, Category::Staging)?);
                }
            }
        }
        Ok(())
    }
}
