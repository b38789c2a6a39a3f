//! What becomes of pieces whose queue pair has failed, and of memory that is held for them.
//!
//! A stripe that has failed is stopped at both ends, and its pieces are sent again over others that
//! work. Meanwhile the exchange tries to replace its queue pair; when none works, the wire waits
//! for that, so long and no longer. A new one counts as good once something has landed over it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_verbs::{Access, MemoryRegion, Remote, Status};

use super::{CAUSE, Piece, RECALL, State};
use crate::TransportError;
use crate::rdma::card::Address;
use crate::rdma::failed;
use crate::rdma::frame::{AcceptedStripe, Turn};
use crate::rdma::hand::Request;
use crate::rdma::limits::PIECES;
use crate::rdma::path::End;
use crate::rdma::silence;
use crate::rdma::stripe::{Stripe, StripeState, blame};

/// After the first attempt to replace a queue pair we rest so long, and after each of the next ones
/// twice as long, up to one of these.
const REST: Duration = Duration::from_millis(100);
const REST_MAX: Duration = Duration::from_secs(60);
const REST_MAX_ALONE: Duration = Duration::from_millis(500);

impl State {
    /// A stripe has failed. What it held waits until the receiver has stopped its end.
    #[cold]
    pub(in crate::rdma) fn fail(&mut self, index: usize, status: Status) {
        let Some(stripe) = self.stripes.get_mut(index) else { return };
        match &mut stripe.state {
            StripeState::Failed(known) | StripeState::Stopped(known) => {
                if *known == Status::FLUSHED && status != Status::FLUSHED {
                    *known = status;
                    stripe.learn(&self.local, self.peer);
                }
                return;
            }
            state => *state = StripeState::Failed(status),
        }
        // One that does not take this in is made to: nothing goes on without its queue pair.
        if stripe.end.pair.stop().is_err() {
            stripe.end.pair.destroy();
            stripe.posted = 0;
        }
        stripe.learn(&self.local, self.peer);
        self.hand.ask(Request::Stop { peer: self.peer, turn: stripe.turn(index) });
        if !self.stripes.iter().any(Stripe::works) {
            self.doomed.get_or_insert_with(Instant::now);
        }
    }

    /// A stripe that forgets what it was asked for has failed.
    #[cold]
    pub(super) fn break_silence(&mut self) {
        let Some(limit) = silence::limit(&self.local.settings) else { return };
        let now = Instant::now();
        for index in 0..self.stripes.len() {
            let stripe = &mut self.stripes[index];
            let counts = (stripe.posted, stripe.completed);
            if stripe.works() && stripe.silence.is_too_long(counts, now, limit) {
                self.fail(index, Status::SILENT);
            }
        }
    }

    /// A stripe of this name has failed at the other end.
    #[cold]
    pub(in crate::rdma) fn fail_there(&mut self, turn: Turn) {
        let index = usize::from(turn.stripe);
        if self.stripes.get(index).is_some_and(|stripe| stripe.turn == turn.turn) {
            self.fail(index, Status::BROKEN_AT_PEER);
        }
    }

    /// The receiver has stopped its end of a stripe: send again what it may not have got. Returns
    /// whether the stripe was one that waited for this.
    #[cold]
    pub(in crate::rdma) fn stopped(&mut self, turn: Turn) -> bool {
        self.look();
        let Some(stripe) = self.stripes.get_mut(usize::from(turn.stripe)) else { return false };
        let StripeState::Failed(status) = stripe.state else { return false };
        if stripe.turn != turn.turn {
            return false;
        }
        stripe.state = StripeState::Stopped(status);
        let lost = self.lost();
        self.send_again(&lost);
        true
    }

    /// The pieces that went over stripes that are stopped, and may not have arrived.
    fn lost(&mut self) -> Vec<u32> {
        let mut lost = Vec::new();
        let mut number = self.oldest;
        while number != self.next {
            let piece = &mut self.pieces[number as usize % PIECES];
            let is_stopped = matches!(self.stripes[piece.stripe].state, StripeState::Stopped(_));
            if is_stopped && piece.end <= self.consumed {
                // No copy of it is on its way any more.
                piece.has_landed = true;
            } else if is_stopped && !piece.has_landed {
                lost.push(number);
            }
            number = number.wrapping_add(1);
        }
        lost
    }

    /// Send pieces again, if any stripe works.
    fn send_again(&mut self, lost: &[u32]) {
        for &number in lost {
            if let Some(other) = self.stripe() {
                let piece = self.pieces[number as usize % PIECES];
                if !piece.is_again {
                    self.held.copy(number, self.ring(), piece.offset);
                }
                let again = Piece { stripe: other, is_again: true, ..piece };
                self.pieces[number as usize % PIECES] = again;
                self.post(number);
            }
        }
    }

    /// How long to rest before a stripe's queue pair is tried to be replaced; `None` when there is
    /// nothing to be gained from that.
    #[cold]
    pub(in crate::rdma) fn rest(&mut self, index: usize) -> Option<Duration> {
        self.look();
        let stripe = &self.stripes[index];
        let is_stopped = matches!(stripe.state, StripeState::Stopped(_));
        let patience = self.local.settings.reconnect;
        if self.fault.is_some() || !is_stopped || !stripe.is_mendable() || patience.is_zero() {
            return None;
        }
        // While others work, pieces that go over a bad one wait for nothing.
        let most = if self.stripes.iter().any(Stripe::works) { REST_MAX } else { REST_MAX_ALONE };
        let Some(before) = stripe.attempts().checked_sub(1) else { return Some(Duration::ZERO) };
        Some((REST * (1 << before.min(16))).min(most))
    }

