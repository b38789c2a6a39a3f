//! State in files, array by array.

use std::time::Duration;

use super::home::{Arrival, Home, Piece};
use crate::memory::Buffer;
use crate::storage::{File, Pending, Priority, Storage, StorageError};

/// Arrays in files of one storage.
///
/// A chunk is in the file when its write has ended, and survives a loss of power after a
/// [`Storage::sync`]. If a step ends with an error and arrays are written where they are read, the
/// state is a mixture: write to another place, and swap the two when the step has succeeded.
#[derive(Debug)]
pub struct Files {
    storage: Storage,
    arrays: Vec<Span>,
}

/// Where one array is read, and where it is written.
#[derive(Clone, Debug)]
pub struct Span {
    /// The file of both.
    pub file: File,
    /// Where the array begins now. \[bytes\]
    pub read_at: u64,
    /// Where it begins after the step; may be the same. \[bytes\]
    pub write_at: u64,
}

impl Files {
    /// The streamed arrays, in the order of the shape's widths.
    pub fn new(storage: &Storage, arrays: Vec<Span>) -> Self {
        Self { storage: storage.clone(), arrays }
    }
}

impl Home for Files {
    type Error = StorageError;
    type Read = Pending;
    type Write = Pending;

    fn read(&mut self, piece: Piece, memory: Buffer) -> Result<Pending, StorageError> {
        let Span { file, read_at, .. } = &self.arrays[piece.array];
        let (at, bytes) = (read_at + piece.offset, 0..piece.bytes);
        Ok(self.storage.read(file, at, memory, bytes, Priority::Background))
    }

    fn write(&mut self, piece: Piece, memory: Buffer) -> Result<Pending, StorageError> {
        let Span { file, write_at, .. } = &self.arrays[piece.array];
        let (at, bytes) = (write_at + piece.offset, 0..piece.bytes);
        Ok(self.storage.write(file, at, memory, bytes, Priority::Background))
    }
}

impl Arrival for Pending {
    type Error = StorageError;

    fn is_done(&self) -> bool {
        Pending::is_done(self)
    }

    fn wait(self, limit: Duration) -> (Option<Buffer>, Result<(), StorageError>) {
        let outcome = Pending::wait(self, limit);
        (outcome.buffer, outcome.result.map(|_| ()))
    }
}
