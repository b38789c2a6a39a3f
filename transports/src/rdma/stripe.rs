//! One of the queue pairs that a lane sends over, and its successors.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use brigade_verbs::{Access, Limits, MemoryRegion, Remote, Status};

use super::card::{Address, choose};
use super::frame::{OfferedStripe, Turn};
use super::limits::{CREDITS, SENDS};
use super::local::Local;
use super::path::{End, also};
use super::shared::{Peer, Shared};
use super::silence::Silence;
use crate::TransportError;

/// What the sending end of a queue pair holds. Small pieces travel with the request: 220 bytes are
/// what fits into a request of four cache lines of the usual hardware.
pub(super) const LIMITS: Limits =
    Limits { sends: SENDS, receives: CREDITS, inline_bytes: 220, access: Access::Local };

/// Our end of a queue pair that has no other end yet.
pub(super) struct Prepared {
    pub(super) end: End,
    pub(super) offered: OfferedStripe,
    /// Where the other end shall be.
    pub(super) theirs: Address,
}

impl Prepared {
    /// Prepare one for a lane, at the addresses whose `turn` it is.
    pub(super) fn new(
        shared: &Shared,
        peer: &Peer,
        has_lent: &Arc<AtomicBool>,
        turn: usize,
    ) -> Result<Prepared, TransportError> {
        let Shared { local, chimes, me, .. } = shared;
        let chosen = choose(&local.card, &peer.card, *me, peer.index, turn);
        let (place, row) = chosen.ok_or_else(|| TransportError::Refused {
            why: format!("no address of member {} can be reached from here", peer.index),
        })?;
        local.places[place].check()?;
        let device = &local.places[place].device;
        let arrivals = chimes.queue(device, LIMITS.receives, None)?;
        let sends = chimes.queue(device, LIMITS.sends, Some(Arc::clone(has_lent)))?;
        let end = End::with(local, place, LIMITS, (sends, arrivals))?;
        let offered = OfferedStripe { ours: place as u8, theirs: row as u8, half: end.half() };
        Ok(Prepared { end, offered, theirs: peer.card.addresses[row] })
    }
}

/// One of a lane's queue pairs.
pub(super) struct Stripe {
    pub(super) end: End,
    /// The ring's source, as this queue pair's device knows it.
    pub(super) source: Arc<MemoryRegion>,
    /// The ring's target.
    pub(super) target: Remote,
    /// Where the other end is.
    pub(super) theirs: Address,
    pub(super) state: StripeState,
    /// Requests that are posted and not completed.
    pub(super) posted: u32,
    /// How many have completed, modulo 2^32, and since when none has.
    pub(super) completed: u32,
    pub(super) silence: Silence,
    /// How often it was tried to replace the queue pair.
    pub(super) turn: u32,
    /// What it has been through since something last landed over it.
    pub(super) trouble: Option<Box<Trouble>>,
}

/// What a stripe is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StripeState {
    Works,
    /// It failed in this way, and the receiver has not stopped its end yet.
    Failed(Status),
    /// Nothing comes out of it any more.
    Stopped(Status),
}

/// Why a stripe does not work, and what was done about it.
#[derive(Clone, Debug)]
pub(super) struct Trouble {
    /// What came first.
    cause: TransportError,
    /// Whether that says more than that something was thrown away.
    is_known: bool,
    /// How often it was tried to replace the queue pair.
    attempts: u32,
    /// Why that came to nothing the last time.
    obstacle: Option<String>,
}

impl Stripe {
    pub(super) fn new(
        end: End,
        source: Arc<MemoryRegion>,
        target: Remote,
        theirs: Address,
    ) -> Self {
        Stripe {
            end,
            source,
            target,
            theirs,
            state: StripeState::Works,
            posted: 0,
            completed: 0,
            silence: Silence::default(),
            turn: 0,
            trouble: None,
        }
    }

    pub(super) fn works(&self) -> bool {
        self.state == StripeState::Works
    }

