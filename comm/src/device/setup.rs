//! How the ranks of a group open their devices to each other: cards, boards, inboxes, and which
//! ways all of them can try.

pub(super) mod card;
pub(super) mod inbox;
pub(super) mod parties;
pub(super) mod reached;
mod readers;
pub(super) mod shown;

use std::sync::Arc;

use brigade_cuda::{Context, CudaError, DeviceMemory, Event, Stream};

use super::exchange::{agree, exchange, trouble};
use super::kernels::{Folding, Kernels};
use super::layout::{BLOCKS, Group, PACKETS_AT, RANKS, board_bytes};
use super::share::DeviceShare;
use super::sys::Desk;
use super::way::Way;
use crate::Error;
use crate::communicator::Shared;
use card::{CARD_BYTES, Card, disagreement};
use inbox::Inboxes;
use shown::{clear, reach, show, shown};

/// What a rank has of its own before it knows the others.
pub(super) struct Opened {
    pub(super) context: Context,
    pub(super) stream: Stream,
    pub(super) last: Event,
    pub(super) board: Arc<DeviceMemory>,
    pub(super) desk: Desk,
    pub(super) kernels: Kernels,
}

impl Opened {
    fn new(context: &Context, ranks: usize) -> Result<Self, CudaError> {
        let (stream, last) = (Stream::new(context)?, Event::new(context)?);
        let board = Arc::new(DeviceMemory::new(context, board_bytes(ranks.min(RANKS)))?);
        clear(&stream, &board)?;
        let desk = Desk::new(context)?;
        let mut kernels = Kernels::default();
        kernels.load(context, Folding::NONE)?;
        stream.synchronize()?;
        show(&board);
        Ok(Self { context: context.clone(), stream, last, board, desk, kernels })
    }
}

/// What is known once all have shown their cards.
pub(super) struct Met {
    pub(super) opened: Opened,
    pub(super) cards: Vec<Card>,
    /// The boards of all ranks of this process: kernels of others may still look at a board whose
    /// rank has gone.
    pub(super) boards: Vec<Arc<DeviceMemory>>,
    pub(super) group: Group,
    /// Where packets lie on every board.
    pub(super) packets: [u64; RANKS],
    pub(super) inboxes: Inboxes,
    /// What all ranks can try, best first.
    pub(super) ways: Vec<Way>,
    /// At most so many blocks of each rank run at the same time.
    pub(super) blocks: u32,
}

/// Open this rank's device, of which calls get this share, and hear of the others'. Collective;
/// fails on all ranks alike.
pub(super) fn meet(shared: &Shared, context: &Context, share: DeviceShare) -> Result<Met, Error> {
    let (rank, ranks) = (shared.rank, shared.ranks as usize);
    // Opening waits for the device, on which an earlier group's calls may wait for another rank.
    agree(shared, true)?;
    let opened = Opened::new(context, ranks);
    let card = opened.as_ref().ok().map(|opened| {
        let (context, board) = (&opened.context, opened.board.address());
        Card::of(context, share, board, &shared.settings)
    });
    let bytes = exchange(shared, &card.unwrap_or(Card::NONE).to_bytes())?;
    let cards: Vec<Card> = bytes.chunks_exact(CARD_BYTES).map(Card::from_bytes).collect();
    let opened = opened.map_err(|error| trouble("opening the device", &error))?;
    if let Some(failed) = cards.iter().position(|card| card.room == 0) {
        let failed = shared.members[failed];
        return Err(Error::join(format!("rank {failed} could not open its device")));
    }
    if let Some(why) = disagreement(&cards, &shared.members) {
        return Err(Error::join(why));
    }
    if cards.iter().any(|card| card.process != cards[rank as usize].process) {
        parties::enter(cards[0].number, rank);
    }
    let desk = opened.desk.address();
    let group = Group { rank, ranks: shared.ranks, desk, board: [0; RANKS] };
    let mut met = Met {
        opened,
        boards: Vec::new(),
        group,
        packets: [0; RANKS],
        inboxes: Inboxes::default(),
        ways: Vec::new(),
        blocks: blocks(&cards),
        cards,
    };
    if ranks <= RANKS {
        met.find_ways(shared)?;
    }
    met.ways.push(Way::Staged);
    Ok(met)
}

