//! Where things lie in a group's area, computed alike by every member.
//!
//! ```text
//! head                          who has left
//! bells    [member]             a line each
//! tails    [to][from]           a line each, written by the receiver
//! slots    [to][from]           a page each, written by the sender
//! payload  [to][from]           ring_bytes each, written by the sender
//! ```
//!
//! What a member polls lies together. Nothing is touched before it is used, so an idle pair costs
//! address space only.

use super::area::area_head_bytes;
use super::sys::PAGE_BYTES;
use super::{Settings, wire};

const LINE_BYTES: usize = 64;
const PIECE_BYTES_MIN: usize = 4 << 10;
const RING_BYTES_MIN: usize = 16 << 10;

const _: () = assert!(wire::SLOTS_BYTES == PAGE_BYTES);

/// The shape of one group's area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) members: u32,
    /// The payload of one ordered pair; a power of two.
    pub(super) ring_bytes: usize,
    /// The most bytes one slot stands for; a multiple of the line.
    pub(super) piece_bytes: usize,
}

impl Layout {
    pub(super) fn new(members: u32, settings: &Settings) -> Self {
        assert!(members > 0);
        let peers = (members as usize - 1).max(1);
        let share = (settings.inbound_bytes / peers).clamp(RING_BYTES_MIN, settings.ring_bytes);
        let ring_bytes = 1 << share.ilog2();
        let piece_bytes = (ring_bytes / 8).clamp(PIECE_BYTES_MIN, settings.piece_bytes);
        Self { members, ring_bytes, piece_bytes }
    }

    pub(super) fn bytes(&self) -> usize {
        self.payload_from() + self.pairs() * self.ring_bytes
    }

    pub(super) fn bell(&self, seat: u32) -> usize {
        assert!(seat < self.members);
        area_head_bytes(self.members) + seat as usize * LINE_BYTES
    }

    pub(super) fn tail(&self, from: u32, to: u32) -> usize {
        self.tails_from() + self.pair(from, to) * LINE_BYTES
    }

    pub(super) fn slots(&self, from: u32, to: u32) -> usize {
        self.slots_from() + self.pair(from, to) * wire::SLOTS_BYTES
    }

    pub(super) fn payload(&self, from: u32, to: u32) -> usize {
        self.payload_from() + self.pair(from, to) * self.ring_bytes
    }

    fn pair(&self, from: u32, to: u32) -> usize {
        assert!(from < self.members && to < self.members);
        to as usize * self.members as usize + from as usize
    }

    fn pairs(&self) -> usize {
        (self.members as usize).pow(2)
    }

    fn tails_from(&self) -> usize {
        area_head_bytes(self.members) + self.members as usize * LINE_BYTES
    }

    fn slots_from(&self) -> usize {
        (self.tails_from() + self.pairs() * LINE_BYTES).next_multiple_of(PAGE_BYTES)
    }

    fn payload_from(&self) -> usize {
        self.slots_from() + self.pairs() * wire::SLOTS_BYTES
    }
}
