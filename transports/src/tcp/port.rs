//! One rank's listener and card, and what it has in each communicator.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::bell::Bell;
use super::card::Card;
use super::dial::Call;
use super::dialler::Dialler;
use super::listen::{Bound, Listener};
use super::pairs::{Links, Pair};
use super::route::Routes;
use super::shared::Shared;
use super::wire::{Receiver, Sender};
use super::{Settings, probe};
use crate::{Doorbell, Endpoint, Group, Port, RecvWire, SendWire, TransportError, Windows};

/// One rank's side of tcp.
pub(super) struct TcpPort {
    shared: Arc<Shared>,
    /// Stops when the port is dropped.
    _listener: Listener,
}

impl TcpPort {
    /// Listen, and describe where.
    pub(super) fn open(
        settings: Settings,
        routes: Arc<Routes>,
        secret: [u8; 32],
    ) -> Result<TcpPort, TransportError> {
        let interfaces = probe::usable_interfaces(&settings)?;
        let bound = Bound::new(settings.ports.as_ref())?;
        let card = probe::card(&interfaces, bound.port4, bound.port6)?;
        let links = Links::default();
        let shared = Arc::new(Shared { card, secret, settings, interfaces, links, routes });
        let _listener = Listener::start(bound, shared.clone())?;
        Ok(TcpPort { shared, _listener })
    }
}

impl Port for TcpPort {
    fn card(&self) -> Vec<u8> {
        self.shared.card.serialise()
    }

    fn reaches(&self, card: &[u8]) -> bool {
        Card::parse(card).is_ok_and(|theirs| self.shared.card.reaches(&theirs))
    }

    fn join_while(
        &self,
        group: &Group<'_>,
        _: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        assert!(group.me < group.cards.len());
        let corrupt = |peer, what: &str| TransportError::Corrupt { peer, what: what.into() };
        let parse = |(peer, card): (usize, &Option<&[u8]>)| {
            card.map(|card| Card::parse(card).map_err(|what| corrupt(peer, what))).transpose()
        };
        let cards: Vec<_> = group.cards.iter().enumerate().map(parse).collect::<Result<_, _>>()?;
        let bell = Bell::new()?;
        let joined = self.shared.links.join(group.id, bell.set.clone());
        joined.map_err(|error| TransportError::from_io("epoll_ctl", &error, "joining"))?;
        let shared = self.shared.clone();
        let (group, me, diallers) = (group.id, group.me, HashMap::new());
        Ok(Box::new(TcpEndpoint { shared, group, me, cards, bell, diallers }))
    }

    fn forget(&self, group: u64) {
        self.shared.links.leave(group);
    }
}

/// One communicator's links.
struct TcpEndpoint {
    shared: Arc<Shared>,
    group: u64,
    me: usize,
    cards: Vec<Option<Card>>,
    bell: Bell,
    /// By member.
    diallers: HashMap<usize, Dialler>,
}

impl TcpEndpoint {
    fn dial(
        &self,
        to: usize,
        pair: &Arc<Pair>,
        deadline: Instant,
    ) -> Result<Dialler, TransportError> {
        let theirs = self.cards[to].clone().expect("the caller asks for members with cards");
        let (shared, pair) = (Arc::clone(&self.shared), Arc::clone(pair));
        let (group, me) = (self.group, self.me);
        Dialler::start(deadline, |patience| Call { shared, pair, group, me, to, theirs, patience })
    }
}

impl Endpoint for TcpEndpoint {
    fn connect(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SendWire>>, TransportError> {
        let pair = self.shared.links.pair(self.group, to as u32).expect("we have not left");
        if pair.link().is_none() {
            match self.diallers.remove(&to) {
                None => {
                    let dialler = self.dial(to, &pair, deadline)?;
                    self.diallers.insert(to, dialler);
                    return Ok(None);
                }
                Some(dialler) if !dialler.has_ended() => {
                    self.diallers.insert(to, dialler);
                    return Ok(None);
                }
                Some(dialler) => dialler.outcome()?,
            }
        }
        // Whoever made it, what is still under way about it is over now.
        self.diallers.remove(&to);
        let link = Arc::clone(pair.link().expect("dialling has ended well"));
        let rings = self.shared.links.stands(self.group, &link);
        rings.map_err(|error| TransportError::from_io("epoll_ctl", &error, "taking a link"))?;
        Ok(Some(Box::new(Sender::new(to, link, self.shared.settings.segment_bytes)?)))
    }

    fn receiver(&mut self, from: usize) -> Result<Box<dyn RecvWire>, TransportError> {
        assert!(self.cards[from].is_some(), "the caller asks for members with cards");
        let pair = self.shared.links.pair(self.group, from as u32).expect("we have not left");
        Ok(Box::new(Receiver::new(from, pair, self.bell.armings.clone())))
    }

    fn doorbell(&mut self) -> &mut dyn Doorbell {
        &mut self.bell
    }

    fn check(&mut self) -> Result<(), TransportError> {
        // A dead peer's sockets are closed by its kernel, which rings and shows in push and pull.
        // A closed socket on which nothing is awaited is no fault: its owner may just be done.
        self.shared.links.check(self.group)
    }

    fn windows(&mut self) -> Option<&mut dyn Windows> {
        None
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        self.diallers.values().for_each(Dialler::call_off);
        self.diallers.clear();
        self.shared.links.leave(self.group);
    }
}
