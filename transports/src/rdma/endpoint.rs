//! One communicator's share: its peers, its wires and its bell.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use brigade_verbs::{Access, CompletionQueue, Memory, MemoryRegion, Remote};

use super::bell::{Bell, Chimes};
use super::card::{Address, Card, choose};
use super::exchange::{Accepted, Exchange, Hand, Request};
use super::failed;
use super::frame::{Frame, OfferedStripe, RING_BYTES_MIN, STRIPES_MAX};
use super::lane::Lane;
use super::path::{End, domain};
use super::port::Local;
use super::shared::{Peer, Regions, Shared};
use super::stripe::{Prepared, Stripe};
use super::window::{self, Descriptor, Imported};
use super::wire::{Receiver, Sender};
use crate::{
    Doorbell, Endpoint, LendingStats, LocalWindow, RecvWire, RemoteWindow, SendWire,
    TransportError, Windows,
};

/// The most queue pairs of a wire that nobody has asked for.
const STRIPES_UNASKED: usize = 4;
/// How long a peer may take to open a door to its windows.
const DOOR: Duration = Duration::from_secs(20);
/// How long an answer may take beyond the time that its asker has.
const ANSWER: Duration = Duration::from_millis(20);
/// One communicator.
pub(super) struct RdmaEndpoint {
    me: usize,
    ring_bytes: usize,
    shared: Arc<Shared>,
    bell: Bell,
    exchange: Exchange,
    /// Wires and doors that members were asked for and have not answered about.
    wires: HashMap<usize, Asked<PreparedWire>>,
    doors: HashMap<usize, Asked<Door>>,
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
            .map(|(index, card)| Some(Arc::new(Peer::new(index, card.filter(|_| index != me)?))))
            .collect();
        let others = peers.iter().flatten().count().max(1);
        let fair = local.settings.inbound_bytes / others;
        let least = (RING_BYTES_MIN as usize).min(local.settings.ring_bytes);
        let ring_bytes = (1 << fair.max(1).ilog2()).clamp(least, local.settings.ring_bytes);
        let shared = Arc::new(Shared::new(local, me, peers, Arc::clone(&chimes)));
        let exchange = Exchange::start(tcp, &shared)?;
        let (bell, wires, doors) = (Bell(chimes), HashMap::new(), HashMap::new());
        Ok(RdmaEndpoint { me, ring_bytes, shared, bell, exchange, wires, doors })
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

    /// Offer something that was `prepared` to a peer.
    fn ask<T>(&self, peer: usize, prepared: T, frame: Frame, deadline: Instant) -> Asked<T> {
        let since = Instant::now();
        let (answer, answers) = mpsc::channel();
        self.exchange.hand.ask(Request::Offer { peer, frame, deadline, answer });
        Asked { peer, prepared, answers, since, deadline }
    }

    /// Offer a wire to a peer.
    fn offer(&self, to: usize, deadline: Instant) -> Result<Asked<PreparedWire>, TransportError> {
        let peer = self.shared.peer(to);
        let has_lent = Arc::default();
        let stripes = 0..self.stripes(&peer.card);
        let prepare = |stripe| Prepared::new(&self.shared, peer, &has_lent, stripe);
        let prepared: Vec<Prepared> = stripes.map(prepare).collect::<Result<_, _>>()?;
        let offered = prepared.iter().map(|it| it.offered).collect();
        let frame = Frame::Offer { ring_bytes: self.ring_bytes as u32, stripes: offered };
        Ok(self.ask(to, (has_lent, prepared), frame, deadline))
    }

    /// The wire that a peer has accepted.
    fn wire(
        &self,
        to: usize,
        (has_lent, prepared): PreparedWire,
        (address, accepted): Accepted,
    ) -> Result<Sender, TransportError> {
        if accepted.len() != prepared.len() {
            let what = "it accepts another number of queue pairs than it was offered".into();
            return Err(TransportError::Corrupt { peer: to, what });
        }
        let local = &self.shared.local;
        let memory = Memory::zeroed(self.ring_bytes);
        let mut regions = Regions::new(&memory, Access::Local);
        let mut stripes = Vec::with_capacity(prepared.len());
        for (Prepared { mut end, theirs, .. }, accepted) in prepared.into_iter().zip(accepted) {
            end.connect(local, &theirs, &accepted.half)?;
            let source = regions.of(end.domain(local))?;
            let target = Remote { address, key: accepted.key };
            stripes.push(Stripe::new(end, source, target, theirs));
        }
        let (local, hand) = (Arc::clone(local), self.hand());
        let lane = Lane::new(local, to, self.ring_bytes, stripes, hand, has_lent);
        let lane = Arc::new(lane);
        self.exchange.hand.ask(Request::Tend { peer: to, lane: Arc::clone(&lane) });
        Ok(Sender::new(lane, Arc::clone(self.shared.peer(to))))
    }
}

