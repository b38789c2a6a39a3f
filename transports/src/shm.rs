//! Ranks of one host pass bytes through memory that they share.
//!
//! | file | what it knows |
//! |---|---|
//! | `probe`    | which host this is, and what a card says |
//! | `link`     | how the region's descriptor gets from one rank to the others |
//! | `patience` | for how long a rank waits for it |
//! | `area`     | one group's memory: who has left, and what is given back then |
//! | `directory`| what the region holds: areas, found by a key |
//! | `held`     | what ranks of one process hold together |
//! | `region`   | looking into shared memory |
//! | `layout`   | where things lie in a group's area |
//! | `order`    | which word is written after which; proved by a model checker |
//! | `wire`     | the hot path |
//! | `pace`     | whether payload is written through the cache or past it |
//! | `bell`     | sleeping and waking |
//! | `window`   | memory that peers write directly |
//! | `endpoint` | one communicator: all of the above put together |
//! | `sys`      | the system calls |
//!
//! Nothing here has a name in any folder: the region is a sealed memory file that is passed over a
//! socket in the abstract namespace, so a killed rank leaves nothing behind, and `/dev/shm`, with
//! its quota, is not used.

mod area;
mod bell;
mod directory;
mod endpoint;
mod held;
mod layout;
mod link;
mod order;
mod pace;
mod patience;
mod probe;
mod region;
mod sys;
mod window;
mod wire;

/// The atomics that `order` is written with; its model checker brings others.
mod atomic {
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use sha2::{Digest, Sha256};

use crate::{CARD_BYTES_MAX, Caps, Endpoint, Group, Port, Transport, TransportError, Unavailable};
use directory::{KEY_MIN, Region};
use endpoint::{Seats, ShmEndpoint};
use layout::Layout;
use link::{Listener, Made};
use patience::Patience;
use probe::{Card, Name};

const NAME: &str = "shm";

/// How much memory the rings of a group may take. All ranks of a world use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What all rings towards one rank may hold together, in bytes.
    pub inbound_bytes: usize,
    /// What one ring may hold at the most, in bytes; at least 16 KiB.
    pub ring_bytes: usize,
    /// The most that is copied before the receiver is told, in bytes; at least 4 KiB and a
    /// multiple of 64.
    pub piece_bytes: usize,
}

impl Default for Settings {
    /// All rings towards a rank are together somewhat larger than the cache of one core: an
    /// all-reduce of 1 MiB between two near cores of an EPYC with 1 MiB each took 115 us with
    /// 512 KiB, 67 us with 1 to 2 MiB, 81 us with 4 MiB. A likely reason, not measured: lines that
    /// are written again then come from the cache that the cores share, not from that of the core
    /// that read them. Where four ranks shared two cores, 4 MiB took half as long again with 3 MiB
    /// for each rank, and twice as long with 6 MiB.
    fn default() -> Self {
        Self { inbound_bytes: 2 << 20, ring_bytes: 2 << 20, piece_bytes: 64 << 10 }
    }
}

/// The transport.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shm {
    settings: Settings,
}

impl Shm {
    /// With the usual settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// With settings of the caller's.
    ///
    /// # Panics
    /// When a setting is out of the bounds that its documentation names.
    pub fn with(settings: Settings) -> Self {
        assert!(settings.ring_bytes >= 16 << 10);
        assert!(settings.piece_bytes >= 4 << 10 && settings.piece_bytes.is_multiple_of(64));
        Self { settings }
    }
}

impl Shm {
    fn port(&self, secret: [u8; 32]) -> Result<ShmPort, TransportError> {
        let card = Card::draw()?;
        let made = Arc::new(Made::by(card.name));
        let listener = Listener::open(&card, secret, made.clone())?;
        let held = Mutex::default();
        Ok(ShmPort { settings: self.settings, secret, card, held, made, _listener: listener })
    }
}

