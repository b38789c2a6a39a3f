//! One member's share of a group.

use std::sync::Arc;
use std::time::Instant;

use super::bell::Listener;
use super::lock;
use super::port::Members;
use super::receiver::Receiver;
use super::sender::Sender;
use super::window::{Exposed, Imported, OwnWindow};
use super::wire::Link;
use super::world::Shared;
use crate::{
    Doorbell, Endpoint, LocalWindow, RecvWire, RemoteWindow, SendWire, TransportError, Windows,
};

pub(super) struct LoopbackEndpoint {
    shared: Arc<Shared>,
    members: Arc<Members>,
    group: u64,
    me: usize,
    listener: Listener,
    /// Which wires were asked for already: from me, and to me.
    given: [Vec<bool>; 2],
}

impl LoopbackEndpoint {
    pub(super) fn new(shared: Arc<Shared>, members: Arc<Members>, group: u64, me: usize) -> Self {
        let listener = Listener::new(shared.clone(), members.bells[me].clone());
        let given = [vec![false; members.ranks.len()], vec![false; members.ranks.len()]];
        Self { shared, members, group, me, listener, given }
    }

    /// The wire between two members, one of which is me.
    fn link(&self, from: usize, to: usize) -> Link {
        Link::new(self.shared.clone(), self.members.clone(), self.group, from, to)
    }

    /// Assert that this end of the wire with `peer` may be asked for, once.
    fn give(&mut self, direction: usize, peer: usize) {
        assert_ne!(peer, self.me, "there is no wire from a member to itself");
        assert!(self.members.ranks[peer].is_some(), "member {peer} is served by another transport");
        let given = &mut self.given[direction][peer];
        assert!(!*given, "an end of a wire is asked for once, that with member {peer} was twice");
        *given = true;
    }
}

impl Endpoint for LoopbackEndpoint {
    fn connect(
        &mut self,
        to: usize,
        _deadline: Instant,
    ) -> Result<Option<Box<dyn SendWire>>, TransportError> {
        self.give(0, to);
        Ok(Some(Box::new(Sender::new(self.link(self.me, to)))))
    }

    fn receiver(&mut self, from: usize) -> Result<Box<dyn RecvWire>, TransportError> {
        self.give(1, from);
        Ok(Box::new(Receiver::new(self.link(from, self.me))))
    }

    fn doorbell(&mut self) -> &mut dyn Doorbell {
        &mut self.listener
    }

    fn check(&mut self) -> Result<(), TransportError> {
        let ranks = &self.members.ranks;
        let cut = |member: usize| ranks[member].is_some_and(|rank| self.shared.is_cut(rank));
        let i_am_cut = cut(self.me);
        match (0..ranks.len()).find(|&member| {
            member != self.me && ranks[member].is_some() && (i_am_cut || cut(member))
        }) {
            Some(peer) => Err(TransportError::PeerGone { peer, how: super::wire::CUT.into() }),
            None => Ok(()),
        }
    }

    fn windows(&mut self) -> Option<&mut dyn Windows> {
        Some(self)
    }
}

impl Windows for LoopbackEndpoint {
    fn expose(&mut self, bytes: usize, signals: usize) -> Result<LocalWindow, TransportError> {
        let mut windows = lock(&self.members.windows);
        let window = Arc::new(Exposed::new(bytes, signals, self.members.ranks.len()));
        let descriptor = window.descriptor(self.group, self.me, windows[self.me].len());
        windows[self.me].push(window.clone());
        Ok(LocalWindow {
            descriptor,
            memory: Box::new(OwnWindow::new(self.shared.clone(), window)),
        })
    }

    fn import(
        &mut self,
        peer: usize,
        descriptor: &[u8],
    ) -> Result<Option<Box<dyn RemoteWindow>>, TransportError> {
        assert_ne!(peer, self.me, "our own windows need no import");
        let windows = lock(&self.members.windows);
        let found = windows[peer]
            .iter()
            .enumerate()
            .find(|(number, window)| window.descriptor(self.group, peer, *number) == descriptor);
        match found {
            Some((number, window)) => {
                let link = self.link(self.me, peer);
                Ok(Some(Box::new(Imported::new(link, window.clone(), number))))
            }
            None => Err(TransportError::Corrupt {
                peer,
                what: format!(
                    "{} bytes that describe none of its {} windows",
                    descriptor.len(),
                    windows[peer].len()
                ),
            }),
        }
    }
}

impl Drop for LoopbackEndpoint {
    fn drop(&mut self) {
        if self.members.leave(self.me) {
            lock(&self.shared.groups).remove(&self.group);
        }
    }
}