    /// Its name in frames.
    pub(super) fn turn(&self, index: usize) -> Turn {
        Turn { stripe: index as u8, turn: self.turn }
    }

    /// How it failed; of one that has not, nothing in particular.
    pub(super) fn status(&self) -> Status {
        match self.state {
            StripeState::Works => Status::FLUSHED,
            StripeState::Failed(status) | StripeState::Stopped(status) => status,
        }
    }

    /// Whether another queue pair might do what this one could not: the path failed, and not what
    /// was asked for.
    pub(super) fn is_mendable(&self) -> bool {
        is_of_path(self.status())
    }

    /// Note why it failed: what came first counts, unless that says nothing.
    #[cold]
    pub(super) fn learn(&mut self, local: &Local, peer: usize) {
        if self.trouble.as_ref().is_some_and(|trouble| trouble.is_known) {
            return;
        }
        let status = self.status();
        let is_known = status != Status::FLUSHED || self.end.fact(local).is_some();
        let cause = self.end.blame(local, &self.theirs, peer, status);
        match &mut self.trouble {
            Some(trouble) => (trouble.cause, trouble.is_known) = (cause, is_known),
            None => {
                let trouble = Trouble { cause, is_known, attempts: 0, obstacle: None };
                self.trouble = Some(Box::new(trouble));
            }
        }
    }

    /// How often it was tried to replace the queue pair since something last landed.
    pub(super) fn attempts(&self) -> u32 {
        self.trouble.as_ref().map_or(0, |trouble| trouble.attempts)
    }

    /// Count an attempt to replace the queue pair.
    pub(super) fn attempt(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        if let Some(trouble) = &mut self.trouble {
            trouble.attempts += 1;
        }
    }

    /// An attempt came to nothing.
    pub(super) fn tried(&mut self, why: String) {
        if let Some(trouble) = &mut self.trouble {
            trouble.obstacle = Some(why);
        }
    }
}

/// Whether the path may be what failed. A queue pair's operation error is one of these: soft-RoCE
/// of Linux 6.1 says so when there is no way out since its link is down.
fn is_of_path(status: Status) -> bool {
    !matches!(status.0, 1 | 3 | 4 | 6..=10)
}

/// What to say when no stripe works any more, and whether it says why: of the first that failed by
/// itself; or of one whose port tells why, for some devices throw everything away and do not say
/// what for; or of any.
pub(super) fn blame(stripes: &mut [Stripe], local: &Local, peer: usize) -> (TransportError, bool) {
    stripes.iter_mut().for_each(|stripe| stripe.learn(local, peer));
    let by_itself = |stripe: &&Stripe| stripe.status() != Status::FLUSHED;
    let has_fact = |stripe: &&Stripe| stripe.trouble.as_ref().is_some_and(|it| it.is_known);
    let found = stripes.iter().find(by_itself).or_else(|| stripes.iter().find(has_fact));
    let stripe = found.unwrap_or(&stripes[0]);
    let trouble = stripe.trouble.as_ref().expect("it was just learnt");
    let attempts = trouble.attempts;
    if attempts == 0 {
        return (trouble.cause.clone(), trouble.is_known);
    }
    let patience = local.settings.reconnect.as_secs_f64();
    let last = trouble.obstacle.as_deref().unwrap_or("the new one failed as well");
    let tale = format!(
        "; {attempts} attempts within {patience:.1} s to replace the queue pair failed, of which \
         the last: {last}"
    );
    (also(trouble.cause.clone(), &tale), true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_path_may_have_done_is_mended_and_what_we_asked_wrongly_is_not() {
        let operation_error = Status(2);
        let of_path = [operation_error, Status::FLUSHED, Status::RETRIES_EXCEEDED, Status::SILENT];
        assert!(of_path.into_iter().all(is_of_path));
        let (too_long, protection, access) = (Status(1), Status(4), Status(10));
        assert!(![too_long, protection, access].into_iter().any(is_of_path));
    }
}
