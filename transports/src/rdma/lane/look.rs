//! Completions: what has landed, what has been consumed, what has failed.

use std::sync::atomic::Ordering;

use brigade_verbs::{Completion, Status};

use super::{BATCH, State};
use crate::TransportError;
use crate::rdma::limits::{LINE_BYTES, PIECES};
use crate::rdma::stripe::Stripe;

impl State {
    /// Take completions: what has landed, what has been consumed, what has failed.
    pub(in crate::rdma) fn look(&mut self) {
        for index in 0..self.stripes.len() {
            self.look_at_sends(index);
            self.look_at_credits(index);
        }
        if !self.stripes.iter().all(Stripe::works) {
            self.let_go_of_what_failed();
        }
        while self.oldest != self.next {
            let piece = &self.pieces[self.oldest as usize % PIECES];
            let is_held = self.held.holds(self.oldest);
            if piece.end > self.consumed || (piece.is_again && !piece.has_landed) || is_held {
                break;
            }
            self.freed = piece.end;
            self.oldest = self.oldest.wrapping_add(1);
        }
        if let Some(since) = self.doomed
            && self.fault.is_none()
        {
            self.judge(since);
        }
    }

    pub(super) fn look_at_sends(&mut self, index: usize) {
        let mut batch = [Completion::default(); BATCH];
        loop {
            let Ok(count) = self.stripes[index].end.sends.poll(&mut batch) else {
                return self.fail(index, Status::DEVICE_FAILED);
            };
            for completion in &batch[..count] {
                let stripe = &mut self.stripes[index];
                stripe.posted = stripe.posted.saturating_sub(1);
                stripe.completed = stripe.completed.wrapping_add(1);
                if completion.status().is_success() {
                    if stripe.trouble.is_some() {
                        self.recover(index);
                    }
                    let number = completion.id() as u32;
                    if number.wrapping_sub(self.oldest) < self.next.wrapping_sub(self.oldest) {
                        let piece = &mut self.pieces[number as usize % PIECES];
                        piece.has_landed = true;
                        // Where it was sent again, the first device may still be at it.
                        if !piece.is_again {
                            self.held.let_go(number);
                        }
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

    pub(super) fn look_at_credits(&mut self, index: usize) {
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
    pub(super) fn credit(&mut self, lines: u32) {
        let known = (self.consumed / LINE_BYTES as u64) as u32;
        let more = u64::from(lines.wrapping_sub(known)) * LINE_BYTES as u64;
        if more <= self.tail - self.consumed {
            self.consumed += more;
        }
    }

    /// How many of the bytes taken last begin with one that is held.
    pub(in crate::rdma) fn held(&mut self) -> Result<usize, TransportError> {
        if self.held_bytes() > 0 {
            self.look();
        }
        let bytes = self.held_bytes();
        match &self.fault {
            Some(fault) if bytes > 0 => Err(fault.clone()),
            _ => Ok(bytes),
        }
    }

    pub(in crate::rdma) fn held_bytes(&mut self) -> usize {
        self.held_from = not_before(self.oldest, self.next, self.held_from);
        while self.held_from != self.next && !self.held.holds(self.held_from) {
            self.held_from = self.held_from.wrapping_add(1);
        }
        if self.held_from == self.next {
            self.has_lent.store(false, Ordering::Relaxed);
            return 0;
        }
        (self.taken - self.pieces[self.held_from as usize % PIECES].start) as usize
    }
}

/// Where to look on from `number` for what is held. What is held is not freed, so nothing before
/// the oldest piece is, however many have gone by since somebody looked.
fn not_before(oldest: u32, next: u32, number: u32) -> u32 {
    let is_on_its_way = number.wrapping_sub(oldest) <= next.wrapping_sub(oldest);
    if is_on_its_way { number } else { oldest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_went_by_since_somebody_looked_no_more_is_looked_at_than_is_on_its_way() {
        for oldest in [0, 5, u32::MAX - 3, 1 << 31] {
            for sent in [0, 1, PIECES as u32] {
                let next = oldest.wrapping_add(sent);
                for seen in (0..=sent).map(|ahead| oldest.wrapping_add(ahead)) {
                    assert_eq!(not_before(oldest, next, seen), seen);
                }
                for behind in [1, 64, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, 3 << 30] {
                    assert_eq!(not_before(oldest, next, oldest.wrapping_sub(behind)), oldest);
                }
            }
        }
    }
}
