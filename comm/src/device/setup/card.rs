//! What ranks say of their devices, and of what must be alike on all of them, before anything else.

use std::sync::OnceLock;

use brigade_cuda::{Context, IpcHandle};

use super::super::kernels::build_number;
use super::super::share::DeviceShare;
use crate::Settings;

/// Bytes of a card.
pub(in crate::device) const CARD_BYTES: usize = 104 + IpcHandle::BYTES;
/// Bytes of the name of an algorithm.
const NAME_BYTES: usize = 32;

/// What one rank says of its device.
#[derive(Clone, Debug)]
pub(in crate::device) struct Card {
    pub(in crate::device) uuid: [u8; 16],
    /// The same for all ranks of a process.
    pub(in crate::device) process: u64,
    pub(in crate::device) host: u64,
    pub(in crate::device) ordinal: u32,
    /// Blocks that run on it at the same time; zero where something failed.
    pub(in crate::device) room: u32,
    /// Groups whose calls may be on it at once, this one among them.
    pub(super) groups: u32,
    /// Blocks that a call may have, at most.
    pub(super) blocks: u32,
    /// Where what it shows the others begins: its board, its inbox, or a window.
    pub(super) shows: u64,
    /// That of rank 0 is the group's: no two are alike.
    pub(in crate::device) number: u64,
    /// Of the kernels, and of what they and the host both look into.
    build: u32,
    ordered: u32,
    /// The algorithm that was named, if one was; zeros behind it.
    algorithm: [u8; NAME_BYTES],
    handle: [u8; IpcHandle::BYTES],
}

impl Card {
    /// The card of a rank that could not open its device.
    pub(in crate::device) const NONE: Self = Self {
        uuid: [0; 16],
        process: 0,
        host: 0,
        ordinal: 0,
        room: 0,
        groups: 1,
        blocks: u32::MAX,
        shows: 0,
        number: 0,
        build: 0,
        ordered: 0,
        algorithm: [0; NAME_BYTES],
        handle: [0; IpcHandle::BYTES],
    };

    pub(in crate::device) fn of(
        context: &Context,
        share: DeviceShare,
        shows: u64,
        settings: &Settings,
    ) -> Self {
        let device = context.device();
        let name = settings.algorithm.map(|algorithm| algorithm.to_string()).unwrap_or_default();
        let mut algorithm = [0; NAME_BYTES];
        algorithm.iter_mut().zip(name.bytes()).for_each(|(byte, of_name)| *byte = of_name);
        Self {
            uuid: device.uuid,
            process: process_number(),
            host: host_number(),
            ordinal: device.ordinal,
            room: device.multiprocessors.max(1),
            groups: share.groups,
            blocks: share.blocks,
            shows,
            number: random().unwrap_or(shows),
            build: build_number(),
            ordered: u32::from(settings.ordered),
            algorithm,
            handle: handle_of(context, shows),
        }
    }

    /// The same device, of which other memory is shown.
    pub(super) fn showing(&self, context: &Context, shows: u64) -> Self {
        Self { shows, handle: handle_of(context, shows), ..self.clone() }
    }

