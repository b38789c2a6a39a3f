//! One communicator's share: its peers, its wires and its bell.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use brigade_verbs::{Access, CompletionQueue, Memory, MemoryRegion, Remote};

use super::bell::{Bell, Chimes};
use super::card::{Address, Card, choose};
use super::exchange::Exchange;
use super::failed;
use super::frame::{Accepted, Frame, OfferedStripe, RING_BYTES_MIN, STRIPES_MAX};
use super::hand::{Hand, Request};
use super::lane::Lane;
use super::local::{Local, is_passing};
use super::path::{End, domain};
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
/// How long to rest before asking again where a port was down.
const REST: Duration = Duration::from_millis(50);

/// One communicator.
pub(super) struct RdmaEndpoint {
    me: usize,
    ring_bytes: usize,
    shared: Arc<Shared>,
    bell: Bell,
    exchange: Exchange,
    /// Wires that are on their way to being opened.
    wires: HashMap<usize, Opening>,
    /// Doors that members were asked for and have not answered about.
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

    /// Offer a wire to a peer, from those addresses on whose `turn` it is.
    fn offer(
        &self,
        to: usize,
        by: Turn,
        deadline: Instant,
    ) -> Result<Asked<PreparedWire>, TransportError> {
        let turn = by.number;
        let peer = self.shared.peer(to);
        let has_lent = Arc::default();
        let mut prepared: Vec<Prepared> = Vec::new();
        // A peer whose port is down takes none of several: then one, by each way in turn.
        let stripes = if turn == 0 { self.stripes(&peer.card) } else { 1 };
        for stripe in 0..stripes {
            match self.prepare(peer, &has_lent, turn + stripe) {
                Ok(stripe) => prepared.push(stripe),
                // With fewer it is a wire, too.
                Err(error) if is_passing(&error) && !prepared.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        let offered = prepared.iter().map(|it| it.offered).collect();
        let frame = Frame::Offer { ring_bytes: self.ring_bytes as u32, stripes: offered };
        Ok(self.ask(to, PreparedWire { has_lent, prepared, turn: by }, frame, deadline))
    }

    /// Prepare a queue pair at the addresses whose `turn` it is, or else at the next whose port
    /// can be used.
    fn prepare(
        &self,
        peer: &Peer,
        has_lent: &Arc<AtomicBool>,
        turn: usize,
    ) -> Result<Prepared, TransportError> {
        let ways = self.shared.local.card.devices().max(peer.card.devices()).max(1);
        let mut tries =
            (0..ways).map(|next| Prepared::new(&self.shared, peer, has_lent, turn + next));
        let first = tries.next().expect("there is at least one");
        match first {
            Err(error) if is_passing(&error) => tries.find_map(Result::ok).ok_or(error),
            first => first,
        }
    }

    /// Ask again in a moment where a port was down, by other addresses if there are any; for as
    /// long as a path may be gone that is in use.
    fn rest_or(
        &mut self,
        error: TransportError,
        to: usize,
        Turn { number, since }: Turn,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SendWire>>, TransportError> {
        let (now, patience) = (Instant::now(), self.shared.local.settings.reconnect);
        if !is_passing(&error) || now >= deadline || now - since >= patience {
            return Err(error);
        }
        let turn = Turn { number: number + 1, since };
        self.wires.insert(to, Opening::Rests { until: now + REST, turn });
        Ok(None)
    }

    /// The wire that a peer has accepted.
    fn wire(
        &self,
        to: usize,
        PreparedWire { has_lent, prepared, .. }: PreparedWire,
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

/// A wire that is not there yet.
enum Opening {
    Asked(Asked<PreparedWire>),
    /// A port was down, here or there.
    Rests {
        until: Instant,
        turn: Turn,
    },
}

/// How often a wire was asked for in vain, and since when.
#[derive(Clone, Copy)]
struct Turn {
    number: usize,
    since: Instant,
}

/// What a wire will be made of.
struct PreparedWire {
    /// Whether anything is lent to it.
    has_lent: Arc<AtomicBool>,
    prepared: Vec<Prepared>,
    turn: Turn,
}

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
        let turn = match self.wires.get(&to) {
            Some(Opening::Rests { until, .. }) if Instant::now() < *until => return Ok(None),
            Some(Opening::Rests { turn, .. }) => *turn,
            _ => Turn { number: 0, since: Instant::now() },
        };
        let asked = match self.wires.remove(&to) {
            Some(Opening::Asked(asked)) => asked,
            _ => match self.offer(to, turn, deadline) {
                Ok(asked) => asked,
                Err(error) => return self.rest_or(error, to, turn, deadline),
            },
        };
        match asked.answer() {
            Ok(Some(accepted)) => Ok(Some(Box::new(self.wire(to, asked.prepared, accepted)?))),
            Ok(None) => {
                self.wires.insert(to, Opening::Asked(asked));
                Ok(None)
            }
            Err(error) => self.rest_or(error, to, asked.prepared.turn, deadline),
        }
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
