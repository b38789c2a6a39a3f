//! How the steward is asked for something.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};

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
    pub(super) mouth: Arc<UnixStream>,
}

impl Hand {
    /// Ask; one that has ended is asked in vain.
    pub(super) fn ask(&self, request: Request) {
        if self.requests.send(request).is_ok() {
            self.ring();
        }
    }

    /// There is something to look after. A byte that does not fit is one of many that do.
    pub(super) fn ring(&self) {
        let _ = (&*self.mouth).write(&[1]);
    }
}
