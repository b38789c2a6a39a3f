//! How the steward is asked for something.

use std::sync::mpsc;

use super::mouth::Mouth;
use super::peer::Calling;

/// What the steward is asked.
pub(super) enum Request {
    /// Connect to a peer.
    Connect { peer: usize, calling: Calling },
    /// Leave.
    Leave,
}

/// How the steward is asked.
#[derive(Clone)]
pub(super) struct Hand {
    pub(super) requests: mpsc::Sender<Request>,
    pub(super) mouth: Mouth,
}

impl Hand {
    /// Ask; one that has ended is asked in vain.
    pub(super) fn ask(&self, request: Request) {
        if self.requests.send(request).is_ok() {
            self.mouth.ring();
        }
    }
}
