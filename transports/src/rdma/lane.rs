//! The sending end of a wire: what is on its way, and what becomes of it.
//!
//! Bytes are copied into a ring of registered memory and written from there to the same place of
//! the receiver's ring, in pieces. A piece stays in the ring until the receiver has said that it
//! has consumed it, so it can be sent again. Long pieces of memory that the caller lends are not
//! copied: the device reads them where they lie, and they are held until it has. The receiver's
//! word comes as a number: the lines of 64 bytes that it has consumed so far, modulo 2^32.
//!
//! A lane is used by the thread that pushes, and by the exchange's thread, which looks for failed
//! queue pairs and sends again what they may have lost. Hence the lock, which nobody else wants
//! unless something fails.

mod failover;
mod held;
mod look;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_verbs::{Memory, Remote, Status};

use self::held::Held;
use super::hand::Hand;
use super::limits::{LINE_BYTES, PIECES, SENDS, piece_bytes};
use super::local::Local;
use super::stripe::Stripe;
use crate::TransportError;

pub(super) use self::held::{Lendable, Source};

/// After how many requests we look what came of them.
const LOOK_EVERY: u32 = 32;
/// What was thrown away may come out of a queue before what failed: how long we wait for that.
const CAUSE: Duration = Duration::from_millis(300);
/// Shorter pieces are copied: finding their registration takes about as long.
const LEND_BYTES: usize = 16 << 10;
/// How long devices may take to let go of what is recalled.
const RECALL: Duration = Duration::from_secs(1);
/// How many completions are taken at a time.
const BATCH: usize = 16;

/// A piece of the stream that lies in the ring.
#[derive(Clone, Copy, Default)]
struct Piece {
    offset: usize,
    bytes: usize,
    /// How much was taken before it.
    start: u64,
    /// Where the next one begins, in the stream.
    end: u64,
    stripe: usize,
    has_landed: bool,
    /// It was sent more than once, so a copy of it may still be on its way when it is consumed.
    is_again: bool,
}

/// The sending end, shared with the exchange.
pub(super) struct Lane {
    state: Mutex<State>,
    /// Whether anything was posted since the exchange last found everything landed.
    pub(super) is_busy: AtomicBool,
}

impl Lane {
    /// `has_lent` is set while memory is held, so that what becomes of it rings the bell.
    pub(super) fn new(
        local: Arc<Local>,
        peer: usize,
        ring_bytes: usize,
        stripes: Vec<Stripe>,
        hand: Hand,
        has_lent: Arc<AtomicBool>,
    ) -> Lane {
        assert!(!stripes.is_empty() && ring_bytes.is_multiple_of(LINE_BYTES));
        let state = State {
            local,
            peer,
            hand,
            ring_bytes,
            piece_bytes: piece_bytes(ring_bytes),
            stripes,
            turn: 0,
            pieces: [Piece::default(); PIECES],
            oldest: 0,
            next: 0,
            held: Held::nothing(),
            held_from: 0,
            has_lent,
            taken: 0,
            tail: 0,
            freed: 0,
            consumed: 0,
            doomed: None,
            fault: None,
        };
        Lane { state: Mutex::new(state), is_busy: AtomicBool::new(false) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Look after what is on its way, unless the pushing thread is at it. Returns whether all has
    /// landed, or nothing will any more.
    pub(super) fn tend(&self) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        state.look();
        state.break_silence();
        let is_settled = state.fault.is_some() || state.all_landed();
        // What has arrived may still be lent, until its device says that it is done with it.
        if is_settled && state.stripes.iter().all(|stripe| stripe.posted == 0) {
            self.is_busy.store(false, Ordering::Relaxed);
        }
        is_settled
    }
}

/// What the lock guards.
pub(super) struct State {
    local: Arc<Local>,
    peer: usize,
    hand: Hand,
    ring_bytes: usize,
    piece_bytes: usize,
    stripes: Vec<Stripe>,
    /// Which stripe is next.
    turn: usize,
    /// Those from `oldest` up to `next`, each at its number modulo their count.
    pieces: [Piece; PIECES],
    oldest: u32,
    next: u32,
    held: Held,
    /// None before this one is held.
    held_from: u32,
    has_lent: Arc<AtomicBool>,
    /// Bytes taken from the caller.
    taken: u64,
    /// Bytes of the stream, in whole lines: sent, free to be overwritten, and consumed.
    tail: u64,
    freed: u64,
    consumed: u64,
    /// Since when nothing has landed because no stripe works.
    doomed: Option<Instant>,
    fault: Option<TransportError>,
}

impl State {
    /// Send as many bytes of `source` as there is room for.
    pub(super) fn push(&mut self, source: Source<'_>) -> Result<usize, TransportError> {
        let mut taken = 0;
        let mut has_looked = false;
        while taken < source.bytes().len() {
            if let Some(fault) = &self.fault {
                return if taken > 0 { Ok(taken) } else { Err(fault.clone()) };
            }
            let count = self.room(source.bytes().len() - taken);
            let stripe = if count > 0 { self.stripe() } else { None };
            if let Some(stripe) = stripe {
                self.send(stripe, source.part(taken, count));
                taken += count;
            } else if has_looked {
                break;
            } else {
                self.look();
                has_looked = true;
            }
        }
        Ok(taken)
    }

