//! The two ends of a wire, as users see them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::hand::Hand;
use super::lane::{Lane, Lendable, Source};
use super::local::Local;
use super::ring::Ring;
use super::shared::Peer;
use crate::pieces::{Pieces, Stream};
use crate::{Lending, RecvWire, SendWire, TransportError};

/// How long after a peer has said farewell its last pieces may still be on their way.
const LAST_PIECES: Duration = Duration::from_secs(2);

/// The sending end.
pub(super) struct Sender {
    lane: Arc<Lane>,
    peer: Arc<Peer>,
    fault: Option<TransportError>,
}

impl Sender {
    pub(super) fn new(lane: Arc<Lane>, peer: Arc<Peer>) -> Sender {
        Sender { lane, peer, fault: None }
    }

    fn take(&mut self, source: Source<'_>) -> Result<usize, TransportError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        if source.bytes().is_empty() {
            return Ok(0);
        }
        let pushed = match self.peer.gone() {
            Some(gone) => Err(gone.error(self.peer.index)),
            None => self.lane.lock().push(source),
        };
        match &pushed {
            Ok(0) => {}
            Ok(_) => self.lane.is_busy.store(true, Ordering::Relaxed),
            Err(fault) => self.fault = Some(fault.clone()),
        }
        pushed
    }
}

impl SendWire for Sender {
    fn push(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        self.take(Source::Passing(bytes))
    }

    unsafe fn lend(&mut self, bytes: &[u8]) -> Result<Lending, TransportError> {
        // SAFETY: the caller leaves the bytes alone until they are let go of, and is told when.
        let taken = self.take(Source::Lent(unsafe { Lendable::new(bytes) }))?;
        Ok(Lending { taken, is_held: taken > 0 && self.lane.lock().held_bytes() > 0 })
    }

    fn held(&mut self) -> Result<usize, TransportError> {
        let Some(gone) = self.peer.gone() else { return self.lane.lock().held() };
        // It answers no more. One that left in good order had all that it wanted.
        let mut lane = self.lane.lock();
        let was_held = lane.held_bytes() > 0;
        lane.recall();
        if was_held && gone.pieces.is_none() { Err(gone.error(self.peer.index)) } else { Ok(0) }
    }

    fn recall(&mut self) {
        self.lane.lock().recall();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // Whoever drops a wire in the middle of a call has its memory back as well.
        self.recall();
    }
}

/// The receiving end.
pub(super) struct Receiver {
    arriving: Arriving,
    stream: Stream,
}

impl Receiver {
    pub(super) fn new(peer: Arc<Peer>, local: Arc<Local>, hand: Hand) -> Receiver {
        let arriving = Arriving { peer, local, hand, ring: None, offset: 0 };
        Receiver { arriving, stream: Stream::new() }
    }
}

impl RecvWire for Receiver {
    fn pull(
        &mut self,
        limit: usize,
        granule: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Result<usize, TransportError> {
        self.stream.pull(&mut self.arriving, (limit, granule), sink)
    }

    fn pull_into(&mut self, target: &mut [u8]) -> Result<usize, TransportError> {
        self.stream.pull_into(&mut self.arriving, target)
    }
}

/// What arrives from a peer.
struct Arriving {
    peer: Arc<Peer>,
    local: Arc<Local>,
    hand: Hand,
    /// None until the peer has asked to send.
    ring: Option<Ring>,
    /// How much of the current piece has been handed over.
    offset: usize,
}

/// What is left of the current piece: where it lies in the ring, and its length.
struct Rest {
    start: usize,
    bytes: usize,
}

impl Pieces for Arriving {
    type Rest = Rest;

    #[inline]
    fn rest(&mut self) -> Result<Option<(Rest, usize)>, TransportError> {
        if let Some(ring) = &mut self.ring
            && let Some(piece) = ring.piece()?
        {
            return Ok(Some(self.rest_of(piece)));
        }
        self.nothing()
    }

    #[inline]
    fn hand_over(&mut self, rest: &Rest, count: usize, sink: &mut dyn FnMut(&[u8])) {
        assert!(count <= rest.bytes);
        let ring = self.ring.as_mut().expect("a piece lies in a ring");
        // SAFETY: the piece's number has come out of a completion queue, so its bytes have landed;
        // its sender writes there again only after the release below has been told.
        unsafe { ring.memory().with(rest.start, count, sink) };
        self.offset += count;
        if count == rest.bytes {
            self.offset = 0;
            ring.release();
        }
    }
}

impl Arriving {
    fn rest_of(&self, (start, bytes): (usize, usize)) -> (Rest, usize) {
        let (start, bytes) = (start + self.offset, bytes - self.offset);
        (Rest { start, bytes }, bytes)
    }

    /// Nothing has arrived: why?
    #[cold]
    fn nothing(&mut self) -> Result<Option<(Rest, usize)>, TransportError> {
        // Looked at before the ring: what comes after it may have been on its way.
        let gone = self.peer.gone();
        let Some(ring) = &mut self.ring else {
            if let Some(incoming) = self.peer.incoming() {
                let (incoming, local) = (Arc::clone(incoming), Arc::clone(&self.local));
                let ring = Ring::new(incoming, local, self.peer.index, self.hand.clone());
                self.ring = Some(ring);
                return self.rest();
            }
            return gone.map_or(Ok(None), |gone| Err(gone.error(self.peer.index)));
        };
        let Some(gone) = gone else {
            return ring.dead().map_or(Ok(None), Err);
        };
        if let Some(piece) = ring.piece()? {
            return Ok(Some(self.rest_of(piece)));
        }
        // It said how many pieces there would be, or it did not come to that.
        let is_complete = gone.pieces.is_none_or(|pieces| pieces == ring.next());
        if is_complete || gone.since.elapsed() > LAST_PIECES {
            return Err(gone.error(self.peer.index));
        }
        Ok(None)
    }
}
