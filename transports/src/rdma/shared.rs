//! What the endpoint, its wires and its exchange look at: the peers, and what was made for them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use brigade_verbs::{Access, CompletionQueue, Limits, Memory, MemoryRegion, ProtectionDomain};

use super::bell::Chimes;
use super::card::{Address, Card, Way};
use super::failed;
use super::frame::Accepted;
use super::frame::{AcceptedStripe, OfferedStripe, Turn};
use super::inlets::{Incoming, Inlet, LIMITS};
use super::local::Local;
use super::path::End;
use crate::TransportError;

/// How a peer went away.
pub(super) struct Gone {
    pub(super) how: String,
    /// How many pieces it had sent to us, if it took its leave.
    pub(super) pieces: Option<u32>,
    pub(super) since: Instant,
}

impl Gone {
    pub(super) fn error(&self, peer: usize) -> TransportError {
        TransportError::PeerGone { peer, how: self.how.clone() }
    }
}

/// Another member.
pub(super) struct Peer {
    pub(super) index: usize,
    pub(super) card: Card,
    gone: OnceLock<Gone>,
    incoming: OnceLock<Arc<Incoming>>,
}

impl Peer {
    pub(super) fn new(index: usize, card: Card) -> Peer {
        Peer { index, card, gone: OnceLock::new(), incoming: OnceLock::new() }
    }

    /// How it went away, if it did. Costs a load.
    #[inline]
    pub(super) fn gone(&self) -> Option<&Gone> {
        self.gone.get()
    }

    /// The ring that it writes into, once it wanted one.
    pub(super) fn incoming(&self) -> Option<&Arc<Incoming>> {
        self.incoming.get()
    }
}

/// What wires, the endpoint and the exchange look at.
pub(super) struct Shared {
    pub(super) local: Arc<Local>,
    /// Which member we are.
    pub(super) me: usize,
    pub(super) peers: Vec<Option<Arc<Peer>>>,
    pub(super) chimes: Arc<Chimes>,
    /// Ends of queue pairs through which peers reach our windows.
    doors: Mutex<Vec<End>>,
}

impl Shared {
    pub(super) fn new(
        local: Arc<Local>,
        me: usize,
        peers: Vec<Option<Arc<Peer>>>,
        chimes: Arc<Chimes>,
    ) -> Shared {
        Shared { local, me, peers, chimes, doors: Mutex::default() }
    }

    /// # Panics
    /// When this transport does not serve that member: the caller has checked.
    pub(super) fn peer(&self, index: usize) -> &Arc<Peer> {
        self.peers[index].as_ref().expect("the caller asks for members with cards")
    }

    pub(super) fn gone(&self, peer: usize) -> Option<&Gone> {
        self.peer(peer).gone()
    }

    pub(super) fn has_incoming(&self, peer: usize) -> bool {
        self.peer(peer).incoming().is_some()
    }

    /// A peer went away. What was known first stays.
    pub(super) fn lose(&self, peer: usize, gone: Gone) {
        if self.peer(peer).gone.set(gone).is_ok() {
            self.chimes.strike();
        }
    }

    /// Let nothing arrive any more through one of a peer's queue pairs.
    pub(super) fn stop(&self, peer: usize, turn: Turn) {
        if let Some(incoming) = self.peer(peer).incoming() {
            incoming.stop(turn);
        }
        self.chimes.strike();
    }

    /// A peer's end of a queue pair takes words now.
    pub(super) fn link(&self, peer: usize, turn: Turn) {
        if let Some(incoming) = self.peer(peer).incoming() {
            incoming.link(turn);
        }
        self.chimes.strike();
    }

    /// A peer will not send any more, although it has not left.
    pub(super) fn forsake(&self, peer: usize, why: String) {
        if let Some(incoming) = self.peer(peer).incoming() {
            incoming.forsake(why);
        }
        self.chimes.strike();
    }

    /// A peer wants to send: make a ring for it, and queue pairs that end there.
    pub(super) fn accept(
        &self,
        peer: usize,
        ring_bytes: usize,
        offered: &[OfferedStripe],
    ) -> Result<Accepted, TransportError> {
        let refused = |why: &str| TransportError::Refused { why: why.into() };
        let peer = self.peer(peer);
        if peer.incoming().is_some() {
            return Err(refused("it has a wire already"));
        }
        let memory = Memory::zeroed(ring_bytes);
        let mut regions = Regions::new(&memory, Access::Write);
        let (mut inlets, mut accepted) = (Vec::new(), Vec::new());
        for stripe in offered {
            let (end, there) = self.receiving_end(peer, stripe)?;
            let region = regions.of(end.domain(&self.local))?;
            accepted.push(AcceptedStripe { half: end.half(), key: region.remote_key() });
            inlets.push(Inlet::new(end, there, region, 0));
        }
        let address = inlets[0].region.address();
        let incoming = Arc::new(Incoming::new(memory, ring_bytes, inlets));
        let made = peer.incoming.set(incoming).is_ok();
        assert!(made, "only the exchange's thread makes rings");
        self.chimes.strike();
        Ok((address, accepted))
    }

