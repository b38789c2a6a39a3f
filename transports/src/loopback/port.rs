//! Cards, ports, and how the members of a group find each other.

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::bell::Bell;
use super::endpoint::LoopbackEndpoint;
use super::lock;
use super::window::Exposed;
use super::wire::Wire;
use super::world::Shared;
use crate::{Endpoint, Group, Port, TransportError};

/// Where one rank of the world joins groups.
pub(super) struct LoopbackPort {
    shared: Arc<Shared>,
    rank: usize,
    secret: [u8; 32],
}

impl LoopbackPort {
    pub(super) fn new(shared: Arc<Shared>, rank: usize, secret: [u8; 32]) -> Self {
        Self { shared, rank, secret }
    }
}

impl Port for LoopbackPort {
    fn card(&self) -> Vec<u8> {
        let rank = u32::try_from(self.rank).expect("World::new checked it");
        Card { world: self.shared.id, rank }.to_bytes()
    }

    fn reaches(&self, card: &[u8]) -> bool {
        self.rank_of(card).is_some()
    }

    /// Never waits: the wires of a group are there as soon as one member is.
    fn join_while(
        &self,
        group: &Group<'_>,
        _: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        assert!(group.me < group.cards.len(), "member {} of {}", group.me, group.cards.len());
        let mut ranks = Vec::with_capacity(group.cards.len());
        for (member, card) in group.cards.iter().enumerate() {
            let rank = card.map(|card| {
                self.rank_of(card).ok_or_else(|| TransportError::Refused {
                    why: format!("the card of member {member} is not of this loopback world"),
                })
            });
            ranks.push(rank.transpose()?);
        }
        assert_eq!(ranks[group.me], Some(self.rank), "the card of member {} is ours", group.me);
        let members = self.enter(group.id, ranks)?;
        members.enter(group.id, group.me);
        Ok(Box::new(LoopbackEndpoint::new(self.shared.clone(), members, group.id, group.me)))
    }
}

impl LoopbackPort {
    /// The rank behind a card, if it is one of this world.
    fn rank_of(&self, card: &[u8]) -> Option<usize> {
        let card = Card::parse(card)?;
        let rank = usize::try_from(card.rank).ok()?;
        (card.world == self.shared.id && rank < self.shared.ranks).then_some(rank)
    }

    /// Find the group, or found it.
    fn enter(&self, id: u64, ranks: Vec<Option<usize>>) -> Result<Arc<Members>, TransportError> {
        let mut groups = lock(&self.shared.groups);
        let members = match groups.entry(id) {
            Entry::Vacant(vacant) => vacant.insert(Arc::new(Members::new(self.secret, ranks))),
            Entry::Occupied(found) => {
                let found = found.into_mut();
                if found.secret != self.secret {
                    return Err(TransportError::Refused {
                        why: format!(
                            "rank {} was opened with another job secret than the members of \
                             group {id}; start all ranks with the same secret",
                            self.rank
                        ),
                    });
                }
                if found.ranks != ranks {
                    return Err(TransportError::Refused {
                        why: format!(
                            "rank {} lists the members of group {id} as {ranks:?}, others as \
                             {:?}; all must pass the same members in the same order",
                            self.rank, found.ranks
                        ),
                    });
                }
                found
            }
        };
        Ok(members.clone())
    }
}

/// What a card says: 16 bytes, a mark, the rank and the world.
struct Card {
    world: u64,
    rank: u32,
}

impl Card {
    const MARK: [u8; 4] = *b"loop";

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Self::MARK.to_vec();
        bytes.extend(self.rank.to_le_bytes());
        bytes.extend(self.world.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (mark, rest) = bytes.split_first_chunk()?;
        let (rank, rest) = rest.split_first_chunk()?;
        let (world, rest) = rest.split_first_chunk()?;
        let card = Self { world: u64::from_le_bytes(*world), rank: u32::from_le_bytes(*rank) };
        (*mark == Self::MARK && rest.is_empty()).then_some(card)
    }
}

/// What the members of one group share. It stays until all of them have come and gone, so that
/// what an early leaver sent is still there for a late comer.
pub(super) struct Members {
    secret: [u8; 32],
    /// The rank behind each member; `None` for members served by another transport.
    pub(super) ranks: Vec<Option<usize>>,
    pub(super) bells: Vec<Arc<Bell>>,
    /// What each member exposes.
    pub(super) windows: Mutex<Vec<Vec<Arc<Exposed>>>>,
    entered: Vec<AtomicBool>,
    left: Vec<AtomicBool>,
    staying: AtomicUsize,
    /// The wire from `a` to `b` is number `a * members + b`, made when one of them asks for it.
    wires: Vec<OnceLock<Arc<Wire>>>,
}

impl Members {
    fn new(secret: [u8; 32], ranks: Vec<Option<usize>>) -> Self {
        let count = ranks.len();
        Self {
            secret,
            bells: (0..count).map(|_| Arc::default()).collect(),
            windows: Mutex::new((0..count).map(|_| Vec::new()).collect()),
            entered: (0..count).map(|_| AtomicBool::new(false)).collect(),
            left: (0..count).map(|_| AtomicBool::new(false)).collect(),
            staying: AtomicUsize::new(ranks.iter().flatten().count()),
            wires: (0..count * count).map(|_| OnceLock::new()).collect(),
            ranks,
        }
    }

    fn enter(&self, id: u64, member: usize) {
        let before = self.entered[member].swap(true, Ordering::SeqCst);
        assert!(!before, "member {member} joined group {id} twice; numbers are never used again");
    }

    /// Note that `member` will send and pull no more. Returns whether it was the last.
    pub(super) fn leave(&self, member: usize) -> bool {
        let before = self.left[member].swap(true, Ordering::SeqCst);
        assert!(!before, "member {member} left twice");
        lock(&self.windows)[member].clear();
        self.ring_all();
        self.staying.fetch_sub(1, Ordering::SeqCst) == 1
    }

    pub(super) fn has_left(&self, member: usize) -> bool {
        self.left[member].load(Ordering::SeqCst)
    }

    pub(super) fn wire(&self, from: usize, to: usize) -> Arc<Wire> {
        let number = from * self.ranks.len() + to;
        self.wires[number].get_or_init(|| Arc::new(Wire::default())).clone()
    }

    pub(super) fn ring_all(&self) {
        for bell in &self.bells {
            bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Card;

    #[test]
    fn cards_of_wrong_length_or_mark_are_not_cards() {
        let good = Card { world: 5, rank: 3 }.to_bytes();
        assert!(Card::parse(&good).is_some_and(|card| card.world == 5 && card.rank == 3));
        for length in 0..good.len() {
            assert!(Card::parse(&good[..length]).is_none());
        }
        assert!(Card::parse(&[&good[..], &[0]].concat()).is_none());
        assert!(Card::parse(&[b"LOOP", &good[4..]].concat()).is_none());
    }
}
