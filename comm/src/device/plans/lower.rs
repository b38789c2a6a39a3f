//! From a call to what this rank's kernel does: steps on the buffers of all ranks, or packets.
//!
//! Pure: offsets and lengths, never an address. What a rank tells a peer is where the peer's part
//! of its own buffers begins, so nobody need know how another one's buffers are laid out.

use brigade_schedule::Collective;

use super::super::layout::{Kind, Part, Step};
use crate::call::{Call, Counts};

/// A call goes in packets when no rank sends another one more than this.
const PACKETS_MAX: usize = 8 << 10;
/// A block more for so many bytes.
const BLOCK_BYTES: u64 = 32 << 10;

/// What one rank does in one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lowered {
    /// Small: data and flag in one.
    Packets(Vec<Part>),
    /// Where the buffers lie.
    Direct(DirectSteps),
}

/// A call on buffers where they lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::device) struct DirectSteps {
    /// For each rank: how far into our input and output what we tell it lies, in bytes.
    pub(in crate::device) tells: Vec<(u64, u64)>,
    /// In their order.
    pub(super) steps: Vec<Step>,
    /// How many blocks it is worth; the same on all ranks.
    pub(in crate::device) blocks: u32,
}

/// Lower a call that makes sense. `blocks_max` is the same on all ranks.
pub(super) fn lower(call: &Call, ranks: u32, rank: u32, blocks_max: u32) -> Lowered {
    let shape = Shape { call, ranks, rank };
    if shape.is_small() {
        return Lowered::Packets((0..ranks).map(|peer| shape.part(peer)).collect());
    }
    let tells = (0..ranks).map(|peer| shape.tell(peer)).collect();
    Lowered::Direct(DirectSteps { tells, steps: shape.steps(), blocks: shape.blocks(blocks_max) })
}

/// The same call on buffers where they lie, however small it is.
pub(super) fn lower_direct(call: &Call, ranks: u32, rank: u32, blocks_max: u32) -> DirectSteps {
    let shape = Shape { call, ranks, rank };
    let tells = (0..ranks).map(|peer| shape.tell(peer)).collect();
    DirectSteps { tells, steps: shape.steps(), blocks: shape.blocks(blocks_max) }
}

/// A number that equal calls share and different ones nearly never do; not zero.
pub(super) fn signature(call: &Call) -> u32 {
    let mut hash = 0x811c_9dc5_u32;
    let mut mix = |number: u64| {
        for byte in number.to_le_bytes() {
            hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
    };
    let name = call.collective.to_string();
    name.bytes().for_each(|byte| mix(u64::from(byte)));
    mix(call.collective.root().map_or(0, u64::from));
    mix(u64::from(call.dtype.code()));
    mix(if call.collective.folds() { u64::from(call.op.code()) + 1 } else { 0 });
    match &call.counts {
        Counts::Even(count) => mix(*count as u64),
        Counts::PerRank(counts) if knows_all(call.collective) => {
            counts.iter().for_each(|count| mix(*count as u64));
        }
        // Ranks know only their own lengths.
        Counts::PerRank(_) | Counts::PerPair { .. } => mix(1 << 63),
    }
    hash | 1
}

/// Whether every rank must know the lengths of all blocks.
pub(super) fn knows_all(collective: Collective) -> bool {
    matches!(collective, Collective::AllGather | Collective::ReduceScatter)
}

struct Shape<'a> {
    call: &'a Call,
    ranks: u32,
    rank: u32,
}

