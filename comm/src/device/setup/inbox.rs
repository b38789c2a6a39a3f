//! Inboxes: memory on each rank's device where the others put what they send it.

use std::sync::Arc;

use brigade_cuda::{Context, CudaError, DeviceMemory, Stream};

use super::super::exchange::{agree, exchange};
use super::super::layout::{LANES, RANKS, inbox_bytes, lane_at};
use super::card::{CARD_BYTES, Card};
use super::parties;
use super::reached::Reached;
use super::shown::{clear, show};
use crate::Error;
use crate::communicator::Shared;

/// Lanes of all peers together, each 128 KiB: 32 MiB of an inbox.
const LANES_OF_ALL: u32 = 256;

/// The inboxes and boards of all ranks, as this rank's kernels name them.
#[derive(Default)]
pub(in crate::device) struct Inboxes {
    pub(in crate::device) at: [u64; RANKS],
    pub(super) boards: [u64; RANKS],
    pub(in crate::device) lanes: u32,
    /// Both of them; ours stays, whatever became of the others'.
    reached: [Reached; 2],
    own: Option<Arc<DeviceMemory>>,
    /// Under which group's number it stands that others have opened ours.
    number: u64,
}

/// Make this rank's inbox and open those of all others; whether what others write arrives here,
/// which says nothing of the others. Collective. `room` blocks of each rank run at the same time.
pub(super) fn open(
    shared: &Shared,
    (context, stream, board): (&Context, &Stream, &Arc<DeviceMemory>),
    cards: &[Card],
    room: u32,
) -> Result<(Inboxes, bool), Error> {
    let (number, own) = (cards[0].number, &cards[shared.rank as usize]);
    let lanes = LANES.min(room).min(LANES_OF_ALL / cards.len() as u32);
    let inbox = make((context, stream), inbox_bytes(cards.len(), lanes));
    if cards.iter().any(|card| card.process != own.process) {
        let lent = inbox.iter().chain([board]);
        lent.for_each(|memory| parties::lend(number, shared.rank, memory));
    }
    let card = inbox.as_ref().map_or(Card::NONE, |inbox| own.showing(context, inbox.address()));
    let others = exchange(shared, &card.to_bytes())?;
    let others: Vec<Card> = others.chunks_exact(CARD_BYTES).map(Card::from_bytes).collect();
    let of = |cards: &[Card]| Reached::of(context, shared.rank, cards).ok();
    let reached = of(&others).zip(of(cards)).map(<[Reached; 2]>::from);
    let place = |from| lane_at(from, lanes);
    let inboxes = reached.as_ref().map(|[inboxes, _]| inboxes);
    let is_good = Reached::is_proved(inboxes, shared, stream, place)?;
    let mut inboxes = Inboxes { lanes, number, own: inbox.ok(), ..Inboxes::default() };
    if let Some(reached) = reached {
        let [at, boards] = [0, 1].map(|of: usize| reached[of].at.iter());
        inboxes.at.iter_mut().zip(at).for_each(|(to, at)| *to = *at);
        inboxes.boards.iter_mut().zip(boards).for_each(|(to, at)| *to = *at);
        inboxes.reached = reached;
    }
    Ok((inboxes, is_good))
}

fn make(
    (context, stream): (&Context, &Stream),
    bytes: usize,
) -> Result<Arc<DeviceMemory>, CudaError> {
    let memory = Arc::new(DeviceMemory::new(context, bytes)?);
    clear(stream, &memory)?;
    show(&memory);
    Ok(memory)
}

impl Inboxes {
    /// Let go of all of them: of others' first, since memory must not be freed where it is still
    /// open. Nobody's kernel waits for a rank that frees. Collective.
    pub(in crate::device) fn close(&mut self, shared: &Shared) -> Result<(), Error> {
        self.let_go();
        agree(shared, true)?;
        parties::take_back(self.number, shared.rank);
        *self = Self::default();
        agree(shared, true).map(drop)
    }

    /// Close what was opened of other processes, which no kernel of ours uses any more.
    pub(in crate::device) fn let_go(&self) {
        self.reached.iter().for_each(Reached::let_go);
    }

    /// Keep it open for good, and ours: a kernel of ours does not end.
    pub(in crate::device) fn hold_on(&self) {
        std::mem::forget(self.own.clone());
        self.reached.iter().for_each(Reached::hold_on);
    }
}
