//! A transport that reaches only some of the ranks, lacks windows, or fails to join a group: what
//! other hosts would have.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use brigade_transports::{
    Caps, Doorbell, Endpoint, Group, Port, RecvWire, SendWire, Transport, TransportError,
    Unavailable, Windows,
};

/// Another transport, on so many hosts: the first rank that opens it is on the first, and so on,
/// round and round.
pub(crate) struct Hosted {
    inner: Arc<dyn Transport>,
    hosts: usize,
    has_windows: bool,
    /// The group that the first port does not join: its second one, say.
    refused: Option<usize>,
    opened: AtomicUsize,
}

impl Hosted {
    pub(crate) fn transport(
        inner: Arc<dyn Transport>,
        hosts: usize,
        has_windows: bool,
    ) -> Arc<dyn Transport> {
        Arc::new(Self { inner, hosts, has_windows, refused: None, opened: AtomicUsize::new(0) })
    }

    /// The first rank that opens it cannot join the group after that of the world.
    pub(crate) fn refusing_once(inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        let opened = AtomicUsize::new(0);
        Arc::new(Self { inner, hosts: 1, has_windows: true, refused: Some(1), opened })
    }
}

impl Transport for Hosted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn probe(&self) -> Result<Caps, Unavailable> {
        self.inner.probe()
    }

    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError> {
        let inner = self.inner.open(secret)?;
        let number = self.opened.fetch_add(1, Ordering::Relaxed);
        let (host, refused) = ((number % self.hosts) as u8, self.refused.filter(|_| number == 0));
        let joined = AtomicUsize::new(0);
        Ok(Box::new(HostedPort { inner, host, has_windows: self.has_windows, refused, joined }))
    }
}

struct HostedPort {
    inner: Box<dyn Port>,
    host: u8,
    has_windows: bool,
    refused: Option<usize>,
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

    fn join(&self, group: &Group<'_>) -> Result<Box<dyn Endpoint>, TransportError> {
        if self.refused == Some(self.joined.fetch_add(1, Ordering::Relaxed)) {
            return Err(TransportError::Refused { why: "this test wants it so".into() });
        }
        let cards: Vec<_> = group.cards.iter().map(|card| card.map(|card| &card[1..])).collect();
        let inner = self.inner.join(&Group { cards: &cards, ..*group })?;
        Ok(Box::new(HostedEndpoint { inner, has_windows: self.has_windows }))
    }
}

struct HostedEndpoint {
    inner: Box<dyn Endpoint>,
    has_windows: bool,
}

impl Endpoint for HostedEndpoint {
    fn caps(&self) -> Caps {
        self.inner.caps()
    }

    fn sender(
        &mut self,
        to: usize,
        deadline: Instant,
    ) -> Result<Box<dyn SendWire>, TransportError> {
        self.inner.sender(to, deadline)
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
        self.inner.windows().filter(|_| self.has_windows)
    }
}
