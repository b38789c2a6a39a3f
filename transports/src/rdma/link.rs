//! The connection to one peer, over which the exchange talks with it.

use std::sync::mpsc;
use std::time::Instant;

use super::frame::Accepted;
use super::frame::Frame;
use crate::{RecvWire, SendWire, TransportError};

/// Both directions of it, and what waits in them.
pub(super) struct Link {
    /// None once it has ended.
    pub(super) from: Option<Box<dyn RecvWire>>,
    pub(super) to: Option<Box<dyn SendWire>>,
    pub(super) inbox: Vec<u8>,
    pub(super) outbox: Vec<u8>,
    /// A knock is to go out behind all that. One wakes as well as many, and a peer that is stopped
    /// reads none.
    pub(super) knocks: bool,
    /// Until when to try to connect.
    pub(super) deadline: Instant,
    /// Who waits for the answer to our offer.
    pub(super) answer: Option<mpsc::Sender<Result<Accepted, TransportError>>>,
}

impl Link {
    pub(super) fn new(from: Box<dyn RecvWire>) -> Link {
        let (inbox, outbox, deadline) = (Vec::new(), Vec::new(), Instant::now());
        Link { from: Some(from), to: None, inbox, outbox, knocks: false, deadline, answer: None }
    }

    /// Send what can be sent now. Returns whether that was anything.
    pub(super) fn flush(&mut self) -> bool {
        let Some(to) = &mut self.to else { return false };
        if self.outbox.is_empty() && std::mem::take(&mut self.knocks) {
            Frame::Knock.serialise(&mut self.outbox);
        }
        if self.outbox.is_empty() {
            return false;
        }
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

    /// Whether more is to be sent, on a connection that stands.
    pub(super) fn has_unsent(&self) -> bool {
        self.to.is_some() && (!self.outbox.is_empty() || self.knocks)
    }

    /// Whether something is to be sent as soon as the connection stands.
    pub(super) fn is_dialling(&self) -> bool {
        self.to.is_none() && !self.outbox.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::TransportError;

    /// A wire that takes so many bytes, and nothing ever comes from there.
    #[derive(Clone, Default)]
    struct Narrow(Arc<Mutex<(usize, Vec<u8>)>>);

    impl SendWire for Narrow {
        fn push(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
            let (room, taken) = &mut *self.0.lock().unwrap();
            let count = bytes.len().min(*room);
            *room -= count;
            taken.extend(&bytes[..count]);
            Ok(count)
        }
    }

    impl RecvWire for Narrow {
        fn pull(
            &mut self,
            _: usize,
            _: usize,
            _: &mut dyn FnMut(&[u8]),
        ) -> Result<usize, TransportError> {
            Ok(0)
        }

        fn pull_into(&mut self, _: &mut [u8]) -> Result<usize, TransportError> {
            Ok(0)
        }
    }

    #[test]
    fn however_often_a_peer_is_knocked_at_that_reads_nothing_little_waits_for_it() {
        let wire = Narrow::default();
        let mut link = Link::new(Box::new(wire.clone()));
        link.to = Some(Box::new(wire.clone()));
        let bye = Frame::Bye { pieces: 1 };
        bye.serialise(&mut link.outbox);
        wire.0.lock().unwrap().0 = 3;
        for _ in 0..10_000 {
            link.knocks = true;
            link.flush();
        }
        assert!(link.outbox.len() < 64 && link.has_unsent(), "{} bytes", link.outbox.len());
        wire.0.lock().unwrap().0 = usize::MAX;
        while link.flush() {}
        assert!(!link.has_unsent());
        let mut heard = std::mem::take(&mut wire.0.lock().unwrap().1);
        let frames = std::iter::from_fn(|| Frame::take(&mut heard).unwrap());
        assert!(frames.eq([bye, Frame::Knock]));
    }
}
