//! State in a state file: read from its newest generation, written to the one in the making.

use std::cell::RefCell;
use std::time::Duration;

use super::home::{Arrival, Home, Piece};
use super::shape::Shape;
use crate::layout::Placed;
use crate::memory::Buffer;
use crate::storage::Priority;
use crate::store::{Carrier, Draft, Run, StateFile, StoreError};

/// Arrays that are tensors of a state file, whole blocks of the file for each chunk.
///
/// Every block that is read is checked, and none is written where it was read: whatever happens in
/// a step, the newest generation is what it was. [`StateFile::commit`] of the draft after the step
/// makes its result the newest; dropping the draft forgets it.
#[derive(Debug)]
pub struct Drafted<'a> {
    draft: &'a mut Draft,
    carrier: Carrier,
    arrays: Vec<Placed>,
    /// So many of them, the first, are read; all are written.
    read: usize,
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
    /// Chunks have one number of elements, so all tensors must have equally many.
    #[error("{name} has {got} elements, another streamed tensor {want}")]
    Elements {
        /// The tensor.
        name: String,
        /// How many it has.
        got: u64,
        /// How many the first one has.
        want: u64,
    },
}

/// Blocks on their way, either way. Interior: whoever asks how far they are hands the next ones in
/// where they do not lie behind one another.
#[derive(Debug)]
pub struct Moving {
    run: RefCell<Run>,
    /// Of each wait for the device.
    limit: Duration,
}

impl<'a> Drafted<'a> {
    /// Stream these tensors of `state` into a draft that it has begun, in the order of the shape's
    /// widths; [`shape`](Self::shape) is theirs.
    ///
    /// # Errors
    /// They do not begin with a block, or have unequal numbers of elements.
    pub fn new(
        carrier: &Carrier,
        state: &StateFile,
        draft: &'a mut Draft,
        tensors: &[&Placed],
    ) -> Result<Self, Misplaced> {
        let block_bytes = state.geometry().block_bytes();
        let (arrays, carrier) = (Vec::new(), carrier.clone());
        let mut drafted = Self { draft, carrier, arrays, read: 0, block_bytes };
        drafted.add(tensors)?;
        drafted.read = drafted.arrays.len();
        Ok(drafted)
    }

    /// And behind them these, which are only written: they need not be in the newest generation.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn and_written(mut self, tensors: &[&Placed]) -> Result<Self, Misplaced> {
        self.add(tensors)?;
        Ok(self)
    }

    fn add(&mut self, tensors: &[&Placed]) -> Result<(), Misplaced> {
        for placed in tensors {
            let Placed { tensor, offset } = placed;
            let (name, offset, block_bytes) = (tensor.name.clone(), *offset, self.block_bytes);
            if !offset.is_multiple_of(block_bytes) {
                return Err(Misplaced::Begin { name, offset, block_bytes });
            }
            let (got, want) = (elements(placed), self.arrays.first().map(elements));
            if let Some(want) = want.filter(|want| *want != got) {
                return Err(Misplaced::Elements { name, got, want });
            }
            self.arrays.push(Placed::clone(placed));
        }
        Ok(())
    }

    /// How all elements of these tensors are cut: a chunk is a block of the array with the
    /// narrowest elements, and as many times more of each other as its elements are wider.
    pub fn shape(&self) -> Shape {
        let width = |placed: &Placed| placed.tensor.dtype.bytes() as usize;
        let widths: Vec<usize> = self.arrays.iter().map(width).collect();
        let count = self.arrays.first().map_or(0, elements) as usize;
        let narrowest = widths.iter().min().map_or(1, |width| *width);
        let (read, written) = widths.split_at(self.read);
        Shape::cut(count, read, self.block_bytes as usize / narrowest).and_written(written)
    }
}

fn elements(placed: &Placed) -> u64 {
    placed.tensor.bytes() / placed.tensor.dtype.bytes()
}

impl Home for Drafted<'_> {
    type Error = StoreError;
    type Read = Moving;
    type Write = Moving;

    fn read(&mut self, piece: Piece, memory: Buffer) -> Result<Moving, StoreError> {
        let Piece { array, offset, bytes, .. } = piece;
        let placed = &self.arrays[array];
        let run = self.draft.read_part(placed, offset, bytes, memory, Priority::Background);
        Ok(Moving::new(run.map_err(|broken| *broken.error)?, &self.carrier))
    }

    fn write(&mut self, piece: Piece, memory: Buffer) -> Result<Moving, StoreError> {
        let Piece { array, offset, bytes, .. } = piece;
        let placed = &self.arrays[array];
        let run = self.draft.write_part(placed, offset, bytes, memory, Priority::Background);
        Ok(Moving::new(run.map_err(|broken| *broken.error)?, &self.carrier))
    }
}

impl Moving {
    fn new(run: Run, carrier: &Carrier) -> Self {
        Self { run: RefCell::new(run), limit: carrier.patience() }
    }
}

impl Arrival for Moving {
    type Error = StoreError;

    fn is_done(&self) -> bool {
        self.run.borrow_mut().wait_until_done(Duration::ZERO)
    }

    /// The limit is the carrier's.
    fn wait(self, _: Duration) -> (Option<Buffer>, Result<(), StoreError>) {
        match self.run.into_inner().wait(self.limit) {
            Ok(buffer) => (Some(buffer), Ok(())),
            Err(broken) => (broken.buffer, Err(*broken.error)),
        }
    }
}
