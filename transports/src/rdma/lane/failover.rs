//! What becomes of pieces whose queue pair has failed, and of memory that is held for them.

use std::time::Instant;

use brigade_verbs::Status;

use super::{PIECES, Piece, RECALL, State};
use crate::TransportError;
use crate::rdma::exchange::Request;
use crate::rdma::stripe::{Stripe, StripeState};

impl State {
    /// A stripe has failed. What it held waits until the receiver has stopped its end.
    #[cold]
    pub(in crate::rdma) fn fail(&mut self, index: usize, status: Status) {
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
        // A device that does not answer does not read or send either.
        if stripe.end.pair.stop().is_err() {
            stripe.posted = 0;
        }
        if self.stripes.iter().any(Stripe::works) {
            self.hand.ask(Request::Stop { peer: self.peer, stripe: index as u8 });
        } else {
            self.doomed = Some(Instant::now());
        }
    }

    /// The receiver has stopped its end of a stripe: send again what it may not have got.
    #[cold]
    pub(in crate::rdma) fn send_again(&mut self, index: usize) {
        self.look();
        let Some(stripe) = self.stripes.get_mut(index) else { return };
        let StripeState::Failed(status) = stripe.state else { return };
        stripe.state = StripeState::Stopped(status);
        let mut number = self.oldest;
        while number != self.next && self.fault.is_none() {
            let piece = self.pieces[number as usize % PIECES];
            let is_lost = piece.stripe == index && !piece.has_landed && piece.end > self.consumed;
            if is_lost && let Some(other) = self.stripe() {
                if !piece.is_again {
                    self.held.copy(number, self.ring(), piece.offset);
                }
                let again = Piece { stripe: other, is_again: true, ..piece };
                self.pieces[number as usize % PIECES] = again;
                self.post(number);
            }
            number = number.wrapping_add(1);
        }
    }

    /// Let go of all that is held. If there is anything, devices are stopped for it.
    #[cold]
    pub(in crate::rdma) fn recall(&mut self) {
        if self.held_bytes() == 0 {
            return;
        }
        let why = "a call was broken off while its memory was lent".into();
        self.fault.get_or_insert(TransportError::Refused { why });
        for index in 0..self.stripes.len() {
            self.fail(index, Status::FLUSHED);
        }
        let started = Instant::now();
        while !self.is_drained() && started.elapsed() < RECALL {
            self.look();
            std::thread::yield_now();
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
            if piece.has_landed || piece.is_again || piece.end <= self.consumed {
                self.held.let_go(number);
            }
            number = number.wrapping_add(1);
        }
    }
}
