//! The caller's memory, for as long as a lane's devices may read it.

use std::sync::Arc;

use brigade_verbs::{Memory, MemoryRegion};

use crate::rdma::cache::Lent;
use crate::rdma::limits::PIECES;

/// What a wire is asked to take.
#[derive(Clone, Copy)]
pub(in crate::rdma) enum Source<'a> {
    /// To be copied.
    Passing(&'a [u8]),
    /// May be held.
    Lent(Lendable<'a>),
}

impl<'a> Source<'a> {
    pub(in crate::rdma) fn bytes(self) -> &'a [u8] {
        match self {
            Source::Passing(bytes) | Source::Lent(Lendable(bytes)) => bytes,
        }
    }

    /// The part of it that begins at `start`.
    pub(in crate::rdma) fn part(self, start: usize, bytes: usize) -> Source<'a> {
        match self {
            Source::Passing(all) => Source::Passing(&all[start..start + bytes]),
            Source::Lent(Lendable(all)) => Source::Lent(Lendable(&all[start..start + bytes])),
        }
    }
}

/// Bytes whose owner leaves them alone until they are let go of.
#[derive(Clone, Copy)]
pub(in crate::rdma) struct Lendable<'a>(&'a [u8]);

impl<'a> Lendable<'a> {
    /// # Safety
    ///
    /// The bytes stay as they are until [`Held`] has let go of them, whatever the lifetime says.
    pub(in crate::rdma) unsafe fn new(bytes: &'a [u8]) -> Self {
        Lendable(bytes)
    }
}

/// What is held, piece by piece: each at its number modulo their count.
pub(in crate::rdma) struct Held([Option<Piece>; PIECES]);

struct Piece {
    lent: Lent,
    start: *const u8,
    bytes: usize,
}

// SAFETY: the pointer is to bytes that nobody writes while they are held.
unsafe impl Send for Held {}

impl Held {
    pub(in crate::rdma) fn nothing() -> Held {
        Held([const { None }; PIECES])
    }

    /// Hold the bytes of piece `number`, which `lent` makes known to a device.
    pub(in crate::rdma) fn hold(&mut self, number: u32, lent: Lent, Lendable(bytes): Lendable<'_>) {
        let piece = Piece { lent, start: bytes.as_ptr(), bytes: bytes.len() };
        self.0[number as usize % PIECES] = Some(piece);
    }

    pub(in crate::rdma) fn holds(&self, number: u32) -> bool {
        self.0[number as usize % PIECES].is_some()
    }

    pub(in crate::rdma) fn let_go(&mut self, number: u32) {
        self.0[number as usize % PIECES] = None;
    }

    pub(in crate::rdma) fn let_all_go(&mut self) {
        self.0.fill_with(|| None);
    }

    /// Where a device finds a piece that is held: the region, and the place in it.
    pub(in crate::rdma) fn place(&self, number: u32) -> Option<(&Arc<MemoryRegion>, usize)> {
        let piece = self.0[number as usize % PIECES].as_ref()?;
        Some((&piece.lent.region, piece.lent.offset))
    }

    /// Copy a piece that is held to `offset` of `target`.
    pub(in crate::rdma) fn copy(&self, number: u32, target: &Memory, offset: usize) {
        let Some(piece) = &self.0[number as usize % PIECES] else { return };
        // SAFETY: held since `hold`, whose caller got the bytes from a `Lendable`: they stay.
        let bytes = unsafe { std::slice::from_raw_parts(piece.start, piece.bytes) };
        target.write(offset, bytes);
    }
}
