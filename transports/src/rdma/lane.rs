//! The sending end of a wire: what is on its way, and what becomes of it.
//!
//! Bytes are copied into a ring of registered memory and written from there to the same place of
//! the receiver's ring, in pieces. A piece stays in the ring until the receiver has said that it
//! has consumed it, so it can be sent again. The receiver's word comes as a number: the lines of 64
//! bytes that it has consumed so far, modulo 2^32.
//!
//! A lane is used by the thread that pushes, and by the exchange's thread, which looks for failed
//! queue pairs and sends again what they may have lost. Hence the lock, which nobody else wants
//! unless something fails.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_verbs::{Completion, Remote, Status};

use super::exchange::{Hand, Request};
use super::port::Local;
use super::stripe::{Stripe, StripeState, blame};
use super::wire::LINE_BYTES;
use crate::TransportError;

/// The most pieces that the receiver has not consumed yet.
pub(super) const PIECES: usize = 64;
/// Room for what we post on a queue pair: twice as much, since pieces may be sent again.
pub(super) const SENDS: u32 = 2 * PIECES as u32;
/// Room for the receiver's words: it sends one for every quarter of the ring or of the pieces.
pub(super) const CREDITS: u32 = 16;
/// After how many requests we look what came of them.
const LOOK_EVERY: u32 = 32;
/// What was thrown away may come out of a queue before what failed: how long we wait for that.
const CAUSE: Duration = Duration::from_millis(300);
/// How many completions are taken at a time.
const BATCH: usize = 16;

/// The longest piece in a ring of this length.
pub(super) fn piece_bytes(ring_bytes: usize) -> usize {
    (ring_bytes / 8).clamp(4 << 10, 128 << 10)
}

