//! One communicator's share: its peers, its wires and its bell.

use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use brigade_verbs::{Access, Limits, Memory, MemoryRegion, ProtectionDomain, Remote};

use super::bell::{Bell, Chimes};
use super::card::{Address, Card, Way, choose};
use super::exchange::{Accepted, Exchange, Hand, Request};
use super::frame::{AcceptedStripe, Frame, OfferedStripe, RING_BYTES_MIN, STRIPES_MAX};
use super::lane::{CREDITS, Lane, SENDS, Stripe};
use super::path::{End, domain};
use super::port::Local;
use super::ring::{Incoming, Inlet, LIMITS};
use super::wire::{Receiver, Sender};
use super::{caps, failed};
use crate::{Caps, Doorbell, Endpoint, RecvWire, SendWire, TransportError, Windows};

/// The most queue pairs of a wire that nobody has asked for.
const STRIPES_UNASKED: usize = 4;
/// How long an answer may take beyond the time that its asker has.
const ANSWER: Duration = Duration::from_millis(20);
/// What the sending end of a queue pair holds. Small pieces travel with the request: 220 bytes are
/// what fits into a request of four cache lines of the usual hardware.
const LIMITS_OUT: Limits = Limits { sends: SENDS, receives: CREDITS, inline_bytes: 220 };

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
    card: Card,
    gone: OnceLock<Gone>,
    incoming: OnceLock<Arc<Incoming>>,
}

impl Peer {
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
    pub(super) peers: Vec<Option<Arc<Peer>>>,
    pub(super) chimes: Arc<Chimes>,
}

impl Shared {
    fn peer(&self, index: usize) -> &Arc<Peer> {
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
    pub(super) fn stop(&self, peer: usize, stripe: usize) {
        if let Some(incoming) = self.peer(peer).incoming() {
            incoming.stop(stripe);
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
            let (ours, theirs) = (usize::from(stripe.theirs), usize::from(stripe.ours));
            let here = self.local.card.addresses.get(ours);
            let there = peer.card.addresses.get(theirs);
            let (Some(here), Some(&there)) = (here, there) else {
                return Err(refused("it names an address that is on no card"));
            };
            if here.way_to(&there) == Way::None {
                return Err(refused("there is no way between the addresses it names"));
            }
            let device = self.local.domains[usize::from(here.device)].device();
            let arrivals = self.chimes.queue(device, LIMITS.receives)?;
            let end = End::open(&self.local, ours, LIMITS, arrivals)?;
            end.connect(&self.local, &there, stripe.number, stripe.start)?;
            let region = regions.of(domain(&self.local, ours))?;
            let (number, start) = (end.pair.number(), end.start);
            accepted.push(AcceptedStripe { number, start, key: region.remote_key() });
            inlets.push(Inlet::new(end, there, region));
        }
        let address = inlets[0].region.address();
        let incoming = Arc::new(Incoming { memory, ring_bytes, inlets });
        let made = peer.incoming.set(incoming).is_ok();
        assert!(made, "only the exchange's thread makes rings");
        self.chimes.strike();
        Ok((address, accepted))
    }
}

/// One memory, registered once with each domain that needs it.
struct Regions<'a> {
    memory: &'a Arc<Memory>,
    access: Access,
    made: Vec<(Arc<ProtectionDomain>, Arc<MemoryRegion>)>,
}

impl<'a> Regions<'a> {
    fn new(memory: &'a Arc<Memory>, access: Access) -> Self {
        Regions { memory, access, made: Vec::new() }
    }

    fn of(&mut self, domain: &Arc<ProtectionDomain>) -> Result<Arc<MemoryRegion>, TransportError> {
        if let Some((_, region)) = self.made.iter().find(|(known, _)| Arc::ptr_eq(known, domain)) {
            return Ok(Arc::clone(region));
        }
        let region = MemoryRegion::new(domain, self.memory, self.access).map_err(failed)?;
        let region = Arc::new(region);
        self.made.push((Arc::clone(domain), Arc::clone(&region)));
        Ok(region)
    }
}

/// One communicator.
pub(super) struct RdmaEndpoint {
    me: usize,
    ring_bytes: usize,
    shared: Arc<Shared>,
    bell: Bell,
    exchange: Exchange,
}

impl RdmaEndpoint {
    pub(super) fn start(
        local: Arc<Local>,
        tcp: Box<dyn Endpoint>,
        me: usize,
        cards: Vec<Option<Card>>,
    ) -> Result<RdmaEndpoint, TransportError> {
        let chimes = Chimes::new()?;
        let peers: Vec<_> = cards
            .into_iter()
            .enumerate()
            .map(|(index, card)| {
                let card = card.filter(|_| index != me)?;
                let (gone, incoming) = (OnceLock::new(), OnceLock::new());
                Some(Arc::new(Peer { index, card, gone, incoming }))
            })
            .collect();
        let others = peers.iter().flatten().count().max(1);
        let fair = local.settings.inbound_bytes / others;
        let least = (RING_BYTES_MIN as usize).min(local.settings.ring_bytes);
        let ring_bytes = (1 << fair.max(1).ilog2()).clamp(least, local.settings.ring_bytes);
        let shared = Arc::new(Shared { local, peers, chimes: Arc::clone(&chimes) });
        let exchange = Exchange::start(tcp, &shared)?;
        Ok(RdmaEndpoint { me, ring_bytes, shared, bell: Bell(chimes), exchange })
    }

