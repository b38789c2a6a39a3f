//! The receiving end of a wire.

use std::sync::atomic::Ordering;

use super::lock;
use super::wire::{Link, Piece};
use crate::{RecvWire, TransportError};

pub(super) struct Receiver {
    link: Link,
    /// The piece being read, and how far.
    piece: Piece,
    read: usize,
    /// The start of an element that was pushed in parts: less than one of the last granule.
    carry: Vec<u8>,
    /// When the last credit is back: the next does not overtake it.
    last_ns: u64,
    rng: fastrand::Rng,
    failed: Option<TransportError>,
}

impl Receiver {
    pub(super) fn new(link: Link) -> Self {
        let rng = link.generator(1);
        let (piece, carry) = (Piece::default(), Vec::new());
        Self { link, piece, read: 0, carry, last_ns: 0, rng, failed: None }
    }

    /// Make sure that a piece is being read. Returns false if none has arrived.
    fn refill(&mut self) -> bool {
        if self.read < self.piece.bytes.len() {
            return true;
        }
        let wire = &self.link.wire;
        if wire.queued_bytes.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let horizon_ns = self.link.horizon_ns();
        let mut queue = lock(&wire.queue);
        if queue.pieces.front().is_none_or(|piece| piece.at_ns > horizon_ns) {
            return false;
        }
        let next = queue.pieces.pop_front().expect("there is a front");
        wire.queued_bytes.fetch_sub(next.bytes.len(), Ordering::SeqCst);
        let emptied = std::mem::replace(&mut self.piece, next);
        if emptied.bytes.capacity() > 0 {
            queue.empty.push(emptied.bytes);
        }
        self.read = 0;
        true
    }

    /// Count `bytes` as read and send their credit back.
    fn consume(&mut self, bytes: usize) {
        self.read += bytes;
        let wire = &self.link.wire;
        if self.link.settings().delayed() {
            self.last_ns = self.link.arrival_ns(self.last_ns, &mut self.rng);
            lock(&wire.queue).credits.push_back((self.last_ns, bytes));
        } else {
            wire.held_bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
        self.link.members.bells[self.link.from].ring();
    }

    /// Hand over arrived bytes, at most `limit`, in slices that are multiples of `granule`.
    fn hand_over(&mut self, limit: usize, granule: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
        let short = self.link.settings().short_pulls;
        let mut handed = 0;
        while handed < limit {
            let rest = limit - handed;
            let length = if self.carry.is_empty() {
                self.hand_over_piece(rest, granule, sink)
            } else {
                self.hand_over_carry(rest, granule, sink)
            };
            handed += length;
            if length == 0 || (short && self.rng.bool()) {
                break;
            }
        }
        handed
    }

    /// Hand over whole elements of the current piece, where they lie. What is left of it is carried
    /// if it is less than an element. Returns how many bytes were handed over.
    fn hand_over_piece(
        &mut self,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> usize {
        if !self.refill() {
            return 0;
        }
        let rest = &self.piece.bytes[self.read..];
        if rest.len() < granule {
            self.carry.extend_from_slice(rest);
            self.consume(rest.len());
            return self.hand_over_carry(limit, granule, sink);
        }
        let mut length = rest.len().min(limit);
        length -= length % granule;
        if self.link.settings().short_pulls {
            length = self.rng.usize(1..=length / granule) * granule;
        }
        sink(&rest[..length]);
        self.consume(length);
        length
    }

    /// Complete the element whose start is carried, as far as its bytes have arrived.
    fn hand_over_carry(
        &mut self,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> usize {
        while self.carry.len() < granule {
            if !self.refill() {
                return 0;
            }
            let rest = &self.piece.bytes[self.read..];
            let length = rest.len().min(granule - self.carry.len());
            self.carry.extend_from_slice(&rest[..length]);
            self.consume(length);
        }
        let mut length = self.carry.len().min(limit);
        length -= length % granule;
        sink(&self.carry[..length]);
        self.carry.drain(..length);
        length
    }

    /// Hand over what has arrived; only if that is nothing, find out whether more can come.
    fn receive(
        &mut self,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        // Asked before the look at the queue: what a sender pushed before it went is then in it.
        let gone = self.link.sender_gone();
        let handed = self.hand_over(limit, granule, sink);
        if handed > 0 || limit == 0 {
            return Ok(handed);
        }
        let Some(error) = gone else { return Ok(0) };
        // Who left in good order left nothing behind; only a cut loses what is on its way.
        if self.link.wire.queued_bytes.load(Ordering::SeqCst) > 0 && !self.link.is_cut() {
            return Ok(0);
        }
        self.failed = Some(error.clone());
        Err(error)
    }
}

impl RecvWire for Receiver {
    fn pull(
        &mut self,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError> {
        assert!(granule > 0 && limit.is_multiple_of(granule), "{limit} bytes by {granule}");
        self.receive(limit, granule, sink)
    }

    fn pull_into(&mut self, target: &mut [u8]) -> Result<usize, TransportError> {
        let mut filled = 0;
        self.receive(target.len(), 1, &mut |slice| {
            target[filled..filled + slice.len()].copy_from_slice(slice);
            filled += slice.len();
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.link.wire.receiver_closed.store(true, Ordering::SeqCst);
        self.link.members.bells[self.link.from].ring();
    }
}
