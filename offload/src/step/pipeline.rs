//! The pipeline: chunks through a ring of slots.

use std::error::Error;
use std::ops::Range;
use std::time::Duration;

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
    /// shape's widths, each as long as the elements; elements come in order, each once, and never
    /// those of two chunks together. Arrays that are only written hold bytes of no meaning before.
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
    /// From homes into memory. \[bytes\]
    pub read_bytes: u64,
    /// From memory to homes. \[bytes\]
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

    /// How many chunks there is memory for.
    pub fn slots(&self) -> usize {
        self.buffers.len()
    }

    /// How long one transfer may take.
    pub(super) fn patience(&self) -> Duration {
        self.limit
    }

    /// The memory, for the duration of a step.
    pub(super) fn lend(&mut self) -> Vec<Vec<Buffer>> {
        let slots = self.buffers.iter_mut();
        slots.map(|slot| slot.iter_mut().filter_map(Option::take).collect()).collect()
    }

    /// The memory that came back.
    pub(super) fn take_back(&mut self, buffers: Vec<Vec<Option<Buffer>>>) {
        self.buffers = buffers;
    }

    /// Take memory for whatever slot has none.
    pub(super) fn refill(&mut self) -> Result<(), OverBudget> {
        let chunk_elements = self.shape.chunk_elements();
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
