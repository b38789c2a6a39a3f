//! The bytes on their way from one member to another, and the credits on their way back.
//!
//! Pieces are buffers that change hands: the sender fills one outside the lock, queues it under the
//! lock, the receiver takes it out and reads it where it lies, again outside the lock, and hands it
//! back empty. Two counters outside the lock say whether a look at the queue is worth it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::port::Members;
use super::timeline::NEVER;
use super::world::{Settings, Shared};
use crate::TransportError;

/// What is said of a member that a fault has cut off.
pub(super) const CUT: &str = "it was cut off by a fault of the loopback world";
const LEFT: &str = "it left the group";
const CLOSED: &str = "it closed its end of the wire";

/// A wire, as both ends see it.
#[derive(Default)]
pub(super) struct Wire {
    /// Bytes that were pushed and whose credit is not back yet. Only the sender adds.
    pub(super) held_bytes: AtomicUsize,
    /// Bytes in the queue, arrived or not.
    pub(super) queued_bytes: AtomicUsize,
    pub(super) sender_closed: AtomicBool,
    pub(super) receiver_closed: AtomicBool,
    pub(super) queue: Mutex<Queue>,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) pieces: VecDeque<Piece>,
    /// Emptied buffers on their way back to the sender.
    pub(super) empty: Vec<Vec<u8>>,
    /// Credits on their way back to the sender: when they arrive, and how many bytes.
    pub(super) credits: VecDeque<(u64, usize)>,
}

/// What travels together.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) bytes: Vec<u8>,
    /// When it is visible to the receiver.
    pub(super) at_ns: u64,
}

/// Bytes of the caller's that the wire reads later.
pub(super) struct Lent {
    start: *const u8,
    bytes: usize,
}

// SAFETY: nobody writes the bytes while they are lent.
unsafe impl Send for Lent {}

impl Lent {
    /// # Safety
    ///
    /// The bytes stay as they are until this is dropped.
    pub(super) unsafe fn new(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr(), bytes: bytes.len() }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: they stay as they are, as promised to `new`.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }
}

/// A wire and all that its ends need to know about the world around it.
pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    pub(super) members: Arc<Members>,
    pub(super) wire: Arc<Wire>,
    pub(super) group: u64,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) from_rank: usize,
    pub(super) to_rank: usize,
}

impl Link {
    pub(super) fn new(
        shared: Arc<Shared>,
        members: Arc<Members>,
        group: u64,
        from: usize,
        to: usize,
    ) -> Self {
        let rank = |member: usize| members.ranks[member].expect("the endpoint checked it");
        let (from_rank, to_rank, wire) = (rank(from), rank(to), members.wire(from, to));
        Self { shared, members, wire, group, from, to, from_rank, to_rank }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// A generator for one end (or one window) of this wire.
    pub(super) fn generator(&self, purpose: u64) -> fastrand::Rng {
        let words = [self.group, self.from as u64, self.to as u64, purpose];
        super::generator(self.settings().seed, &words)
    }

    /// When something that starts now arrives, not before `not_before_ns`, and note it as an
    /// event. 0 where nothing takes time.
    pub(super) fn arrival_ns(&self, not_before_ns: u64, rng: &mut fastrand::Rng) -> u64 {
        if !self.settings().delayed() {
            return 0;
        }
        let delay_ns = self.settings().draw_delay_ns(rng);
        let at_ns = self.shared.timeline.now_ns().saturating_add(delay_ns).max(not_before_ns);
        let at_ns = at_ns.min(NEVER - 1);
        self.shared.timeline.plan(at_ns);
        at_ns
    }

    /// The last moment whose arrivals can be seen: now, or when one of the two was cut off.
    pub(super) fn horizon_ns(&self) -> u64 {
        let cut_ns = self.shared.cut_at_ns(self.from_rank).min(self.shared.cut_at_ns(self.to_rank));
        // Without delays everything arrives at 0, and the clock need not be read.
        if self.settings().delayed() { cut_ns.min(self.shared.timeline.now_ns()) } else { cut_ns }
    }

    /// Why nothing more will come from the sender, if so.
    pub(super) fn sender_gone(&self) -> Option<TransportError> {
        let closed = self.wire.sender_closed.load(Ordering::SeqCst);
        self.gone(self.from, closed)
    }

    /// Why nothing more will be pulled by the receiver, if so.
    pub(super) fn receiver_gone(&self) -> Option<TransportError> {
        let closed = self.wire.receiver_closed.load(Ordering::SeqCst);
        self.gone(self.to, closed)
    }

    /// Whether one of the two is cut off.
    pub(super) fn is_cut(&self) -> bool {
        self.shared.is_cut(self.from_rank) || self.shared.is_cut(self.to_rank)
    }

    fn gone(&self, peer: usize, closed: bool) -> Option<TransportError> {
        let how = match (self.is_cut(), self.members.has_left(peer), closed) {
            (true, ..) => CUT,
            (_, true, _) => LEFT,
            (.., true) => CLOSED,
            _ => return None,
        };
        Some(TransportError::PeerGone { peer, how: how.into() })
    }
}
