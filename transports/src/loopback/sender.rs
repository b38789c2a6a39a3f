//! The sending end of a wire.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::lock;
use super::wire::{Lent, Link, Piece};
use super::world::BLOCK_BYTES;
use crate::{Lending, SendWire, TransportError};

/// Up to so many bytes it is cheaper to append to the last piece, under the lock, than to queue
/// another; and many tiny messages then need few buffers.
const APPEND_BYTES_MAX: usize = 4096;

pub(super) struct Sender {
    link: Link,
    /// Empty buffers.
    spare: Vec<Vec<u8>>,
    /// When the last piece arrives: the next does not overtake it.
    last_ns: u64,
    rng: fastrand::Rng,
    failed: Option<TransportError>,
    /// What was taken and not read yet, in order.
    lent: VecDeque<Lent>,
}

impl Sender {
    pub(super) fn new(link: Link) -> Self {
        let rng = link.generator(0);
        let (spare, lent) = (Vec::new(), VecDeque::new());
        Self { link, spare, last_ns: 0, rng, failed: None, lent }
    }

    /// Why nothing can be sent any more, if so.
    fn alive(&mut self) -> Result<(), TransportError> {
        if self.failed.is_none() {
            self.failed = self.link.receiver_gone();
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Take as much as there is room for, and have it accounted for.
    fn take(&mut self, bytes: usize) -> Result<usize, TransportError> {
        self.alive()?;
        let taken = self.admit(bytes);
        self.link.wire.held_bytes.fetch_add(taken, Ordering::SeqCst);
        Ok(taken)
    }

    /// Send what `take` has accounted for.
    fn send(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(self.link.settings().bulk_bytes) {
            self.place(piece);
            self.link.members.bells[self.link.to].ring();
        }
        self.link.shared.left(self.link.from_rank, bytes.len());
    }

    /// Read and send the first `count` of what is lent.
    fn send_lent(&mut self, count: usize) {
        for _ in 0..count {
            let Some(lent) = self.lent.pop_front() else { break };
            self.send(lent.bytes());
        }
    }

    /// How many of `bytes` to take now.
    fn admit(&mut self, bytes: usize) -> usize {
        if self.link.settings().delayed() {
            self.collect_credits();
        }
        let settings = self.link.settings();
        let held = self.link.wire.held_bytes.load(Ordering::SeqCst);
        let room = settings.credit_bytes.checked_sub(held).expect("credit is never overdrawn");
        let mut taken = if bytes <= room { bytes } else { room - room % BLOCK_BYTES };
        if settings.short_pushes && taken > BLOCK_BYTES {
            let blocks = self.rng.usize(1..=taken.div_ceil(BLOCK_BYTES));
            taken = taken.min(blocks * BLOCK_BYTES);
        }
        let taken = self.link.shared.leaves(self.link.from_rank, taken);
        debug_assert!(taken == bytes || taken.is_multiple_of(BLOCK_BYTES));
        taken
    }

    /// Count the credits that are back by now.
    fn collect_credits(&mut self) {
        let now_ns = self.link.shared.timeline.now_ns();
        let mut queue = lock(&self.link.wire.queue);
        while let Some(&(at_ns, bytes)) = queue.credits.front() {
            if at_ns > now_ns {
                break;
            }
            queue.credits.pop_front();
            self.link.wire.held_bytes.fetch_sub(bytes, Ordering::SeqCst);
        }
    }

    /// Queue one piece.
    fn place(&mut self, bytes: &[u8]) {
        let wire = &self.link.wire;
        let delayed = self.link.settings().delayed();
        if !delayed && bytes.len() <= APPEND_BYTES_MAX {
            let mut queue = lock(&wire.queue);
            let bulk_bytes = self.link.settings().bulk_bytes;
            if let Some(last) = queue.pieces.back_mut()
                && last.bytes.len() + bytes.len() <= bulk_bytes
            {
                last.bytes.extend_from_slice(bytes);
                wire.queued_bytes.fetch_add(bytes.len(), Ordering::SeqCst);
                return;
            }
        }
        if self.spare.is_empty() {
            std::mem::swap(&mut self.spare, &mut lock(&wire.queue).empty);
        }
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        self.last_ns = self.link.arrival_ns(self.last_ns, &mut self.rng);
        let mut queue = lock(&wire.queue);
        queue.pieces.push_back(Piece { bytes: buffer, at_ns: self.last_ns });
        wire.queued_bytes.fetch_add(bytes.len(), Ordering::SeqCst);
    }
}

impl SendWire for Sender {
    fn push(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        let taken = self.take(bytes.len())?;
        if taken > 0 {
            self.send_lent(self.lent.len());
            self.send(&bytes[..taken]);
        }
        Ok(taken)
    }

    unsafe fn lend(&mut self, bytes: &[u8]) -> Result<Lending, TransportError> {
        if !self.link.settings().late_sends {
            return Ok(Lending { taken: self.push(bytes)?, is_held: false });
        }
        let taken = self.take(bytes.len())?;
        if taken > 0 {
            // SAFETY: the caller leaves the bytes alone until we count them no more.
            self.lent.push_back(unsafe { Lent::new(&bytes[..taken]) });
        }
        Ok(Lending { taken, is_held: !self.lent.is_empty() })
    }

    fn held(&mut self) -> Result<usize, TransportError> {
        self.alive()?;
        let count = self.rng.usize(..=self.lent.len());
        self.send_lent(count);
        if !self.lent.is_empty() {
            // Whoever sleeps now would not ask again.
            self.link.members.bells[self.link.from].ring();
        }
        Ok(self.lent.iter().map(|lent| lent.bytes().len()).sum())
    }

    fn recall(&mut self) {
        if !self.lent.is_empty() {
            let why = "a call was broken off while its memory was lent".into();
            self.failed.get_or_insert(TransportError::Refused { why });
            self.lent.clear();
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.link.wire.sender_closed.store(true, Ordering::SeqCst);
        self.link.members.bells[self.link.to].ring();
    }
}