impl Shape<'_> {
    fn block_bytes(&self, block: u32) -> u64 {
        let elems = self.call.block_elems(self.ranks, self.rank, block);
        (elems * self.call.dtype.size()) as u64
    }

    /// Bytes of the blocks from `first` to before `last`, `step` apart.
    fn before(&self, first: u32, last: u32, step: u32) -> u64 {
        (first..last).step_by(step as usize).map(|block| self.block_bytes(block)).sum()
    }

    /// Whether packets will do: all ranks find the same.
    fn is_small(&self) -> bool {
        let Counts::Even(count) = self.call.counts else { return false };
        count * self.call.dtype.size() <= PACKETS_MAX
    }

    /// Where in our input what `peer` takes begins, and its bytes.
    fn sends(&self, peer: u32) -> (u64, u64) {
        let (ranks, rank) = (self.ranks, self.rank);
        match self.call.collective {
            Collective::AllReduce => (0, self.block_bytes(0)),
            Collective::Reduce { root } if peer == root => (0, self.block_bytes(0)),
            Collective::ReduceScatter => (self.before(0, peer, 1), self.block_bytes(peer)),
            Collective::AllGather => (0, self.block_bytes(rank)),
            Collective::Broadcast { root } if rank == root => (0, self.block_bytes(0)),
            Collective::Gather { root } if peer == root => (0, self.block_bytes(rank)),
            Collective::Scatter { root } if rank == root => {
                (self.before(0, peer, 1), self.block_bytes(peer))
            }
            Collective::AllToAll => {
                let row = rank * ranks;
                (self.before(row, row + peer, 1), self.block_bytes(row + peer))
            }
            _ => (0, 0),
        }
    }

    /// Where in our output what `peer` sends goes, and its bytes.
    fn takes(&self, peer: u32) -> (u64, u64) {
        let (ranks, rank) = (self.ranks, self.rank);
        match self.call.collective {
            Collective::AllReduce => (0, self.block_bytes(0)),
            Collective::Reduce { root } if rank == root => (0, self.block_bytes(0)),
            Collective::ReduceScatter => (0, self.block_bytes(rank)),
            Collective::AllGather => (self.before(0, peer, 1), self.block_bytes(peer)),
            Collective::Broadcast { root } if peer == root => (0, self.block_bytes(0)),
            Collective::Gather { root } if rank == root => {
                (self.before(0, peer, 1), self.block_bytes(peer))
            }
            Collective::Scatter { root } if peer == root => (0, self.block_bytes(rank)),
            Collective::AllToAll => {
                let before = self.before(rank, peer * ranks + rank, ranks);
                (before, self.block_bytes(peer * ranks + rank))
            }
            _ => (0, 0),
        }
    }

    fn part(&self, peer: u32) -> Part {
        let (send_at, send_bytes) = self.sends(peer);
        let (take_at, take_bytes) = self.takes(peer);
        Part {
            send_at: send_at as u32,
            send_bytes: send_bytes as u32,
            take_at: take_at as u32,
            take_bytes: take_bytes as u32,
        }
    }

    /// What `peer` must know of our input and our output. Of an output only a gather's root tells
    /// anything but its beginning, because only there others write.
    fn tell(&self, peer: u32) -> (u64, u64) {
        let written = matches!(self.call.collective, Collective::Gather { .. });
        (self.sends(peer).0, if written { self.takes(peer).0 } else { 0 })
    }

    fn steps(&self) -> Vec<Step> {
        let (ranks, rank) = (self.ranks, self.rank);
        let pull = |peer| {
            let (target, bytes) = self.takes(peer);
            Step { kind: Kind::Pull, peer, source: 0, target, bytes }
        };
        // Each rank begins beside itself, so that not all of them read one rank at first.
        let all = (0..ranks).map(|step| pull((rank + step) % ranks));
        let fold =
            |kind, peer, (from, bytes)| Step { kind, peer, source: from, target: from, bytes };
        let steps = match self.call.collective {
            Collective::AllReduce => vec![fold(Kind::FoldAll, rank, self.share())],
            Collective::Reduce { root } => vec![fold(Kind::FoldTo, root, self.share())],
            Collective::ReduceScatter => {
                vec![fold(Kind::FoldTo, rank, (0, self.block_bytes(rank)))]
            }
            Collective::AllGather | Collective::AllToAll => all.collect(),
            Collective::Broadcast { root } | Collective::Scatter { root } => vec![pull(root)],
            Collective::Gather { root } => {
                let bytes = self.block_bytes(rank);
                vec![Step { kind: Kind::Push, peer: root, source: 0, target: 0, bytes }]
            }
            Collective::Barrier => Vec::new(),
        };
        steps.into_iter().filter(|step| step.bytes > 0).collect()
    }

    /// This rank's share of one vector, in whole lines of caches but for the last one.
    fn share(&self) -> (u64, u64) {
        let bytes = self.block_bytes(0);
        let cut = |rank: u32| {
            let lines = bytes.div_ceil(128) as u128;
            ((lines * u128::from(rank) / u128::from(self.ranks)) as u64 * 128).min(bytes)
        };
        (cut(self.rank), cut(self.rank + 1) - cut(self.rank))
    }

    fn blocks(&self, most: u32) -> u32 {
        let Counts::Even(count) = self.call.counts else { return most };
        let blocks = self.call.collective.blocks(self.ranks).min(self.ranks);
        let bytes = (count * self.call.dtype.size()) as u64 * u64::from(blocks);
        bytes.div_ceil(BLOCK_BYTES).clamp(1, u64::from(most)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Op};

    fn call(collective: Collective, count: usize) -> Call {
        Call::new(collective, Dtype::F32, Op::Sum, count)
    }

    #[test]
    fn shares_are_whole_lines_and_cover_everything() {
        for ranks in 1..=8 {
            for count in [0, 1, 3, 4, 5, 1000, 1001] {
                let all_reduce = call(Collective::AllReduce, count);
                let mut at = 0;
                for rank in 0..ranks {
                    let shape = Shape { call: &all_reduce, ranks, rank };
                    let (from, bytes) = shape.share();
                    assert!(from == at && (from % 128 == 0 || bytes == 0), "{ranks} x {count}");
                    at += bytes;
                }
                assert_eq!(at, count as u64 * 4);
            }
        }
    }

    #[test]
    fn what_one_sends_the_other_takes() {
        let ranks = 5;
        for collective in Collective::ALL.into_iter().map(|it| it.with_root(3)) {
            let call = call(collective, if collective == Collective::Barrier { 0 } else { 7 });
            for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
                let sends = Shape { call: &call, ranks, rank: from }.sends(to).1;
                assert_eq!(sends, Shape { call: &call, ranks, rank: to }.takes(from).1);
            }
        }
    }

    #[test]
    fn uneven_all_to_all_counts_rows_and_columns() {
        let (to, from) = ([1, 2, 3].into(), [4, 5, 6].into());
        let counts = Counts::PerPair { to, from };
        let call = Call { counts, ..call(Collective::AllToAll, 0) };
        let shape = Shape { call: &call, ranks: 3, rank: 1 };
        // The block of a rank for itself is what it sends.
        assert_eq!([0, 1, 2].map(|peer| shape.sends(peer)), [(0, 4), (4, 8), (12, 12)]);
        assert_eq!([0, 1, 2].map(|peer| shape.takes(peer)), [(0, 16), (16, 8), (24, 24)]);
    }

    #[test]
    fn different_calls_have_different_signatures() {
        let mut seen = std::collections::HashSet::new();
        for collective in Collective::ALL {
            for count in 1..50 {
                assert!(seen.insert(signature(&call(collective, count))), "{collective} {count}");
            }
        }
    }
}
