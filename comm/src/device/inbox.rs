//! Inboxes: memory on each rank's device where the others put what they send it.

use std::sync::Arc;

use brigade_cuda::{Context, CudaError, DeviceMemory, IpcHandle, Opened};

use super::layout::{LANES, RANKS, inbox_bytes};
use super::setup::{Card, exchange, reach, show, shown};
use crate::Error;
use crate::communicator::Shared;

/// Lanes of all peers together, each 128 KiB: 32 MiB of an inbox.
const LANES_OF_ALL: u32 = 256;
/// Bytes of what a rank says of its inbox.
const NOTE_BYTES: usize = 8 + IpcHandle::BYTES;

/// The inboxes of all ranks, and their boards, as this rank's kernels name them.
#[derive(Default)]
pub(super) struct Inboxes {
    pub(super) at: [u64; RANKS],
    pub(super) boards: [u64; RANKS],
    pub(super) lanes: u32,
    /// Of ranks in this process, whose memory stays until nobody here looks at it.
    kept: Vec<Arc<DeviceMemory>>,
    opened: Vec<Opened>,
}

/// Make this rank's inbox and open those of all others. Collective; none where this rank cannot,
/// which says nothing of the others. `room` blocks of each rank run at the same time.
pub(super) fn open(
    shared: &Shared,
    context: &Context,
    cards: &[Card],
    room: u32,
) -> Result<Option<Inboxes>, Error> {
    let lanes = LANES.min(room).min(LANES_OF_ALL / cards.len() as u32);
    let own = make(context, inbox_bytes(cards.len(), lanes));
    let handle = own.as_ref().ok().and_then(|own| IpcHandle::of(context, own.address()).ok());
    let mut note = own.as_ref().map_or(0, |own| own.address()).to_le_bytes().to_vec();
    note.extend(handle.map_or([0; IpcHandle::BYTES], |handle| handle.to_bytes()));
    let notes = exchange(shared, &note)?;
    let Ok(own) = own else { return Ok(None) };
    let mut inboxes = Inboxes { lanes, kept: vec![own], ..Inboxes::default() };
    for (peer, note) in notes.chunks_exact(NOTE_BYTES).enumerate() {
        let (address, handle) = note.split_at(8);
        let address = u64::from_le_bytes(address.try_into().expect("eight bytes"));
        let handle = IpcHandle::from_bytes(handle.try_into().expect("as many as a handle has"));
        let own = &cards[shared.rank as usize];
        let opened = match cards[peer].process == own.process {
            true => inboxes.find(context, &cards[peer], address),
            false => inboxes.import(context, &cards[peer], &handle),
        };
        match opened {
            Ok((inbox, board)) => (inboxes.at[peer], inboxes.boards[peer]) = (inbox, board),
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(inboxes))
}

fn make(context: &Context, bytes: usize) -> Result<Arc<DeviceMemory>, CudaError> {
    let memory = Arc::new(DeviceMemory::new(context, bytes)?);
    let stream = brigade_cuda::Stream::new(context)?;
    // SAFETY: the range is the inbox, which nobody else knows yet.
    unsafe { stream.fill(memory.address(), 0, bytes) }?;
    stream.synchronize()?;
    show(&memory);
    Ok(memory)
}

impl Inboxes {
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
        let mut open = |handle: &IpcHandle| -> Result<u64, CudaError> {
            // SAFETY: ranks keep their inboxes and boards until the group ends, and nobody writes
            // to those of a rank whose calls have ended.
            let opened = unsafe { Opened::open(context, handle) }?;
            let address = opened.address();
            self.opened.push(opened);
            Ok(address)
        };
        Ok((open(handle)?, open(&card.handle())?))
    }
}
