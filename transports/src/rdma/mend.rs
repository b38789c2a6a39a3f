//! Replacing queue pairs that have failed: the sending end's part.
//!
//! ```text
//! sender                                   receiver
//!   Stop(turn)       ------------------->    stops its end: nothing lands any more
//!                    <-------------------  Stopped(turn)
//!   sends again over what works
//!   Replace(turn + 1, its half)  ------->    makes and connects a new end
//!                    <-------------------  Replaced(turn + 1, its half, key)    or Kept(why)
//!   connects, sends again what is left
//!   Linked(turn + 1)  ------------------>    says again what it has consumed
//! ```
//!
//! Each attempt has a turn of its own, so words about an earlier one are told apart. Attempts go
//! round the devices, with growing rests. The lane says how long to rest, and when to give up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::frame::{AcceptedStripe, Frame, Turn};
use super::lane::Lane;
use super::shared::Shared;
use super::stripe::Prepared;

/// How long the peer may take to answer an offer.
const ANSWER: Duration = Duration::from_secs(3);

/// The stripes whose queue pairs are to be replaced.
#[derive(Default)]
pub(super) struct Mender(Vec<Case>);

struct Case {
    peer: usize,
    lane: Arc<Lane>,
    stripe: usize,
    /// Our end of the queue pair that was offered, and how it is called.
    offered: Option<(Turn, Prepared)>,
    /// Since when it rests, or waits for an answer.
    since: Instant,
}

impl Case {
    /// An attempt came to nothing.
    fn fail(&mut self, why: String) {
        self.lane.lock().tried(self.stripe, why);
        (self.offered, self.since) = (None, Instant::now());
    }

    /// Offer a queue pair, if one can be had. The first attempt is over the same devices.
    fn offer(&mut self, shared: &Shared) -> Option<(usize, Frame)> {
        let mut lane = self.lane.lock();
        let ((turn, attempts), has_lent) = (lane.attempt(self.stripe), lane.has_lent());
        drop(lane);
        let turns = self.stripe + attempts - 1;
        match Prepared::new(shared, shared.peer(self.peer), &has_lent, turns) {
            Ok(prepared) => {
                let frame = Frame::Replace(turn, prepared.offered);
                (self.offered, self.since) = (Some((turn, prepared)), Instant::now());
                Some((self.peer, frame))
            }
            Err(error) => {
                self.fail(error.to_string());
                None
            }
        }
    }

    fn has_offered(&self, peer: usize, turn: Turn) -> bool {
        self.peer == peer && self.offered.as_ref().is_some_and(|(known, _)| *known == turn)
    }
}

impl Mender {
    /// Replace this stripe's queue pair, which is stopped at both ends.
    pub(super) fn begin(&mut self, peer: usize, lane: Arc<Lane>, stripe: usize) {
        self.0.push(Case { peer, lane, stripe, offered: None, since: Instant::now() });
    }

    /// Whether there is nothing to replace.
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    /// What to say to whom now.
    pub(super) fn tick(&mut self, shared: &Shared) -> Vec<(usize, Frame)> {
        let mut frames = Vec::new();
        self.0.retain_mut(|case| {
            if shared.gone(case.peer).is_some() {
                return false;
            }
            if case.offered.is_some() {
                if case.since.elapsed() > ANSWER {
                    case.fail(format!("member {} did not answer", case.peer));
                }
                return true;
            }
            let Some(rest) = case.lane.lock().rest(case.stripe) else { return false };
            if case.since.elapsed() >= rest {
                frames.extend(case.offer(shared));
            }
            true
        });
        frames
    }

    /// A peer has made the other end of a queue pair. Returns whether it is used now.
    pub(super) fn replaced(
        &mut self,
        shared: &Shared,
        (peer, turn): (usize, Turn),
        accepted: &AcceptedStripe,
    ) -> bool {
        // The answer to an offer that was given up comes too late.
        let found = self.0.iter().position(|case| case.has_offered(peer, turn));
        let Some(index) = found else { return false };
        let case = &mut self.0[index];
        let Some((_, Prepared { mut end, theirs, .. })) = case.offered.take() else { return false };
        let connected = end.connect(&shared.local, &theirs, &accepted.half);
        let mended = connected.and_then(|()| {
            let mended = case.lane.lock().mend(case.stripe, (end, theirs), accepted);
            case.lane.is_busy.store(true, Ordering::Relaxed);
            mended
        });
        match mended {
            Ok(()) => {
                self.0.swap_remove(index);
                true
            }
            Err(error) => {
                case.fail(error.to_string());
                false
            }
        }
    }

    /// A peer could not make the other end of a queue pair.
    pub(super) fn kept(&mut self, peer: usize, turn: Turn, why: String) {
        if let Some(case) = self.0.iter_mut().find(|case| case.has_offered(peer, turn)) {
            case.fail(format!("member {peer}: {why}"));
        }
    }
}