    /// Count an attempt to replace a stripe's queue pair; its turn, and how many there were.
    #[cold]
    pub(in crate::rdma) fn attempt(&mut self, index: usize) -> (Turn, usize) {
        let stripe = &mut self.stripes[index];
        // Some devices notice late that their port is down.
        stripe.learn(&self.local, self.peer);
        stripe.attempt();
        (stripe.turn(index), stripe.attempts() as usize)
    }

    /// An attempt came to nothing.
    #[cold]
    pub(in crate::rdma) fn tried(&mut self, index: usize, why: String) {
        self.stripes[index].tried(why);
    }

    /// Send over a new queue pair in the place of one that is stopped.
    ///
    /// # Errors
    ///
    /// When its device cannot have the ring.
    #[cold]
    pub(in crate::rdma) fn mend(
        &mut self,
        index: usize,
        (end, theirs): (End, Address),
        accepted: &AcceptedStripe,
    ) -> Result<(), TransportError> {
        self.look();
        let domain = end.domain(&self.local);
        let known = self.stripes.iter().find(|it| Arc::ptr_eq(it.end.domain(&self.local), domain));
        let source = match known {
            Some(stripe) => Arc::clone(&stripe.source),
            None => {
                let memory = self.stripes[0].source.memory();
                Arc::new(MemoryRegion::new(domain, memory, Access::Local).map_err(failed)?)
            }
        };
        let lost = self.lost();
        let before = &mut self.stripes[index];
        let target = Remote { address: before.target.address, key: accepted.key };
        let (turn, trouble) = (before.turn, before.trouble.take());
        // With the queue pair that goes, its device lets go of all that it worked on.
        *before = Stripe { turn, trouble, ..Stripe::new(end, source, target, theirs) };
        if self.all_landed() {
            // There is nothing that might prove it, and nobody who waits.
            self.recover(index);
        }
        self.send_again(&lost);
        self.let_go_of_what_failed();
        Ok(())
    }

    /// Something has landed over a stripe that has been in trouble.
    #[cold]
    pub(super) fn recover(&mut self, index: usize) {
        if self.stripes[index].works() {
            self.stripes[index].trouble = None;
            self.doomed = None;
        }
    }

    /// Whether to give up, since no stripe works: the time to replace one is over, or there is
    /// nothing to be gained from that.
    #[cold]
    pub(super) fn judge(&mut self, since: Instant) {
        let (works, patience) = (Stripe::works, self.local.settings.reconnect);
        let may_mend = !patience.is_zero() && self.stripes.iter().any(Stripe::is_mendable);
        if self.stripes.iter().any(works) || may_mend && since.elapsed() <= patience {
            return;
        }
        let (fault, is_known) = blame(&mut self.stripes, &self.local, self.peer);
        if is_known || since.elapsed() > CAUSE {
            self.hand.ask(Request::Lost { peer: self.peer, why: fault.to_string() });
            self.fault = Some(fault);
        }
    }

    /// Let go of all that is held. If there is anything, devices are stopped for it.
    #[cold]
    pub(in crate::rdma) fn recall(&mut self) {
        if self.held_bytes() == 0 {
            return;
        }
        if self.fault.is_none() {
            let why = String::from("a call was broken off while its memory was lent");
            self.hand.ask(Request::Lost { peer: self.peer, why: why.clone() });
            self.fault = Some(TransportError::Refused { why });
        }
        for index in 0..self.stripes.len() {
            self.fail(index, Status::FLUSHED);
        }
        let started = Instant::now();
        while !self.is_drained() && started.elapsed() < RECALL {
            self.look();
            std::thread::yield_now();
        }
        // One that does not say so works on what it holds until its queue pair is no more.
        for stripe in self.stripes.iter_mut().filter(|stripe| stripe.posted > 0) {
            stripe.end.pair.destroy();
            stripe.posted = 0;
        }
        self.held.let_all_go();
    }

    /// Whether no device that has failed still works on anything.
    pub(super) fn is_drained(&self) -> bool {
        self.stripes.iter().all(|stripe| stripe.works() || stripe.posted == 0)
    }

    /// Once a device that failed works on nothing any more, what it held is needed no longer if it
    /// has arrived nevertheless, or is sent again from the ring.
    #[cold]
    pub(super) fn let_go_of_what_failed(&mut self) {
        let mut number = self.oldest;
        while number != self.next && self.is_drained() {
            let piece = &self.pieces[number as usize % PIECES];
            // A device that works may still be waiting to hear that it has arrived, and would read
            // it again.
            let has_failed = !self.stripes[piece.stripe].works();
            let is_read = has_failed && piece.end <= self.consumed;
            if piece.has_landed || piece.is_again || is_read {
                self.held.let_go(number);
            }
            number = number.wrapping_add(1);
        }
    }
}
