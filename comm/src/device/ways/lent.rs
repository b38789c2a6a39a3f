//! Memory that ranks of several processes lend each other for a call.

use brigade_cuda::{Context, IpcHandle, Opened, Whereabouts};

use super::super::layout::{Direct, RANKS};
use crate::say::warn;

/// How many allocations of other processes stay mapped.
const IMPORTS_MAX: usize = 64;
/// Beside an offer's signature: the memory stays until the group is closed.
const STAYS: u64 = 1 << 32;

/// An allocation as another process opens it.
#[derive(Clone, Copy)]
pub(super) struct Allocation {
    token: [u8; 64],
    pub(super) start: u64,
    bytes: u64,
    /// Another allocation at the same place has another number.
    id: u64,
}

/// What a rank tells all others of its buffers: the allocations, and for each rank where in this
/// process's addresses its part begins.
pub(super) struct Offer {
    pub(super) signature: u32,
    /// Whether its owner keeps the memory until the group is closed.
    pub(super) stays: bool,
    pub(super) input: Allocation,
    pub(super) output: Allocation,
    pub(super) tells: Vec<(u64, u64)>,
}

impl Allocation {
    const BYTES: usize = 88;
    const NONE: Self = Self { token: [0; 64], start: 0, bytes: 0, id: 0 };

    /// The allocation around an address of ours; none for one that cannot be lent, which whoever
    /// needs it finds out.
    fn around(context: &Context, address: u64) -> Self {
        let Ok(found) = context.device().cuda.where_is(address) else { return Self::NONE };
        let Whereabouts { start, bytes, id, .. } = found;
        IpcHandle::of(context, start).map_or(Self::NONE, |handle| Self {
            token: handle.token,
            start,
            bytes: bytes as u64,
            id,
        })
    }

    /// Whether the driver would refuse the other one while this is open: it lies where this lay,
    /// which is gone.
    fn is_in_the_way_of(&self, other: &Self) -> bool {
        let end = |one: &Self| one.start.saturating_add(one.bytes);
        self.token == other.token || (self.start < end(other) && other.start < end(self))
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.token);
        bytes.extend(self.start.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.extend(self.id.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Self {
        let mut token = [0; 64];
        token.copy_from_slice(&bytes[..64]);
        Self { token, start: number(bytes, 64), bytes: number(bytes, 72), id: number(bytes, 80) }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

impl Offer {
    pub(super) fn bytes(ranks: usize) -> usize {
        8 + 2 * Allocation::BYTES + 16 * ranks
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let (input, rest) = bytes[8..].split_at(Allocation::BYTES);
        let (output, tells) = rest.split_at(Allocation::BYTES);
        Self {
            signature: number(bytes, 0) as u32,
            stays: number(bytes, 0) & STAYS != 0,
            input: Allocation::read(input),
            output: Allocation::read(output),
            tells: tells.chunks_exact(16).map(|pair| (number(pair, 0), number(pair, 8))).collect(),
        }
    }
}

/// What this rank tells the others about a call on buffers that begin at these addresses.
pub(super) fn offer(
    context: &Context,
    argument: &Direct,
    (input, output, stays): (u64, u64, bool),
    ranks: usize,
) -> Vec<u8> {
    let stays = if stays { STAYS } else { 0 };
    let mut bytes = (u64::from(argument.signature) | stays).to_le_bytes().to_vec();
    [input, output]
        .iter()
        .for_each(|address| Allocation::around(context, *address).write(&mut bytes));
    for peer in 0..ranks.min(RANKS) {
        bytes.extend(argument.input[peer].to_le_bytes());
        bytes.extend(argument.output[peer].to_le_bytes());
    }
    bytes
}

/// Memory that ranks of other processes have lent to this one.
#[derive(Default)]
pub(in crate::device) struct Imports {
    opened: Vec<Import>,
    /// The number of the call at hand.
    call: u64,
    /// Whether a person was told that something cannot be opened.
    is_told: bool,
}

struct Import {
    rank: usize,
    lent: Allocation,
    opened: Opened,
    /// The last call that uses it.
    call: u64,
    /// Whether its owner keeps it until the group is closed.
    stays: bool,
}

impl Imports {
    /// Another call begins; those before have ended, and no kernel uses anything of theirs.
    pub(super) fn begin_call(&mut self) {
        self.call += 1;
    }

    /// Where an allocation of another process lies in this one, until the call ends; or until
    /// another one begins, where its owner keeps it for longer.
    pub(super) fn import(
        &mut self,
        context: &Context,
        (rank, stays): (usize, bool),
        lent: &Allocation,
    ) -> Option<u64> {
        let is_same = |known: &Allocation| known.token == lent.token && known.id == lent.id;
        let mut opened = self.opened.iter_mut();
        if let Some(known) = opened.find(|it| it.rank == rank && is_same(&it.lent)) {
            (known.call, known.stays) = (self.call, stays);
            return Some(known.opened.address());
        }
        if lent.bytes == 0 {
            return None;
        }
        let in_the_way = |it: &Import| it.rank == rank && it.lent.is_in_the_way_of(lent);
        // Of this call both are there: short allocations that a driver has put into one piece, and
        // exports as one. What is open already cannot be closed.
        if self.opened.iter().any(|it| it.call == self.call && in_the_way(it)) {
            self.tell(rank, &"two short allocations of it are exported as one");
            return None;
        }
        self.opened.retain(|it| !in_the_way(it));
        if self.opened.len() >= IMPORTS_MAX {
            self.opened.retain(|it| it.call == self.call);
        }
        let handle = IpcHandle { token: lent.token, offset: 0, bytes: lent.bytes };
        // SAFETY: the rank that lent it keeps it until the call is done, or the group is closed, as
        // it says; before that it is closed here.
        match unsafe { Opened::open(context, &handle) } {
            Ok(opened) => {
                let address = opened.address();
                self.opened.push(Import { rank, lent: *lent, opened, call: self.call, stays });
                Some(address)
            }
            Err(error) => {
                self.tell(rank, &error);
                None
            }
        }
    }

    pub(super) fn tell(&mut self, rank: usize, why: &dyn std::fmt::Display) {
        if !std::mem::replace(&mut self.is_told, true) {
            warn(&format!("calls go through the host, for rank {rank}'s memory: {why}"));
        }
    }

    /// Close what was lent for the call that ends, which no kernel of ours uses any more.
    pub(in crate::device) fn let_go(&mut self) {
        self.opened.retain(|import| import.stays);
    }

    /// Close everything, likewise.
    pub(in crate::device) fn close(&mut self) {
        self.opened.clear();
    }

    /// Keep it open for good: a kernel of ours does not end.
    pub(in crate::device) fn hold_on(&mut self) {
        std::mem::forget(std::mem::take(&mut self.opened));
    }
}
