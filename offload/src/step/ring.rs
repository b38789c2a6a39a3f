//! Slots of memory in a ring, each in one phase of its chunk.

use std::error::Error;
use std::time::Duration;

use super::error::Doing;
use super::home::{Arrival, Home};
use super::shape::Shape;
use crate::memory::Buffer;

pub(super) type Cause = Box<dyn Error + Send + Sync>;

/// What went wrong with which chunk.
pub(super) type Trouble = (usize, Doing, Cause);

/// The memory of one chunk, array by array.
pub(super) struct Slot<H: Home> {
    /// The chunk that was put into it last.
    chunk: usize,
    memory: Vec<Memory<H>>,
}

/// Where the memory of one array is.
enum Memory<H: Home> {
    Here(Buffer),
    Coming(H::Read),
    Going(H::Write),
    /// With a transfer that did not end in time, or in nobody's hands for a moment.
    Away,
}

impl<H: Home> Slot<H> {
    pub(super) fn new(buffers: Vec<Buffer>) -> Self {
        Self { chunk: 0, memory: buffers.into_iter().map(Memory::Here).collect() }
    }

    /// Whether nothing would have to be waited for.
    pub(super) fn is_still(&self) -> bool {
        self.memory.iter().all(|memory| match memory {
            Memory::Here(_) | Memory::Away => true,
            Memory::Coming(read) => read.is_done(),
            Memory::Going(write) => write.is_done(),
        })
    }

    /// Wait until all memory is here.
    pub(super) fn settle(&mut self, limit: Duration) -> Result<(), Trouble> {
        let mut outcome = Ok(());
        for (array, memory) in self.memory.iter_mut().enumerate() {
            let (doing, (buffer, result)) = match std::mem::replace(memory, Memory::Away) {
                Memory::Coming(read) => (Doing::Read(array), read.wait(limit)),
                Memory::Going(write) => (Doing::Write(array), write.wait(limit)),
                here_or_away => {
                    *memory = here_or_away;
                    continue;
                }
            };
            if let Some(buffer) = buffer {
                *memory = Memory::Here(buffer);
            }
            let result = result.map_err(|error| (self.chunk, doing, Cause::from(error)));
            // All of them are waited for; the first trouble counts.
            outcome = outcome.and(result);
        }
        outcome
    }

    /// Start to read a chunk into memory that is here.
    pub(super) fn read(
        &mut self,
        home: &mut H,
        shape: &Shape,
        chunk: usize,
    ) -> Result<(), Trouble> {
        self.chunk = chunk;
        self.start(Doing::Read, |array, buffer| match shape.is_read(array) {
            true => home.read(shape.piece(array, chunk), buffer).map(Memory::Coming),
            false => Ok(Memory::Here(buffer)),
        })
    }

    /// Start to write the chunk whose memory is here.
    pub(super) fn write(&mut self, home: &mut H, shape: &Shape) -> Result<(), Trouble> {
        let chunk = self.chunk;
        self.start(Doing::Write, |array, buffer| {
            home.write(shape.piece(array, chunk), buffer).map(Memory::Going)
        })
    }

    fn start(
        &mut self,
        doing: impl Fn(usize) -> Doing,
        mut start: impl FnMut(usize, Buffer) -> Result<Memory<H>, H::Error>,
    ) -> Result<(), Trouble> {
        for (array, memory) in self.memory.iter_mut().enumerate() {
            match std::mem::replace(memory, Memory::Away) {
                Memory::Here(buffer) => {
                    *memory = start(array, buffer)
                        .map_err(|error| (self.chunk, doing(array), Cause::from(error)))?;
                }
                _ => unreachable!("a slot is settled before it is used"),
            }
        }
        Ok(())
    }

    /// The arrays, where all memory is here.
    pub(super) fn arrays(&mut self) -> impl Iterator<Item = &mut Buffer> {
        self.memory.iter_mut().filter_map(|memory| match memory {
            Memory::Here(buffer) => Some(buffer),
            _ => None,
        })
    }

    /// The memory that is here.
    pub(super) fn into_buffers(self) -> Vec<Option<Buffer>> {
        let here = |memory| match memory {
            Memory::Here(buffer) => Some(buffer),
            _ => None,
        };
        self.memory.into_iter().map(here).collect()
    }
}