/// The queue pairs of a wire, and whether anything is lent to it.
type PreparedWire = (Arc<AtomicBool>, Vec<Prepared>);

/// What a peer was asked for, and what was prepared for its answer.
struct Asked<T> {
    peer: usize,
    prepared: T,
    answers: mpsc::Receiver<Result<Accepted, TransportError>>,
    since: Instant,
    deadline: Instant,
}

impl<T> Asked<T> {
    /// The answer, if it has come.
    fn answer(&self) -> Result<Option<Accepted>, TransportError> {
        match self.answers.try_recv() {
            Ok(answer) => answer.map(Some),
            Err(mpsc::TryRecvError::Empty) if Instant::now() < self.deadline + ANSWER => Ok(None),
            Err(_) => {
                let peer = self.peer;
                let what = format!("the answer of member {peer}, which is asked for queue pairs,");
                let waited_ms = self.since.elapsed().as_millis() as u64;
                Err(TransportError::Timeout { what, waited_ms })
            }
        }
    }
}

impl Endpoint for RdmaEndpoint {
    fn connect(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SendWire>>, TransportError> {
        let asked = match self.wires.remove(&to) {
            Some(asked) => asked,
            None => self.offer(to, deadline)?,
        };
        let Some(accepted) = asked.answer()? else {
            self.wires.insert(to, asked);
            return Ok(None);
        };
        Ok(Some(Box::new(self.wire(to, asked.prepared, accepted)?)))
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

    fn lending(&self) -> LendingStats {
        self.shared.local.cache.lending()
    }

    fn windows(&mut self) -> Option<&mut dyn Windows> {
        self.shared.local.card.has_atomics.then_some(self)
    }
}

impl Windows for RdmaEndpoint {
    fn is_for_all(&self) -> bool {
        self.shared.peers.iter().flatten().all(|peer| peer.card.has_atomics)
    }

    fn expose(&mut self, bytes: usize, signals: usize) -> Result<LocalWindow, TransportError> {
        window::expose(&self.shared.local, bytes, signals)
    }

    fn import(
        &mut self,
        peer: usize,
        descriptor: &[u8],
    ) -> Result<Option<Box<dyn RemoteWindow>>, TransportError> {
        let asked = match self.doors.remove(&peer) {
            Some(asked) => asked,
            None => self.ask_for_door(peer, descriptor)?,
        };
        let Some((_, accepted)) = asked.answer()? else {
            self.doors.insert(peer, asked);
            return Ok(None);
        };
        let Door { descriptor, key, place, theirs, mut end } = asked.prepared;
        let corrupt = |what: &str| TransportError::Corrupt { peer, what: what.into() };
        let [accepted] = accepted[..] else { return Err(corrupt("a door of several")) };
        let local = &self.shared.local;
        end.connect(local, &theirs, &accepted.half)?;
        let staging = MemoryRegion::new(domain(local, place), &Imported::staging(), Access::Local);
        let staging = staging.map_err(failed)?;
        let whom = (Arc::clone(local), peer, theirs);
        let (what, how) = ((descriptor, key), (end, staging, self.hand()));
        Ok(Some(Box::new(Imported::new(whom, what, how))))
    }
}

/// One end of a queue pair to a peer's window.
struct Door {
    descriptor: Descriptor,
    key: u32,
    place: usize,
    theirs: Address,
    end: End,
}

impl RdmaEndpoint {
    /// Ask a peer to open the door to the window that it described.
    fn ask_for_door(&self, peer: usize, descriptor: &[u8]) -> Result<Asked<Door>, TransportError> {
        let corrupt = |what: &str| TransportError::Corrupt { peer, what: what.into() };
        let descriptor = Descriptor::parse(descriptor)
            .ok_or_else(|| corrupt("a window descriptor that is not ours"))?;
        let Shared { local, .. } = &*self.shared;
        let card = &self.shared.peer(peer).card;
        let chosen = choose(&local.card, card, self.me, peer, 0);
        let (place, row) = chosen.ok_or_else(|| corrupt("there is no way to its windows"))?;
        let theirs = card.addresses[row];
        let key = descriptor.key(theirs.device);
        let key = key.ok_or_else(|| corrupt("a window without a key for its device"))?;
        let device = &local.places[place].device;
        let arrivals =
            CompletionQueue::new(device, window::LIMITS.receives, None).map_err(failed)?;
        let end = End::open(local, place, window::LIMITS, arrivals)?;
        let stripe = OfferedStripe { ours: place as u8, theirs: row as u8, half: end.half() };
        let door = Door { descriptor, key, place, theirs, end };
        Ok(self.ask(peer, door, Frame::Door { stripe }, Instant::now() + DOOR))
    }
}
