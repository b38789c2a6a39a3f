//! The memory that an arena and its buffers share, and the books on it.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ranges::{Ranges, span_bytes};
use super::region::Region;
use super::{Category, Ledger};

/// The memory of an arena, for as long as anybody holds some of it.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) region: Region,
    books: Mutex<Books>,
}

/// What is free, and who holds how much.
#[derive(Debug)]
pub(super) struct Books {
    pub(super) ranges: Ranges,
    pub(super) ledger: Ledger,
}

impl Pool {
    /// Of this memory, of which nobody holds anything yet.
    pub(super) fn new(region: Region) -> Self {
        let capacity = region.bytes();
        let books = Books { ranges: Ranges::new(capacity), ledger: Ledger::new(capacity) };
        Self { region, books: Mutex::new(books) }
    }

    /// Where the memory begins.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.region.base()
    }

    /// Take back what a buffer held.
    pub(super) fn give(&self, start: usize, bytes: usize, category: Category) {
        let span = span_bytes(bytes);
        let mut books = self.books();
        books.ranges.give(start, span);
        books.ledger.give(bytes, span, category);
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        // The books are changed by code that does not panic between its lines.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
