//! Inboxes: memory on each rank's device where the others put what they send it.

use std::sync::{Arc, Mutex, PoisonError};

use brigade_cuda::{Context, CudaError, DeviceMemory, IpcHandle, Opened, Stream};

use super::card::Card;
use super::exchange::{agree, exchange};
use super::layout::{LANES, RANKS, inbox_bytes, lane_at};
use super::parties;
use super::shown::{clear, pattern, reach, show, shown};
use crate::Error;
use crate::communicator::Shared;

/// Lanes of all peers together, each 128 KiB: 32 MiB of an inbox.
const LANES_OF_ALL: u32 = 256;
/// Bytes of what a rank says of its inbox.
const NOTE_BYTES: usize = 8 + IpcHandle::BYTES;
/// Bytes that ranks put into each other's inboxes before any kernel waits for some.
const GREETING_BYTES: usize = 256;

/// The inboxes of all ranks, and their boards, as this rank's kernels name them.
#[derive(Default)]
pub(super) struct Inboxes {
    pub(super) at: [u64; RANKS],
    pub(super) boards: [u64; RANKS],
    pub(super) lanes: u32,
    /// Of ranks in this process, whose memory stays until nobody here looks at it.
    kept: Vec<Arc<DeviceMemory>>,
    opened: Mutex<Vec<Opened>>,
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
    let (number, process) = (cards[0].number, cards[shared.rank as usize].process);
    let lanes = LANES.min(room).min(LANES_OF_ALL / cards.len() as u32);
    let own = make((context, stream), inbox_bytes(cards.len(), lanes));
    if cards.iter().any(|card| card.process != process) {
        let lent = own.iter().chain([board]);
        lent.for_each(|memory| parties::lend(number, shared.rank, memory));
    }
    let handle = own.as_ref().ok().and_then(|own| IpcHandle::of(context, own.address()).ok());
    let mut note = own.as_ref().map_or(0, |own| own.address()).to_le_bytes().to_vec();
    note.extend(handle.map_or([0; IpcHandle::BYTES], |handle| handle.to_bytes()));
    let notes = exchange(shared, &note)?;
    let mut inboxes = Inboxes { lanes, number, ..Inboxes::default() };
    let greeted = own.and_then(|own| {
        inboxes.kept.push(own);
        inboxes.find_all(context, shared.rank, cards, &notes)?;
        inboxes.greet(stream, shared.rank, cards.len())
    });
    // All have opened what they can, and written; nobody fails for himself before this.
    let all_greeted = agree(shared, greeted.is_ok())?;
    // A kernel would wait long for what does not arrive.
    let is_good = all_greeted && inboxes.hear(stream, shared.rank, cards.len()).unwrap_or(false);
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
    pub(super) fn close(&mut self, shared: &Shared) -> Result<(), Error> {
        self.let_go();
        agree(shared, true)?;
        parties::take_back(self.number, shared.rank);
        *self = Self::default();
        agree(shared, true).map(drop)
    }

    /// Close what was opened of other processes, which no kernel of ours uses any more.
    pub(super) fn let_go(&self) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Keep it open for good: a kernel of ours does not end.
    pub(super) fn hold_on(&self) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::forget(std::mem::take(&mut *opened));
    }

    /// The inboxes and boards of all ranks, from what they say of them.
    fn find_all(
        &mut self,
        context: &Context,
        rank: u32,
        cards: &[Card],
        notes: &[u8],
    ) -> Result<(), CudaError> {
        for (peer, (card, note)) in cards.iter().zip(notes.chunks_exact(NOTE_BYTES)).enumerate() {
            let (address, handle) = note.split_at(8);
            let address = u64::from_le_bytes(address.try_into().expect("eight bytes"));
            let handle = IpcHandle::from_bytes(handle.try_into().expect("as many as it has"));
            (self.at[peer], self.boards[peer]) = match card.process == cards[rank as usize].process
            {
                true => self.find(context, card, address)?,
                false => self.import(context, card, &handle)?,
            };
        }
        Ok(())
    }

    /// Where what `from` sends first to `owner` lies: its first slot on its first lane.
    fn slot(&self, owner: u32, from: u32) -> u64 {
        self.at[owner as usize] + lane_at(from, self.lanes)
    }

    /// Put a pattern into everybody's inbox, from device to device.
    fn greet(&self, stream: &Stream, rank: u32, ranks: usize) -> Result<(), CudaError> {
        let own = pattern(rank, GREETING_BYTES);
        // SAFETY: the slots are as long, and nobody uses them before all have agreed; ours for
        // ourselves nobody ever does. We wait for the copies.
        unsafe {
            stream.copy(self.slot(rank, rank), own.as_ptr() as u64, GREETING_BYTES)?;
            for peer in (0..ranks as u32).filter(|peer| *peer != rank) {
                stream.copy(self.slot(peer, rank), self.slot(rank, rank), GREETING_BYTES)?;
            }
        }
        stream.synchronize()
    }

    /// Whether the patterns of all others are here.
    fn hear(&self, stream: &Stream, rank: u32, ranks: usize) -> Result<bool, CudaError> {
        let mut heard = vec![[0; GREETING_BYTES]; ranks];
        for (peer, bytes) in (0..ranks as u32).zip(&mut heard) {
            let target = bytes.as_mut_ptr() as u64;
            // SAFETY: the buffer is as long, and outlives the wait below.
            unsafe { stream.copy(target, self.slot(rank, peer), GREETING_BYTES) }?;
        }
        stream.synchronize()?;
        let is_there = |(peer, bytes)| pattern(peer, GREETING_BYTES) == bytes;
        Ok((0..ranks as u32).zip(heard).all(is_there))
    }

    /// The inbox and the board of a rank in this process.
    fn find(
        &mut self,
        context: &Context,
        card: &Card,
        address: u64,
    ) -> Result<(u64, u64), CudaError> {
        reach(context, card)?;
        for address in [address, card.board] {
            let gone = || CudaError::Refused { why: "it has gone".into() };
            self.kept.push(shown(address).ok_or_else(gone)?);
        }
        Ok((address, card.board))
    }

    /// The inbox and the board of a rank in another process.
    fn import(
        &mut self,
        context: &Context,
        card: &Card,
        handle: &IpcHandle,
    ) -> Result<(u64, u64), CudaError> {
        let all = self.opened.get_mut().unwrap_or_else(PoisonError::into_inner);
        let mut open = |handle: &IpcHandle| -> Result<u64, CudaError> {
            // SAFETY: ranks keep their inboxes and boards until we have said that we closed them.
            let opened = unsafe { Opened::open(context, handle) }?;
            let address = opened.address();
            all.push(opened);
            Ok(address)
        };
        Ok((open(handle)?, open(&card.handle())?))
    }
}
