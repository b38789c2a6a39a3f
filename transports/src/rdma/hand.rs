//! How the exchange is asked for something.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use super::frame::{Accepted, Frame, Turn};
use super::lane::Lane;
use super::sys::Gong;
use crate::TransportError;

/// What the exchange is asked to do.
pub(super) enum Request {
    /// Offer a wire or a door to a peer, and pass on what it answers.
    Offer {
        peer: usize,
        frame: Frame,
        deadline: Instant,
        answer: mpsc::Sender<Result<Accepted, TransportError>>,
    },
    /// Look after this lane from now on.
    Tend { peer: usize, lane: Arc<Lane> },
    /// One of our queue pairs to a peer has failed.
    Stop { peer: usize, turn: Turn },
    /// One of our queue pairs from a peer has failed.
    Broken { peer: usize, turn: Turn },
    /// Our wire to a peer has failed for this reason.
    Lost { peer: usize, why: String },
    /// Wake a peer, whose window was signalled.
    Knock { peer: usize },
    /// Leave.
    Leave,
}

/// How the exchange is asked.
#[derive(Clone)]
pub(super) struct Hand {
    pub(super) requests: mpsc::Sender<Request>,
    pub(super) gong: Arc<Gong>,
}

impl Hand {
    /// Ask; one that has ended is asked in vain.
    pub(super) fn ask(&self, request: Request) {
        if self.requests.send(request).is_ok() {
            self.gong.ring();
        }
    }
}