    /// A peer wants to replace a queue pair of its wire that has failed.
    pub(super) fn replace(
        &self,
        peer: usize,
        turn: Turn,
        offered: &OfferedStripe,
    ) -> Result<AcceptedStripe, TransportError> {
        let refused = |why: &str| TransportError::Refused { why: why.into() };
        let peer = self.peer(peer);
        let incoming = peer.incoming().ok_or_else(|| refused("it has no wire"))?;
        incoming.may_replace(turn).map_err(refused)?;
        let (end, there) = self.receiving_end(peer, offered)?;
        let region = incoming.region(&self.local, end.domain(&self.local))?;
        let accepted = AcceptedStripe { half: end.half(), key: region.remote_key() };
        incoming.replace(turn.stripe.into(), Inlet::new(end, there, region, turn.turn));
        self.chimes.strike();
        Ok(accepted)
    }

    /// Our end of a queue pair that a peer wants to send over, connected; and where its other end
    /// is.
    fn receiving_end(
        &self,
        peer: &Peer,
        offered: &OfferedStripe,
    ) -> Result<(End, Address), TransportError> {
        let (ours, there) = self.addresses(peer, offered)?;
        let place = &self.local.places[ours];
        place.check()?;
        let arrivals = self.chimes.queue(&place.device, LIMITS.receives, None)?;
        let mut end = End::open(&self.local, ours, LIMITS, arrivals)?;
        end.connect(&self.local, &there, &offered.half)?;
        Ok((end, there))
    }

    /// A peer wants to reach our windows: make the end of a queue pair that nobody looks at.
    pub(super) fn open_door(
        &self,
        peer: usize,
        stripe: &OfferedStripe,
    ) -> Result<Accepted, TransportError> {
        let (ours, there) = self.addresses(self.peer(peer), stripe)?;
        let device = &self.local.places[ours].device;
        let access = Access::Everything;
        let limits = Limits { sends: 1, receives: 1, inline_bytes: 0, access };
        let arrivals = CompletionQueue::new(device, 1, None).map_err(failed)?;
        let mut end = End::open(&self.local, ours, limits, arrivals)?;
        end.connect(&self.local, &there, &stripe.half)?;
        let accepted = AcceptedStripe { half: end.half(), key: 0 };
        self.doors.lock().unwrap_or_else(PoisonError::into_inner).push(end);
        Ok((0, vec![accepted]))
    }

    /// Where a peer wants its queue pair to end, as a row of our card, and where it begins.
    fn addresses(
        &self,
        peer: &Peer,
        stripe: &OfferedStripe,
    ) -> Result<(usize, Address), TransportError> {
        let refused = |why: &str| Err(TransportError::Refused { why: why.into() });
        let (ours, theirs) = (usize::from(stripe.theirs), usize::from(stripe.ours));
        match (self.local.card.addresses.get(ours), peer.card.addresses.get(theirs)) {
            (Some(here), Some(there)) if here.way_to(there) != Way::None => Ok((ours, *there)),
            (Some(_), Some(_)) => refused("there is no way between the addresses it names"),
            _ => refused("it names an address that is on no card"),
        }
    }
}

/// One memory, registered once with each domain that needs it.
pub(super) struct Regions<'a> {
    memory: &'a Arc<Memory>,
    access: Access,
    made: Vec<(Arc<ProtectionDomain>, Arc<MemoryRegion>)>,
}

impl<'a> Regions<'a> {
    pub(super) fn new(memory: &'a Arc<Memory>, access: Access) -> Self {
        Regions { memory, access, made: Vec::new() }
    }

    pub(super) fn of(
        &mut self,
        domain: &Arc<ProtectionDomain>,
    ) -> Result<Arc<MemoryRegion>, TransportError> {
        if let Some((_, region)) = self.made.iter().find(|(known, _)| Arc::ptr_eq(known, domain)) {
            return Ok(Arc::clone(region));
        }
        let region = MemoryRegion::new(domain, self.memory, self.access).map_err(failed)?;
        let region = Arc::new(region);
        self.made.push((Arc::clone(domain), Arc::clone(&region)));
        Ok(region)
    }
}
