//! The connection to one peer, over which the exchange talks with it.

use std::sync::mpsc;

use super::exchange::Accepted;
use crate::{RecvWire, SendWire, TransportError};

/// Both directions of it, and what waits in them.
pub(super) struct Link {
    /// None once it has ended.
    pub(super) from: Option<Box<dyn RecvWire>>,
    pub(super) to: Option<Box<dyn SendWire>>,
    pub(super) inbox: Vec<u8>,
    pub(super) outbox: Vec<u8>,
    /// Who waits for the answer to our offer.
    pub(super) answer: Option<mpsc::Sender<Result<Accepted, TransportError>>>,
}

impl Link {
    pub(super) fn new(from: Box<dyn RecvWire>) -> Link {
        Link { from: Some(from), to: None, inbox: Vec::new(), outbox: Vec::new(), answer: None }
    }

    /// Send what can be sent now. Returns whether that was anything.
    pub(super) fn flush(&mut self) -> bool {
        let Some(to) = self.to.as_mut().filter(|_| !self.outbox.is_empty()) else { return false };
        match to.push(&self.outbox) {
            Ok(count) => {
                self.outbox.drain(..count);
                count > 0
            }
            // The other direction says why.
            Err(_) => {
                self.outbox.clear();
                false
            }
        }
    }
}