impl Met {
    /// What this rank can try and all others can, too, by the cards and by what can be opened.
    fn find_ways(&mut self, shared: &Shared) -> Result<(), Error> {
        let (context, cards) = (&self.opened.context, &self.cards);
        let own = &cards[self.group.rank as usize];
        let is_one_host = cards.iter().all(|card| card.host == own.host);
        let is_one_process = cards.iter().all(|card| card.process == own.process);
        let has_room = room_for_each(cards) > 0;
        let is_wished = cards.iter().any(Card::names_algorithm);
        let mut ways = Vec::new();
        if is_one_process && has_room && cards.iter().all(|card| reach(context, card).is_ok()) {
            self.boards = cards.iter().filter_map(|card| shown(card.shows)).collect();
            for (peer, card) in cards.iter().enumerate() {
                self.group.board[peer] = card.shows;
            }
            if self.boards.len() == cards.len() {
                ways.push(Way::Together);
            }
        }
        // From their cards all ranks find alike whether they open inboxes.
        let is_linked = is_one_host && has_room && cards.len() > 1 && is_each_of_one_process(cards);
        if is_linked && (is_wished || !is_one_process) {
            let (inboxes, is_good) = inbox::open(
                shared,
                (context, &self.opened.stream, &self.opened.board),
                cards,
                self.blocks,
            )?;
            self.inboxes = inboxes;
            if is_good {
                self.group.board = self.inboxes.boards;
                ways.insert(if is_wished { 0 } else { ways.len() }, Way::Linked);
            }
        }
        // What is of another process shows by being opened whether it is reached.
        let mut here = cards.iter().filter(|card| card.process == own.process);
        if is_one_host && here.all(|card| reach(context, card).is_ok()) {
            ways.push(Way::Met);
        }
        for (packets, board) in self.packets.iter_mut().zip(self.group.board) {
            *packets = board + PACKETS_AT;
        }
        if launches_wait() {
            // Whose kernel has not ended launches none for another rank.
            ways.retain(|way| !way.is_enqueued());
        }
        let mask = ways.iter().fold(0, |mask, way| mask | 1 << *way as u8);
        let common = exchange(shared, &[mask])?.into_iter().fold(u8::MAX, |all, one| all & one);
        ways.retain(|way| common & 1 << *way as u8 != 0);
        // Who has no use for inboxes makes no room for them. All ranks have some, or none has.
        if self.inboxes.lanes > 0 && !ways.contains(&Way::Linked) {
            self.inboxes.close(shared)?;
        }
        self.ways = ways;
        Ok(())
    }
}

/// Whether no device is shared by ranks of different processes, whose kernels take turns there.
fn is_each_of_one_process(cards: &[Card]) -> bool {
    let apart = |one: &Card, two: &Card| one.uuid != two.uuid || one.process == two.process;
    cards.iter().all(|one| cards.iter().all(|two| apart(one, two)))
}

/// How many blocks a call may have on each rank.
fn blocks(cards: &[Card]) -> u32 {
    let most = cards.iter().map(|card| card.blocks).min().unwrap_or(1);
    room_for_each(cards).min(most).clamp(1, BLOCKS as u32)
}

/// How many blocks of each rank run at the same time where ranks and their groups share devices;
/// zero if there is not one for each. While all other calls of a device wait, a quarter of it is
/// left to the last one, if it can be: products come in clusters, which want several neighbours
/// free, and must end before the rank gets to its call.
fn room_for_each(cards: &[Card]) -> u32 {
    let room = |card: &Card| {
        let here = cards.iter().filter(|other| other.uuid == card.uuid);
        let sharing = here.fold(0_u32, |calls, other| calls.saturating_add(other.groups));
        let alike = card.room / sharing;
        match sharing {
            1 => alike,
            _ => alike.min(((card.room - card.room / 4) / (sharing - 1)).max(1)),
        }
    };
    cards.iter().map(room).min().unwrap_or(0)
}

/// Whether the driver was told that launches return when their kernel has ended.
fn launches_wait() -> bool {
    let told = std::env::var_os("CUDA_LAUNCH_BLOCKING").unwrap_or_default();
    !told.is_empty() && told != "0"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_wait_leave_a_quarter_of_their_device_to_the_last_one() {
        let each = |room, ranks, groups| {
            let mut card = Card::NONE;
            (card.room, card.groups) = (room, groups);
            room_for_each(&vec![card; ranks])
        };
        assert_eq!([1, 2, 4, 8, 16, 32].map(|ranks| each(132, ranks, 1)), [132, 66, 33, 14, 6, 3]);
        assert_eq!([1, 2, 7, 8, 9].map(|ranks| each(8, ranks, 1)), [8, 4, 1, 1, 0]);
        assert_eq!([1, 2, 3].map(|groups| each(132, 1, groups)), [132, 66, 44]);
        for (room, ranks) in (1..200).flat_map(|room| (1..40).map(move |ranks| (room, ranks))) {
            let blocks = each(room, ranks, 1) * ranks as u32;
            assert!(blocks <= room && (blocks > 0) == (ranks as u32 <= room), "{room}, {ranks}");
            assert_eq!(each(room, 1, ranks as u32), each(room, ranks, 1), "{room}, {ranks}");
        }
    }

    #[test]
    fn a_call_has_the_fewest_blocks_that_any_rank_asks_for() {
        let asked = |all: &[u32]| {
            let card = |most: &u32| {
                let mut card = Card::NONE;
                (card.room, card.blocks) = (132, *most);
                card
            };
            let cards: Vec<Card> = all.iter().map(card).collect();
            blocks(&cards)
        };
        assert_eq!(asked(&[u32::MAX]), BLOCKS as u32);
        assert_eq!([asked(&[7, u32::MAX]), asked(&[9, 2]), asked(&[1])], [7, 2, 1]);
    }
}