impl Transport for Shm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sends_in_the_open(&self) -> bool {
        false
    }

    fn probe(&self) -> Result<Caps, Unavailable> {
        let usable = probe::host_identity().and_then(|_| probe::memory_files());
        usable.map_err(|error| match error {
            TransportError::Unavailable(unavailable) => unavailable,
            other => {
                let (why, next_step) = (other.to_string(), "run the probe again".into());
                Unavailable { transport: NAME, why, next_step }
            }
        })?;
        Ok(Caps { latency_s: 2e-7, byte_s: 1e-10 })
    }

    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError> {
        Ok(Box::new(self.port(secret)?))
    }
}

/// One rank's membership of a world.
struct ShmPort {
    settings: Settings,
    secret: [u8; 32],
    card: Card,
    /// The regions of other ports, by the port's name.
    held: Mutex<HashMap<Name, Arc<Region>>>,
    made: Arc<Made>,
    _listener: Listener,
}

impl Port for ShmPort {
    fn card(&self) -> Vec<u8> {
        let bytes = self.card.to_bytes();
        assert!(bytes.len() <= CARD_BYTES_MAX);
        bytes
    }

    fn reaches(&self, card: &[u8]) -> bool {
        Card::parse(card).is_some_and(|card| card.host == self.card.host)
    }

    /// The memory of a group is found, laid out and given back by all of a host.
    fn is_of_all(&self) -> bool {
        true
    }

    fn join_while(
        &self,
        group: &Group<'_>,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Box<dyn Endpoint>, TransportError> {
        let seats = self.seats(group)?;
        let region = self.region(&seats, group.deadline, go_on)?;
        let layout = Layout::new(seats.count(), &self.settings);
        let place = (seats.ours, seats.count());
        let area = region.area(seats.key, layout.bytes(), place, group.deadline)?;
        Ok(Box::new(ShmEndpoint::new(area, layout, seats)))
    }
}

impl ShmPort {
    fn seats(&self, group: &Group<'_>) -> Result<Seats, TransportError> {
        let mut taken = Vec::with_capacity(group.cards.len());
        let mut ours = None;
        for (index, card) in group.cards.iter().enumerate() {
            let Some(bytes) = card else { continue };
            let card = Card::parse(bytes).filter(|card| card.host == self.card.host);
            let card = card.ok_or_else(|| TransportError::Corrupt {
                peer: index,
                what: "its card is not one that shared memory reaches".into(),
            })?;
            if index == group.me {
                assert_eq!(card.name, self.card.name, "the caller's card is not its own");
                ours = Some(taken.len() as u32);
            }
            taken.push((index, card));
        }
        let ours = ours.expect("the caller is a member of its group");
        let key = key_of(group.id, &taken);
        Ok(Seats { taken, ours, key })
    }

    /// The region that the members of a group use: that of the member with the least name. So the
    /// choice depends on nothing but the cards: not on the members' order, nor on what each of them
    /// joined before, or is joining meanwhile on another thread.
    fn region(
        &self,
        seats: &Seats,
        deadline: Instant,
        go_on: &mut dyn FnMut(usize) -> bool,
    ) -> Result<Arc<Region>, TransportError> {
        let host = seats.taken.iter().min_by_key(|(_, card)| card.name);
        let (index, card) = host.expect("the caller at least is a member");
        if card.name == self.card.name {
            return self.made.region_for(seats.taken.iter().map(|(_, card)| card.name));
        }
        let held = || self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(region) = held().get(&card.name) {
            return Ok(region.clone());
        }
        // Two threads may fetch the same region; both get the same.
        let patience = Patience::until(deadline, || go_on(*index));
        let region = link::fetch(card, *index, &self.secret, patience)?;
        Ok(held().entry(card.name).or_insert(region).clone())
    }
}

impl Drop for ShmPort {
    /// A rank may leave as soon as it has joined, while others still do.
    fn drop(&mut self) {
        self.made.linger();
    }
}

/// What a group's area is found by. The members are part of it, so that two halves of a split may
/// have the same number.
fn key_of(id: u64, taken: &[(usize, Card)]) -> u64 {
    let mut hash = Sha256::new();
    hash.update(b"brigade shm area");
    taken.iter().for_each(|(_, card)| hash.update(card.name));
    hash.update(id.to_le_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let key = digest.first_chunk().expect("a digest has more than eight bytes");
    u64::from_le_bytes(*key).max(KEY_MIN)
}

#[cfg(test)]
mod tests;