    /// How many pieces were sent, modulo 2^32.
    pub(super) fn sent(&self) -> u32 {
        self.next
    }

    /// What is set while memory is held.
    pub(super) fn has_lent(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.has_lent)
    }

    /// How many of `wanted` bytes may be sent as one piece now: all, or a multiple of the line.
    fn room(&self, wanted: usize) -> usize {
        if self.next.wrapping_sub(self.oldest) as usize == PIECES {
            return 0;
        }
        let free = self.ring_bytes - (self.tail - self.freed) as usize;
        let until_end = self.ring_bytes - self.offset();
        wanted.min(free).min(until_end).min(self.piece_bytes)
    }

    fn offset(&self) -> usize {
        (self.tail % self.ring_bytes as u64) as usize
    }

    /// The stripe for the next piece: they take turns.
    fn stripe(&mut self) -> Option<usize> {
        let count = self.stripes.len();
        let mut turns = (self.turn..self.turn + count).map(|turn| turn % count);
        let has_room = |index: &usize| {
            let stripe = &self.stripes[*index];
            stripe.works() && stripe.posted < SENDS
        };
        let stripe = turns.find(has_room)?;
        self.turn = stripe + 1;
        Some(stripe)
    }

    fn send(&mut self, stripe: usize, source: Source<'_>) {
        let (number, offset, start) = (self.next, self.offset(), self.taken);
        let bytes = source.bytes().len();
        if !self.hold(number, stripe, source) {
            self.ring().write(offset, source.bytes());
        }
        self.taken += bytes as u64;
        self.tail += bytes.next_multiple_of(LINE_BYTES) as u64;
        self.next = self.next.wrapping_add(1);
        let (end, has_landed, is_again) = (self.tail, false, false);
        let piece = Piece { offset, bytes, start, end, stripe, has_landed, is_again };
        self.pieces[number as usize % PIECES] = piece;
        self.post(number);
        if self.stripes[stripe].posted >= LOOK_EVERY {
            self.look();
        }
    }

    /// Leave a piece where it lies, if it was lent and a device can read it there.
    fn hold(&mut self, number: u32, stripe: usize, source: Source<'_>) -> bool {
        let Source::Lent(lendable) = source else { return false };
        let bytes = source.bytes();
        if bytes.len() < LEND_BYTES {
            return false;
        }
        let domain = self.stripes[stripe].end.domain(&self.local);
        let start = bytes.as_ptr().addr();
        let Some(lent) = self.local.cache.region(domain, start, bytes.len()) else { return false };
        if self.held_bytes() == 0 {
            self.held_from = number;
        }
        self.held.hold(number, lent, lendable);
        self.has_lent.store(true, Ordering::Relaxed);
        true
    }

    fn ring(&self) -> &Memory {
        self.stripes[0].source.memory()
    }

    /// Write a piece to the receiver, over the stripe that it names.
    fn post(&mut self, number: u32) {
        let Piece { offset, bytes, stripe: index, is_again, .. } =
            self.pieces[number as usize % PIECES];
        let stripe = &mut self.stripes[index];
        let Remote { address, key } = stripe.target;
        let remote = Remote { address: address + offset as u64, key };
        let from = match self.held.place(number).filter(|_| !is_again) {
            Some((region, place)) => (&**region, place, bytes),
            None => (&*stripe.source, offset, bytes),
        };
        match stripe.end.pair.post_write(number.into(), from, remote, Some(number)) {
            Ok(()) => stripe.posted += 1,
            // What the stripe holds, this piece included, is sent again over another one.
            Err(_) => self.fail(index, Status::REFUSED),
        }
    }

    fn all_landed(&self) -> bool {
        let mut number = self.oldest;
        while number != self.next {
            let piece = &self.pieces[number as usize % PIECES];
            if !piece.has_landed && piece.end > self.consumed {
                return false;
            }
            number = number.wrapping_add(1);
        }
        true
    }
}