/// A piece of the stream that lies in the ring.
#[derive(Clone, Copy, Default)]
struct Piece {
    offset: usize,
    bytes: usize,
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
    pub(super) fn new(
        local: Arc<Local>,
        peer: usize,
        ring_bytes: usize,
        stripes: Vec<Stripe>,
        hand: Hand,
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
        let is_settled = state.fault.is_some() || state.all_landed();
        if is_settled {
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
    /// Bytes of the stream, in whole lines: sent, free to be overwritten, and consumed.
    tail: u64,
    freed: u64,
    consumed: u64,
    /// Since when no stripe works.
    doomed: Option<Instant>,
    fault: Option<TransportError>,
}

impl State {
    /// Send as many of `bytes` as there is room for.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        let mut taken = 0;
        let mut has_looked = false;
        while taken < bytes.len() {
            if let Some(fault) = &self.fault {
                return if taken > 0 { Ok(taken) } else { Err(fault.clone()) };
            }
            let count = self.room(bytes.len() - taken);
            let stripe = if count > 0 { self.stripe() } else { None };
            if let Some(stripe) = stripe {
                self.send(stripe, &bytes[taken..taken + count]);
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

    fn send(&mut self, stripe: usize, bytes: &[u8]) {
        let (number, offset) = (self.next, self.offset());
        self.stripes[0].source.memory().write(offset, bytes);
        self.tail += bytes.len().next_multiple_of(LINE_BYTES) as u64;
        self.next = self.next.wrapping_add(1);
        let (bytes, end) = (bytes.len(), self.tail);
        let piece = Piece { offset, bytes, end, stripe, has_landed: false, is_again: false };
        self.pieces[number as usize % PIECES] = piece;
        self.post(number);
        if self.stripes[stripe].posted >= LOOK_EVERY {
            self.look();
        }
    }

    /// Write a piece to the receiver, over the stripe that it names.
    fn post(&mut self, number: u32) {
        let Piece { offset, bytes, stripe: index, .. } = self.pieces[number as usize % PIECES];
        let stripe = &mut self.stripes[index];
        let Remote { address, key } = stripe.target;
        let remote = Remote { address: address + offset as u64, key };
        let from = (&*stripe.source, offset, bytes);
        match stripe.end.pair.post_write(number.into(), from, remote, Some(number)) {
            Ok(()) => stripe.posted += 1,
            // What the stripe holds, this piece included, is sent again over another one.
            Err(_) => self.fail(index, Status::REFUSED),
        }
    }

    /// Take completions: what has landed, what has been consumed, what has failed.
    pub(super) fn look(&mut self) {
        for index in 0..self.stripes.len() {
            self.look_at_sends(index);
            self.look_at_credits(index);
        }
        while self.oldest != self.next {
            let piece = &self.pieces[self.oldest as usize % PIECES];
            if piece.end > self.consumed || (piece.is_again && !piece.has_landed) {
                break;
            }
            self.freed = piece.end;
            self.oldest = self.oldest.wrapping_add(1);
        }
        if let Some(since) = self.doomed
            && self.fault.is_none()
        {
            let (fault, status) = blame(&self.stripes, &self.local, self.peer);
            if status != Status::FLUSHED || since.elapsed() > CAUSE {
                self.fault = Some(fault);
            }
        }
    }

    fn look_at_sends(&mut self, index: usize) {
        let mut batch = [Completion::default(); BATCH];
        loop {
            let Ok(count) = self.stripes[index].end.sends.poll(&mut batch) else {
                return self.fail(index, Status::DEVICE_FAILED);
            };
            for completion in &batch[..count] {
                let stripe = &mut self.stripes[index];
                stripe.posted = stripe.posted.saturating_sub(1);
                if completion.status().is_success() {
                    let number = completion.id() as u32;
                    if number.wrapping_sub(self.oldest) < self.next.wrapping_sub(self.oldest) {
                        self.pieces[number as usize % PIECES].has_landed = true;
                    }
                } else {
                    self.fail(index, completion.status());
                }
            }
            if count < BATCH {
                return;
            }
        }
    }

    fn look_at_credits(&mut self, index: usize) {
        let mut batch = [Completion::default(); BATCH];
        loop {
            let Ok(count) = self.stripes[index].end.arrivals.poll(&mut batch) else {
                return self.fail(index, Status::DEVICE_FAILED);
            };
            for completion in &batch[..count] {
                if !completion.status().is_success() {
                    self.fail(index, completion.status());
                    continue;
                }
                if let Some(lines) = completion.immediate() {
                    self.credit(lines);
                }
                let stripe = &self.stripes[index];
                if stripe.works() && stripe.end.pair.post_receive(0).is_err() {
                    self.fail(index, Status::REFUSED);
                }
            }
            if count < BATCH {
                return;
            }
        }
    }

    /// The receiver has consumed so many lines in all, modulo 2^32. Words may overtake each other,
    /// so one that says less, or more than was sent, says nothing.
    fn credit(&mut self, lines: u32) {
        let known = (self.consumed / LINE_BYTES as u64) as u32;
        let more = u64::from(lines.wrapping_sub(known)) * LINE_BYTES as u64;
        if more <= self.tail - self.consumed {
            self.consumed += more;
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

    /// A stripe has failed. What it held waits until the receiver has stopped its end.
    #[cold]
    pub(super) fn fail(&mut self, index: usize, status: Status) {
        let Some(stripe) = self.stripes.get_mut(index) else { return };
        match &mut stripe.state {
            StripeState::Failed(known) | StripeState::Stopped(known) => {
                if *known == Status::FLUSHED {
                    *known = status;
                }
                return;
            }
            state => *state = StripeState::Failed(status),
        }
        // A device that does not answer does not send either.
        let _stopped = stripe.end.pair.stop();
        if self.stripes.iter().any(Stripe::works) {
            self.hand.ask(Request::Stop { peer: self.peer, stripe: index as u8 });
        } else {
            self.doomed = Some(Instant::now());
        }
    }

    /// The receiver has stopped its end of a stripe: send again what it may not have got.
    #[cold]
    pub(super) fn send_again(&mut self, index: usize) {
        self.look();
        let Some(stripe) = self.stripes.get_mut(index) else { return };
        let StripeState::Failed(status) = stripe.state else { return };
        stripe.state = StripeState::Stopped(status);
        let mut number = self.oldest;
        while number != self.next && self.fault.is_none() {
            let piece = self.pieces[number as usize % PIECES];
            let is_lost = piece.stripe == index && !piece.has_landed && piece.end > self.consumed;
            if is_lost && let Some(other) = self.stripe() {
                let again = Piece { stripe: other, is_again: true, ..piece };
                self.pieces[number as usize % PIECES] = again;
                self.post(number);
            }
            number = number.wrapping_add(1);
        }
    }
}
