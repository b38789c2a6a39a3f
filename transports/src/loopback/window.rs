//! Memory that other members write: behind a lock, with remote writes that take time to land.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::lock;
use super::wire::{CUT, Link};
use super::world::Shared;
use crate::{RemoteWindow, TransportError, WindowMemory};

/// A window, as all members see it.
pub(super) struct Exposed {
    bytes: usize,
    signals: usize,
    contents: Mutex<Contents>,
}

struct Contents {
    memory: Vec<u8>,
    counters: Vec<u64>,
    /// What each member has started and has not landed yet, in its order, with its moment.
    flying: Vec<VecDeque<(u64, Action)>>,
}

enum Action {
    Put { offset: usize, bytes: Vec<u8> },
    Add { index: usize, add: u64 },
}

impl Exposed {
    pub(super) fn new(bytes: usize, signals: usize, members: usize) -> Self {
        let contents = Contents {
            memory: vec![0; bytes],
            counters: vec![0; signals],
            flying: (0..members).map(|_| VecDeque::new()).collect(),
        };
        Self { bytes, signals, contents: Mutex::new(contents) }
    }

    /// What names window `number` of member `owner` of `group`: 40 bytes.
    pub(super) fn descriptor(&self, group: u64, owner: usize, number: usize) -> Vec<u8> {
        let words = [group, owner as u64, number as u64, self.bytes as u64, self.signals as u64];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn assert_range(&self, offset: usize, bytes: usize) {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{bytes} bytes at {offset} of a window of {} bytes",
            self.bytes
        );
    }

    fn assert_signal(&self, index: usize) {
        assert!(index < self.signals, "counter {index} of {}", self.signals);
    }
}

impl Contents {
    /// Let land what has arrived by `now_ns`.
    fn settle(&mut self, now_ns: u64) {
        for member in 0..self.flying.len() {
            while self.flying[member].front().is_some_and(|(at_ns, _)| *at_ns <= now_ns) {
                self.land_next_of(member);
            }
        }
    }

    /// Let land what `member` has started, arrived or not.
    fn settle_all_of(&mut self, member: usize) {
        while !self.flying[member].is_empty() {
            self.land_next_of(member);
        }
    }

    fn land_next_of(&mut self, member: usize) {
        let (_, action) = self.flying[member].pop_front().expect("the caller looked");
        self.land(action);
    }

    fn land(&mut self, action: Action) {
        match action {
            Action::Put { offset, bytes } => {
                self.memory[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
            Action::Add { index, add } => {
                self.counters[index] = self.counters[index].wrapping_add(add);
            }
        }
    }
}

/// The owner's view.
pub(super) struct OwnWindow {
    shared: Arc<Shared>,
    window: Arc<Exposed>,
}

impl OwnWindow {
    pub(super) fn new(shared: Arc<Shared>, window: Arc<Exposed>) -> Self {
        Self { shared, window }
    }

    fn settled<T>(&self, use_it: impl FnOnce(&mut Contents) -> T) -> T {
        let mut contents = lock(&self.window.contents);
        if self.shared.settings.delayed() {
            contents.settle(self.shared.timeline.now_ns());
        }
        use_it(&mut contents)
    }
}

impl WindowMemory for OwnWindow {
    fn read(&self, offset: usize, target: &mut [u8]) {
        self.window.assert_range(offset, target.len());
        self.settled(|it| target.copy_from_slice(&it.memory[offset..offset + target.len()]));
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.window.assert_range(offset, bytes.len());
        self.settled(|it| it.memory[offset..offset + bytes.len()].copy_from_slice(bytes));
    }

    fn signal(&self, index: usize) -> u64 {
        self.window.assert_signal(index);
        self.settled(|it| it.counters[index])
    }
}

/// Another member's view.
pub(super) struct Imported {
    /// From me to the owner. Its wire is not used, only what it knows of the two.
    link: Link,
    window: Arc<Exposed>,
    rng: fastrand::Rng,
}

impl Imported {
    pub(super) fn new(link: Link, window: Arc<Exposed>, number: usize) -> Self {
        let rng = link.generator(2 + number as u64);
        Self { link, window, rng }
    }

    fn assert_owner_there(&self) -> Result<(), TransportError> {
        let peer = self.link.to;
        if self.link.is_cut() {
            return Err(TransportError::PeerGone { peer, how: CUT.into() });
        }
        if self.link.members.has_left(peer) {
            return Err(TransportError::PeerGone { peer, how: "it left the group".into() });
        }
        Ok(())
    }

    /// Start an action, after everything that this member started before.
    fn start(&mut self, action: Action) {
        let mut contents = lock(&self.window.contents);
        let before = contents.flying[self.link.from].back().map_or(0, |(at_ns, _)| *at_ns);
        let at_ns = self.link.arrival_ns(before, &mut self.rng);
        if self.link.settings().delayed() {
            contents.flying[self.link.from].push_back((at_ns, action));
        } else {
            contents.land(action);
        }
    }
}

impl RemoteWindow for Imported {
    fn size(&self) -> (usize, usize) {
        (self.window.bytes, self.window.signals)
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) -> Result<(), TransportError> {
        self.window.assert_range(offset, bytes.len());
        self.assert_owner_there()?;
        self.start(Action::Put { offset, bytes: bytes.to_vec() });
        Ok(())
    }

    fn get(&mut self, offset: usize, target: &mut [u8]) -> Result<(), TransportError> {
        self.window.assert_range(offset, target.len());
        self.assert_owner_there()?;
        let mut contents = lock(&self.window.contents);
        contents.settle(self.link.shared.timeline.now_ns());
        // A read follows this member's own writes, as on one connection of a network card.
        contents.settle_all_of(self.link.from);
        target.copy_from_slice(&contents.memory[offset..offset + target.len()]);
        Ok(())
    }

    fn signal(&mut self, index: usize, add: u64) -> Result<(), TransportError> {
        self.window.assert_signal(index);
        self.assert_owner_there()?;
        self.start(Action::Add { index, add });
        self.link.members.bells[self.link.to].ring();
        Ok(())
    }
}
