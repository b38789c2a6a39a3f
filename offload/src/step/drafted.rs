//! State in a state file: read from its newest generation, written to the one in the making.

use std::time::Duration;

use super::home::{Arrival, Home, Piece};
use super::shape::Shape;
use crate::layout::Placed;
use crate::memory::Buffer;
use crate::storage::{Pending, Priority};
use crate::store::{Carrier, Draft, PendingBlock, StateFile, StoreError};

/// Arrays that are tensors of a state file, a block of the file for each chunk.
///
/// Every block that is read is checked, and none is written where it was read: whatever happens in
/// a step, the newest generation is what it was. [`StateFile::commit`] of the draft after the step
/// makes its result the newest; dropping the draft forgets it.
#[derive(Debug)]
pub struct Drafted<'a> {
    draft: &'a mut Draft,
    carrier: Carrier,
    /// The first block of each array.
    firsts: Vec<u64>,
    block_bytes: u64,
}

/// A tensor that cannot be streamed block by block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misplaced {
    /// Chunks are blocks, so tensors must begin where blocks do: pack them so.
    #[error("{name} begins at byte {offset}, which is no multiple of a block's {block_bytes}")]
    Begin {
        /// The tensor.
        name: String,
        /// Where it begins in the state.
        offset: u64,
        /// Of a block.
        block_bytes: u64,
    },
    /// Chunks have one number of elements, so all tensors must have equally many of equal width.
    #[error("{name} has {got} bytes, another streamed tensor {want}")]
    Bytes {
        /// The tensor.
        name: String,
        /// How many bytes it has.
        got: u64,
        /// How many the first one has.
        want: u64,
    },
}

/// A block on its way into memory.
#[derive(Debug)]
pub struct Coming {
    block: PendingBlock,
    carrier: Carrier,
}

/// A block on its way out of memory.
#[derive(Debug)]
pub struct Going(Pending);

impl<'a> Drafted<'a> {
    /// Stream these tensors of `state` into a draft that it has begun, in the order of the shape's
    /// widths; [`shape`](Self::shape) is theirs.
    ///
    /// # Errors
    /// They do not begin with a block, or have unequal lengths.
    pub fn new(
        carrier: &Carrier,
        state: &StateFile,
        draft: &'a mut Draft,
        tensors: &[&Placed],
    ) -> Result<Self, Misplaced> {
        let block_bytes = state.geometry().block_bytes();
        let want = tensors.first().map_or(0, |placed| placed.tensor.bytes());
        for Placed { tensor, offset } in tensors {
            let (name, offset, got) = (tensor.name.clone(), *offset, tensor.bytes());
            if !offset.is_multiple_of(block_bytes) {
                return Err(Misplaced::Begin { name, offset, block_bytes });
            }
            if got != want {
                return Err(Misplaced::Bytes { name, got, want });
            }
        }
        let firsts = tensors.iter().map(|placed| placed.offset / block_bytes).collect();
        Ok(Self { draft, carrier: carrier.clone(), firsts, block_bytes })
    }

    /// How `elements` of `width` bytes in these tensors are cut: a block for each chunk.
    ///
    /// # Panics
    /// When elements are as wide as a block, or of no width.
    pub fn shape(&self, elements: usize, width: usize) -> Shape {
        let widths = vec![width; self.firsts.len()];
        Shape::cut(elements, &widths, self.block_bytes as usize / width)
    }

    fn block(&self, piece: Piece) -> u64 {
        assert_eq!(piece.offset, piece.chunk as u64 * self.block_bytes, "a chunk is a block");
        self.firsts[piece.array] + piece.chunk as u64
    }
}

impl Home for Drafted<'_> {
    type Error = StoreError;
    type Read = Coming;
    type Write = Going;

    fn read(&mut self, piece: Piece, memory: Buffer) -> Result<Coming, StoreError> {
        let block = self.block(piece);
        let pending = self.draft.read_block(block, memory, Priority::Background);
        let block = pending.expect("a draft after a generation has all of its blocks");
        Ok(Coming { block, carrier: self.carrier.clone() })
    }

    fn write(&mut self, piece: Piece, memory: Buffer) -> Result<Going, StoreError> {
        let block = self.block(piece);
        Ok(Going(self.draft.write_block(block, memory, Priority::Background)?))
    }
}

impl Arrival for Coming {
    type Error = StoreError;

    fn is_done(&self) -> bool {
        self.block.is_done()
    }

    /// The limit is the carrier's.
    fn wait(self, _: Duration) -> (Option<Buffer>, Result<(), StoreError>) {
        match self.block.wait(&self.carrier) {
            Ok(buffer) => (Some(buffer), Ok(())),
            Err(error) => (None, Err(error)),
        }
    }
}

impl Arrival for Going {
    type Error = StoreError;

    fn is_done(&self) -> bool {
        self.0.is_done()
    }

    fn wait(self, limit: Duration) -> (Option<Buffer>, Result<(), StoreError>) {
        let (buffer, result) = Arrival::wait(self.0, limit);
        (buffer, result.map_err(StoreError::from))
    }
}