    fn hand(&self) -> Hand {
        self.exchange.hand.clone()
    }

    /// How many queue pairs a wire to a peer gets.
    fn stripes(&self, theirs: &Card) -> usize {
        let automatic = self.shared.local.card.devices().min(theirs.devices());
        match self.shared.local.settings.queue_pairs {
            0 => automatic.clamp(1, STRIPES_UNASKED),
            set => set.min(STRIPES_MAX),
        }
    }

    /// Prepare our ends of the queue pairs to a peer: the offer, and each end with the address of
    /// the other.
    fn prepare(&self, peer: &Peer) -> Result<(Vec<OfferedStripe>, Vec<Prepared>), TransportError> {
        let Shared { local, chimes, .. } = &*self.shared;
        let (mut offered, mut prepared) = (Vec::new(), Vec::new());
        for index in 0..self.stripes(&peer.card) {
            let chosen = choose(&local.card, &peer.card, self.me, peer.index, index);
            let (place, theirs) = chosen.ok_or_else(|| TransportError::Refused {
                why: format!("no address of member {} can be reached from here", peer.index),
            })?;
            let device = &local.places[place].device;
            let arrivals = chimes.queue(device, LIMITS_OUT.receives)?;
            let end = End::open(local, place, LIMITS_OUT, arrivals)?;
            let (number, start) = (end.pair.number(), end.start);
            offered.push(OfferedStripe { ours: place as u8, theirs: theirs as u8, number, start });
            prepared.push(Prepared { end, place, theirs: peer.card.addresses[theirs] });
        }
        Ok((offered, prepared))
    }

    /// Ask a peer for a ring.
    fn ask(
        &self,
        peer: usize,
        stripes: Vec<OfferedStripe>,
        deadline: Instant,
    ) -> Result<Accepted, TransportError> {
        let started = Instant::now();
        let (answer, answers) = mpsc::channel();
        let frame = Frame::Offer { ring_bytes: self.ring_bytes as u32, stripes };
        self.exchange.hand.ask(Request::Offer { peer, frame, deadline, answer });
        let left = deadline.saturating_duration_since(started) + ANSWER;
        answers.recv_timeout(left).unwrap_or_else(|_| {
            let what = format!("the answer of member {peer}, which is asked for queue pairs,");
            let waited_ms = started.elapsed().as_millis() as u64;
            Err(TransportError::Timeout { what, waited_ms })
        })
    }
}

/// Our end of a queue pair that has no other end yet.
struct Prepared {
    end: End,
    place: usize,
    theirs: Address,
}

impl Endpoint for RdmaEndpoint {
    fn caps(&self) -> Caps {
        caps(self.shared.local.gbit, self.ring_bytes)
    }

    fn sender(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Box<dyn SendWire>, TransportError> {
        let peer = Arc::clone(self.shared.peer(to));
        let (offered, prepared) = self.prepare(&peer)?;
        let (address, accepted) = self.ask(to, offered, deadline)?;
        if accepted.len() != prepared.len() {
            let what = "it accepts another number of queue pairs than it was offered".into();
            return Err(TransportError::Corrupt { peer: to, what });
        }
        let local = &self.shared.local;
        let memory = Memory::zeroed(self.ring_bytes);
        let mut regions = Regions::new(&memory, Access::Local);
        let mut stripes = Vec::with_capacity(prepared.len());
        for (Prepared { end, place, theirs }, accepted) in prepared.into_iter().zip(accepted) {
            end.connect(local, &theirs, accepted.number, accepted.start)?;
            let source = regions.of(domain(local, place))?;
            let target = Remote { address, key: accepted.key };
            stripes.push(Stripe::new(end, source, target, theirs));
        }
        let lane = Lane::new(Arc::clone(local), to, self.ring_bytes, stripes, self.hand());
        let lane = Arc::new(lane);
        self.exchange.hand.ask(Request::Tend { peer: to, lane: Arc::clone(&lane) });
        Ok(Box::new(Sender::new(lane, peer)))
    }

    fn receiver(&mut self, from: usize) -> Result<Box<dyn RecvWire>, TransportError> {
        let peer = Arc::clone(self.shared.peer(from));
        Ok(Box::new(Receiver::new(peer, Arc::clone(&self.shared.local), self.hand())))
    }

    fn doorbell(&mut self) -> &mut dyn Doorbell {
        &mut self.bell
    }

    fn check(&mut self) -> Result<(), TransportError> {
        // Who has said farewell is no error here: its wires say so to those who want more of it.
        for peer in self.shared.peers.iter().flatten() {
            if let Some(gone) = peer.gone().filter(|gone| gone.pieces.is_none()) {
                return Err(gone.error(peer.index));
            }
        }
        Ok(())
    }

    fn windows(&mut self) -> Option<&mut dyn Windows> {
        None
    }
}