    pub(in crate::device) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.uuid.to_vec();
        bytes.extend(self.process.to_le_bytes());
        bytes.extend(self.host.to_le_bytes());
        bytes.extend(self.shows.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.ordinal.to_le_bytes());
        bytes.extend(self.room.to_le_bytes());
        bytes.extend(self.build.to_le_bytes());
        bytes.extend(self.ordered.to_le_bytes());
        bytes.extend(self.groups.to_le_bytes());
        bytes.extend(self.blocks.to_le_bytes());
        bytes.extend(self.algorithm);
        bytes.extend(self.handle);
        bytes
    }

    pub(in crate::device) fn from_bytes(bytes: &[u8]) -> Self {
        fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
            bytes[at..at + N].try_into().expect("a card has this many bytes")
        }
        let long = |at| u64::from_le_bytes(part(bytes, at));
        let short = |at| u32::from_le_bytes(part(bytes, at));
        Self {
            uuid: part(bytes, 0),
            process: long(16),
            host: long(24),
            shows: long(32),
            number: long(40),
            ordinal: short(48),
            room: short(52),
            build: short(56),
            ordered: short(60),
            groups: short(64).max(1),
            blocks: short(68).max(1),
            algorithm: part(bytes, 72),
            handle: part(bytes, 104),
        }
    }

    /// What another process opens that with.
    pub(super) fn handle(&self) -> IpcHandle {
        IpcHandle::from_bytes(&self.handle)
    }

    /// Whether an algorithm was named, for kernels that carry out schedules.
    pub(in crate::device) fn names_algorithm(&self) -> bool {
        self.algorithm[0] != 0
    }

    /// What must be alike on all ranks, each with what it is called.
    fn agreed(&self) -> [(&'static str, String); 3] {
        let name = String::from_utf8_lossy(&self.algorithm);
        let name = Some(name.trim_end_matches('\0')).filter(|name| !name.is_empty());
        [
            ("kernels of build", format!("{:08x}", self.build)),
            ("BRIGADE_ORDERED", self.ordered.to_string()),
            ("BRIGADE_ALGORITHM", name.unwrap_or("(none)").to_owned()),
        ]
    }
}

/// The first thing that is not alike on all ranks, whose numbers in the world these are, in words.
/// All ranks find the same. (Rules and windows of the host are in the header of each of its calls.)
pub(super) fn disagreement(cards: &[Card], ranks: &[u32]) -> Option<String> {
    let ours = cards.first()?.agreed();
    let theirs: Vec<_> = cards.iter().map(Card::agreed).collect();
    (0..ours.len()).find_map(|at| {
        let (what, ours) = &ours[at];
        let (rank, other) = ranks.iter().zip(&theirs).find(|(_, card)| card[at].1 != *ours)?;
        let (first, theirs) = (ranks[0], &other[at].1);
        Some(format!(
            "ranks disagree: rank {first} has {what} {ours}, but rank {rank} has {what} {theirs}; \
             all ranks of a group on devices must have the same"
        ))
    })
}

/// Memory that cannot be exported leaves zeros, which open nothing.
fn handle_of(context: &Context, address: u64) -> [u8; IpcHandle::BYTES] {
    let handle = IpcHandle::of(context, address);
    handle.map_or([0; IpcHandle::BYTES], |handle| handle.to_bytes())
}

fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
}

/// A number of this process that no other has.
fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    // Without randomness the number of the process has to do.
    *NUMBER.get_or_init(|| random().unwrap_or_else(|| u64::from(std::process::id())))
}

/// A number of this start of this machine.
fn host_number() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mix = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    id.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use brigade_schedule::Algorithm;

    use super::*;

    #[test]
    fn whoever_differs_is_named_with_the_setting() {
        let card = Card { room: 1, ..Card::NONE };
        let mut algorithm = [0; NAME_BYTES];
        algorithm[..4].copy_from_slice(b"ring");
        let others = [
            (Card { ordered: 1, ..card.clone() }, "has BRIGADE_ORDERED 1"),
            (Card { algorithm, ..card.clone() }, "has BRIGADE_ALGORITHM ring"),
            (Card { build: 7, ..card.clone() }, "has kernels of build 00000007"),
        ];
        for (other, wanted) in others {
            let cards = [card.clone(), card.clone(), other].map(|card| {
                let bytes = card.to_bytes();
                assert_eq!(bytes.len(), CARD_BYTES);
                Card::from_bytes(&bytes)
            });
            let why = disagreement(&cards, &[4, 5, 9]).expect("they differ");
            assert!(why.contains("rank 4") && why.contains(&format!("rank 9 {wanted}")), "{why}");
        }
        assert_eq!(disagreement(&[card.clone(), card], &[0, 1]), None);
    }

    #[test]
    fn every_algorithm_has_room_for_its_name() {
        let long = [
            Algorithm::Hierarchical { node_ranks: 16384 },
            Algorithm::NodeDoubling { node_ranks: 16384 },
            Algorithm::ParameterServer { servers: 16384 },
        ];
        for algorithm in Algorithm::PLAIN.into_iter().chain(long) {
            assert!(algorithm.to_string().len() < NAME_BYTES, "{algorithm}");
        }
    }
}
