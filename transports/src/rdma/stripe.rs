//! One of the queue pairs that a lane sends over.

use std::sync::Arc;

use brigade_verbs::{MemoryRegion, Remote, Status};

use super::card::Address;
use super::path::End;
use super::port::Local;
use crate::TransportError;

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

impl Stripe {
    pub(super) fn new(
        end: End,
        source: Arc<MemoryRegion>,
        target: Remote,
        theirs: Address,
    ) -> Self {
        Stripe { end, source, target, theirs, state: StripeState::Works, posted: 0 }
    }

    pub(super) fn works(&self) -> bool {
        self.state == StripeState::Works
    }

    /// How it failed; of one that has not, nothing in particular.
    fn status(&self) -> Status {
        match self.state {
            StripeState::Works => Status::FLUSHED,
            StripeState::Failed(status) | StripeState::Stopped(status) => status,
        }
    }
}

/// What to say when no stripe works any more: the first that failed by itself; or one whose port
/// tells why, for some devices throw everything away and do not say what for; or any.
pub(super) fn blame(stripes: &[Stripe], local: &Local, peer: usize) -> (TransportError, Status) {
    let by_itself = |stripe: &&Stripe| stripe.status() != Status::FLUSHED;
    let has_fact = |stripe: &&Stripe| stripe.end.fact(local, &stripe.theirs).is_some();
    let found = stripes.iter().find(by_itself).or_else(|| stripes.iter().find(has_fact));
    let stripe = found.unwrap_or(&stripes[0]);
    (stripe.end.blame(local, &stripe.theirs, peer, stripe.status()), stripe.status())
}
