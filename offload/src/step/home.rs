//! Where arrays of state lie, as the pipeline sees it.

use std::error::Error;
use std::time::Duration;

use crate::memory::Buffer;

/// One chunk of one array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which streamed array, counted from 0.
    pub array: usize,
    /// Which chunk of it.
    pub chunk: usize,
    /// Where it begins in the array. \[bytes\]
    pub offset: u64,
    /// How long it is; the memory may be longer.
    pub bytes: usize,
}

/// Reads and writes pieces of arrays without making anybody wait.
///
/// Each piece is read at most once in a step, and written after that, from the same memory.
pub trait Home {
    /// What may go wrong.
    type Error: Error + Send + Sync + 'static;
    /// A piece on its way into memory.
    type Read: Arrival<Error = Self::Error>;
    /// A piece on its way out of memory.
    type Write: Arrival<Error = Self::Error>;

    /// Start to read a piece to the begin of `memory`.
    ///
    /// # Errors
    /// It cannot even be started.
    fn read(&mut self, piece: Piece, memory: Buffer) -> Result<Self::Read, Self::Error>;

    /// Start to write a piece from the begin of `memory`.
    ///
    /// # Errors
    /// It cannot even be started.
    fn write(&mut self, piece: Piece, memory: Buffer) -> Result<Self::Write, Self::Error>;
}

/// Memory that comes back when a transfer has ended.
pub trait Arrival {
    /// What may go wrong.
    type Error: Error + Send + Sync + 'static;

    /// Whether [`wait`](Self::wait) would return at once.
    fn is_done(&self) -> bool;

    /// Wait at most `limit`. The memory comes back in any case but one: while the system may still
    /// use it.
    fn wait(self, limit: Duration) -> (Option<Buffer>, Result<(), Self::Error>);
}
