//! What is between us and one peer, as the steward sees it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

use super::inlet::Inlet;
use super::net::{Net, Thing};
use super::outlet::Outlet;
use super::sys::HANDLE_BYTES;
use crate::{RecvWire, SendWire, TransportError};

/// The sending end of a wire, or why there is none.
pub(super) type Connected = Result<Arc<Mutex<Outlet>>, TransportError>;

/// What is between us and one peer.
pub(super) struct Peer {
    pub(super) from: Option<Box<dyn RecvWire>>,
    pub(super) to: Option<Box<dyn SendWire>>,
    pub(super) inbox: Vec<u8>,
    pub(super) outbox: Vec<u8>,
    pub(super) inlet: Arc<Mutex<Inlet>>,
    /// Awaits the peer, until it has connected.
    pub(super) listener: Option<Thing>,
    pub(super) has_accepted: bool,
    pub(super) calling: Option<Calling>,
    pub(super) outlet: Option<Arc<Mutex<Outlet>>>,
    /// Whether it was told that all has arrived.
    pub(super) told: bool,
    /// Whether it has said that it has had all, or wants no more.
    pub(super) is_done: bool,
    /// Whether it has said that it leaves.
    pub(super) has_left: bool,
    /// Why nothing more comes from it.
    pub(super) gone: Option<TransportError>,
}

/// A connection that we make.
pub(super) struct Calling {
    pub(super) deadline: Instant,
    pub(super) since: Instant,
    pub(super) answer: mpsc::Sender<Connected>,
    /// Counts the answers, for those who sleep until one comes.
    pub(super) answers: Arc<AtomicU64>,
    pub(super) handle: Option<Box<[u8; HANDLE_BYTES]>>,
}

impl Peer {
    pub(super) fn new(from: Box<dyn RecvWire>, inlet: Arc<Mutex<Inlet>>) -> Peer {
        Peer {
            from: Some(from),
            to: None,
            inbox: Vec::new(),
            outbox: Vec::new(),
            inlet,
            listener: None,
            has_accepted: false,
            calling: None,
            outlet: None,
            told: false,
            is_done: false,
            has_left: false,
            gone: None,
        }
    }

    /// Push what is to be said. What fails shows where the peer's words are read.
    pub(super) fn flush(&mut self) {
        let Some(to) = &mut self.to else { return };
        while let Ok(took @ 1..) = to.push(&self.outbox) {
            self.outbox.drain(..took);
            if self.outbox.is_empty() {
                return;
            }
        }
    }

    pub(super) fn answer(&mut self, outcome: Connected) {
        if let Some(calling) = self.calling.take() {
            // Whoever asked may have given up meanwhile.
            let _heard = calling.answer.send(outcome);
            calling.answers.fetch_add(1, Ordering::Release);
        }
    }
}

impl Calling {
    /// The connection, once it stands or cannot be had.
    pub(super) fn go_on(&mut self, net: &'static Net, peer: usize) -> Option<Connected> {
        if let Some(handle) = &mut self.handle {
            match net.connect(handle) {
                Ok(None) => {}
                Ok(Some(end)) => return Some(Outlet::new(net, peer, end)),
                Err(failure) => return Some(Err(failure.on_wire(peer))),
            }
        }
        if Instant::now() < self.deadline {
            return None;
        }
        let what = format!("the wire to member {peer}");
        let waited_ms = self.since.elapsed().as_millis() as u64;
        Some(Err(TransportError::Timeout { what, waited_ms }))
    }
}

/// What is said of a peer that has left in good order.
pub(super) fn left(peer: usize) -> TransportError {
    TransportError::PeerGone { peer, how: "it has left the communicator".into() }
}
