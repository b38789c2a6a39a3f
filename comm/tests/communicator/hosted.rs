//! A transport that reaches only some of the ranks, lacks windows, fails to join a group, opens no
//! wires, or wires that cannot count: what other hosts would have, and what users may write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use brigade_transports::{
    Caps, Doorbell, Endpoint, Group, LocalWindow, Port, RecvWire, RemoteWindow, SendWire,
    Transport, TransportError, Unavailable, Windows,
};

/// Another transport, on so many hosts: the first rank that opens it is on the first, and so on,
/// round and round.
pub(crate) struct Hosted {
    inner: Arc<dyn Transport>,
    hosts: usize,
    /// What the first port lacks, and what all others do.
    first: Lacks,
    others: Lacks,
    opened: AtomicUsize,
}

/// How many groups ports of this process were told to forget.
pub(crate) static FORGOTTEN: AtomicUsize = AtomicUsize::new(0);

/// What a port does not have.
#[derive(Clone, Copy, Default)]
struct Lacks {
    windows: bool,
    /// Another one has none.
    windows_of_all: bool,
    /// Whoever it dials does not answer.
    wires: bool,
    /// What its wires take, they say, is a byte more than that.
    honesty: bool,
    /// The group that it does not join: its second one, say.
    group: Option<usize>,
}

impl Hosted {
    pub(crate) fn transport(
        inner: Arc<dyn Transport>,
        hosts: usize,
        has_windows: bool,
    ) -> Arc<dyn Transport> {
        let lacks = Lacks { windows: !has_windows, ..Lacks::default() };
        Self::lacking(inner, hosts, lacks, lacks)
    }

    /// The first rank that opens it neither has windows nor reaches those of others.
    pub(crate) fn without_windows_on_one(inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        let first = Lacks { windows: true, ..Lacks::default() };
        Self::lacking(inner, 1, first, Lacks { windows_of_all: true, ..Lacks::default() })
    }

    /// Whoever is dialled does not answer.
    pub(crate) fn without_wires(inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        let lacks = Lacks { wires: true, ..Lacks::default() };
        Self::lacking(inner, 1, lacks, lacks)
    }

    /// The wires of the first rank that opens it say to have taken a byte that they were not given.
    pub(crate) fn lying_at_first(inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        let first = Lacks { honesty: true, ..Lacks::default() };
        Self::lacking(inner, 1, first, Lacks::default())
    }

    /// The first rank that opens it cannot join the group of the world.
    pub(crate) fn refusing_at_first(inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        let first = Lacks { group: Some(0), ..Lacks::default() };
        Self::lacking(inner, 1, first, Lacks::default())
    }

    /// The first rank that opens it cannot join the group after that of the world.
    pub(crate) fn refusing_once(inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        let first = Lacks { group: Some(1), ..Lacks::default() };
        Self::lacking(inner, 1, first, Lacks::default())
    }

    fn lacking(
        inner: Arc<dyn Transport>,
        hosts: usize,
        first: Lacks,
        others: Lacks,
    ) -> Arc<dyn Transport> {
        Arc::new(Self { inner, hosts, first, others, opened: AtomicUsize::new(0) })
    }
}

impl Transport for Hosted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn probe(&self) -> Result<Caps, Unavailable> {
        self.inner.probe()
    }

    fn sends_in_the_open(&self) -> bool {
        self.inner.sends_in_the_open()
    }

    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError> {
        let inner = self.inner.open(secret)?;
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let host = (number % self.hosts) as u8;
        let lacks = if number == 0 { self.first } else { self.others };
        Ok(Box::new(HostedPort { inner, host, lacks, joined: AtomicUsize::new(0) }))
    }
}

struct HostedPort {
    inner: Box<dyn Port>,
    host: u8,
    lacks: Lacks,
    joined: AtomicUsize,
}

impl Port for HostedPort {
    fn card(&self) -> Vec<u8> {
        [vec![self.host], self.inner.card()].concat()
    }

    fn reaches(&self, card: &[u8]) -> bool {
        let (host, card) = card.split_first().expect("a card of ours");
        *host == self.host && self.inner.reaches(card)
    }

    fn is_of_all(&self) -> bool {
        self.inner.is_of_all()
    }

    fn join_while(
        &self,
        group: &Group<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        if self.lacks.group == Some(self.joined.fetch_add(1, Ordering::Relaxed)) {
            return Err(TransportError::Refused { why: "this test wants it so".into() });
        }
        let cards: Vec<_> = group.cards.iter().map(|card| card.map(|card| &card[1..])).collect();
        let inner = self.inner.join_while(&Group { cards: &cards, ..*group }, go_on)?;
        Ok(Box::new(HostedEndpoint { inner, lacks: self.lacks }))
    }

    fn forget(&self, group: u64) {
        FORGOTTEN.fetch_add(1, Ordering::Relaxed);
        self.inner.forget(group);
    }
}

struct HostedEndpoint {
    inner: Box<dyn Endpoint>,
    lacks: Lacks,
}

impl Endpoint for HostedEndpoint {
    fn connect(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Option<Box<dyn SendWire>>, TransportError> {
        if self.lacks.wires {
            if Instant::now() < deadline {
                return Ok(None);
            }
            return Err(TransportError::Timeout { what: format!("member {to}"), waited_ms: 0 });
        }
        let wire = self.inner.connect(to, deadline)?;
        Ok(match self.lacks.honesty {
            true => wire.map(|wire| Box::new(LyingWire(wire)) as Box<dyn SendWire>),
            false => wire,
        })
    }

    fn receiver(&mut self, from: usize) -> Result<Box<dyn RecvWire>, TransportError> {
        self.inner.receiver(from)
    }

    fn doorbell(&mut self) -> &mut dyn Doorbell {
        self.inner.doorbell()
    }

    fn check(&mut self) -> Result<(), TransportError> {
        self.inner.check()
    }

    fn windows(&mut self) -> Option<&mut dyn Windows> {
        let has_windows = !self.lacks.windows && self.inner.windows().is_some();
        has_windows.then_some(self)
    }
}

impl Windows for HostedEndpoint {
    fn is_for_all(&self) -> bool {
        !self.lacks.windows_of_all
    }

    fn expose(&mut self, bytes: usize, signals: usize) -> Result<LocalWindow, TransportError> {
        self.inner.windows().expect("it has some").expose(bytes, signals)
    }

    fn import(
        &mut self,
        peer: usize,
        descriptor: &[u8],
    ) -> Result<Option<Box<dyn RemoteWindow>>, TransportError> {
        self.inner.windows().expect("it has some").import(peer, descriptor)
    }
}

/// It takes headers honestly, so that the lie is one of what comes with them or behind.
struct LyingWire(Box<dyn SendWire>);

impl SendWire for LyingWire {
    fn push(&mut self, bytes: &[u8]) -> Result<usize, TransportError> {
        const HEADER_BYTES: usize = 32;
        let taken = self.0.push(bytes)?;
        Ok(taken + usize::from(bytes.len() != HEADER_BYTES && taken == bytes.len()))
    }
}
