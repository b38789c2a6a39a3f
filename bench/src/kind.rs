//! What can be measured, and the arithmetic that goes with each: sizes, bandwidths, bounds.
//!
//! Sizes and bus factors are those of nccl-tests, so that tables can be laid side by side.

use std::sync::Arc;

use brigade_comm::{Call, Counts, Dtype, Op};
use brigade_schedule::Collective;

/// A collective as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Every rank ends with the fold of all vectors
    AllReduce,
    /// Rank r ends with block r of the fold
    ReduceScatter,
    /// Every rank ends with the blocks of all
    AllGather,
    /// Every rank ends with the root's vector
    Broadcast,
    /// The root ends with the fold of all vectors
    Reduce,
    /// Every rank sends a block to every rank
    AllToAll,
    /// The root ends with the blocks of all
    Gather,
    /// Every rank ends with its block of the root's
    Scatter,
    /// No rank leaves before all have entered
    Barrier,
    /// Every rank sends to the next one and receives from the one before
    SendRecv,
    /// All-gather with blocks of different lengths
    AllGatherV,
    /// Reduce-scatter with blocks of different lengths
    ReduceScatterV,
    /// All-to-all with blocks of different lengths
    AllToAllV,
    /// Gather with blocks of different lengths
    GatherV,
    /// Scatter with blocks of different lengths
    ScatterV,
}

impl Kind {
    /// The name on the command line, in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::AllToAll => "all-to-all",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Barrier => "barrier",
            Self::SendRecv => "send-recv",
            Self::AllGatherV => "all-gather-v",
            Self::ReduceScatterV => "reduce-scatter-v",
            Self::AllToAllV => "all-to-all-v",
            Self::GatherV => "gather-v",
            Self::ScatterV => "scatter-v",
        }
    }

    /// Whether operators make a difference.
    pub fn folds(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce | Self::ReduceScatterV)
    }

    /// Whether one rank is special.
    pub fn has_root(self) -> bool {
        matches!(
            self,
            Self::Broadcast
                | Self::Reduce
                | Self::Gather
                | Self::Scatter
                | Self::GatherV
                | Self::ScatterV
        )
    }

    /// Whether blocks have different lengths.
    pub fn is_uneven(self) -> bool {
        matches!(
            self,
            Self::AllGatherV
                | Self::ReduceScatterV
                | Self::AllToAllV
                | Self::GatherV
                | Self::ScatterV
        )
    }

    /// Whether input and output may be the same memory. What is sent to one neighbour while another
    /// one's is received cannot lie in one place, and a barrier has no memory.
    pub fn has_in_place(self) -> bool {
        !matches!(self, Self::SendRecv | Self::Barrier)
    }

    /// Whether a rank's vector is one block per rank, so that the size is shared among ranks.
    fn is_split(self) -> bool {
        !matches!(
            self,
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::Barrier | Self::SendRecv
        )
    }

    /// Elements per block for a size in bytes, rounded down.
    pub fn block_elems(self, bytes: usize, dtype: Dtype, ranks: usize) -> usize {
        let elems = bytes / dtype.size();
        match self {
            Self::Barrier => 0,
            _ if self.is_split() => elems / ranks,
            _ => elems,
        }
    }

    /// What nccl-tests calls the busbw factor: bus bandwidth over algorithm bandwidth.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let share = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            Self::AllReduce => 2.0 * share,
            _ if self.is_split() => share,
            _ => 1.0,
        }
    }

    /// The least number of bytes that the busiest rank must send, whatever the algorithm, when
    /// ranks do all the work themselves. `sizes`: what the case moves.
    pub fn sent_bound(self, sizes: &Sizes, ranks: usize) -> u64 {
        if ranks < 2 {
            return 0;
        }
        let ranks_wide = ranks as u64;
        let total = sizes.total as u64;
        match self {
            // Every byte must leave the ranks twice over in all, less what stays at home: shared
            // evenly that is 2(P-1)/P of the vector (Patarasu, Yuan 2009).
            Self::AllReduce => (2 * total * (ranks_wide - 1)).div_ceil(ranks_wide),
            Self::ReduceScatter | Self::AllGather => {
                (total * (ranks_wide - 1)).div_ceil(ranks_wide)
            }
            // The owner of the largest block must send that, whatever the others do.
            Self::AllGatherV => {
                (total * (ranks_wide - 1)).div_ceil(ranks_wide).max(sizes.largest as u64)
            }
            // What a rank has for the blocks of others must leave it, if only folded into more.
            Self::ReduceScatterV => total - sizes.least as u64,
            Self::Broadcast | Self::Reduce | Self::SendRecv => total,
            Self::AllToAll | Self::AllToAllV => sizes.others as u64,
            Self::Gather | Self::GatherV => sizes.largest_remote as u64,
            Self::Scatter | Self::ScatterV => sizes.others as u64,
            Self::Barrier => 0,
        }
    }

    /// The collective of the schedule behind it; none for send-recv, which is two plain calls.
    pub(crate) fn collective(self, root: u32) -> Option<Collective> {
        Some(match self {
            Self::AllReduce => Collective::AllReduce,
            Self::ReduceScatter | Self::ReduceScatterV => Collective::ReduceScatter,
            Self::AllGather | Self::AllGatherV => Collective::AllGather,
            Self::Broadcast => Collective::Broadcast { root },
            Self::Reduce => Collective::Reduce { root },
            Self::AllToAll | Self::AllToAllV => Collective::AllToAll,
            Self::Gather | Self::GatherV => Collective::Gather { root },
            Self::Scatter | Self::ScatterV => Collective::Scatter { root },
            Self::Barrier => Collective::Barrier,
            Self::SendRecv => return None,
        })
    }
}

/// How many bytes one case moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// nccl-tests' size: the whole vector.
    pub total: usize,
    /// The most that one rank has for the others (all-to-all) or the root has (scatter).
    pub others: usize,
    /// The largest block that does not lie where it is needed (gather).
    pub largest_remote: usize,
    /// The largest block.
    pub largest: usize,
    /// The smallest.
    pub least: usize,
}

/// One line of the table, before it is measured.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is measured.
    pub kind: Kind,
    /// The element type.
    pub dtype: Dtype,
    /// The operator; ignored where nothing is folded.
    pub op: Op,
    /// The root; ignored where there is none.
    pub root: u32,
    /// Elements per block (on average, where blocks differ).
    pub block_elems: usize,
}

impl Case {
    /// The call that `rank` makes; none for send-recv.
    pub fn call(&self, ranks: usize, rank: usize) -> Option<Call> {
        let collective = self.kind.collective(self.root)?;
        let mut call = Call::new(collective, self.dtype, self.op.clone(), self.block_elems);
        if self.kind == Kind::AllToAllV {
            let to = (0..ranks).map(|peer| self.uneven(ranks, rank + peer));
            let row: Arc<[usize]> = to.collect();
            call.counts = Counts::PerPair { to: row.clone(), from: row };
        } else if self.kind.is_uneven() {
            call.counts = Counts::PerRank((0..ranks).map(|r| self.uneven(ranks, r)).collect());
        }
        Some(call)
    }

    /// Elements of every block of the collective, in the order of its chunk space.
    pub(crate) fn block_counts(&self, ranks: usize) -> Vec<usize> {
        let blocks = match self.kind.collective(self.root) {
            Some(collective) => collective.blocks(ranks as u32) as usize,
            None => 1,
        };
        let elems = |block: usize| match self.kind {
            Kind::AllToAllV => self.uneven(ranks, block / ranks + block % ranks),
            _ if self.kind.is_uneven() => self.uneven(ranks, block),
            _ => self.block_elems,
        };
        (0..blocks).map(elems).collect()
    }

    /// How many bytes the case moves.
    pub fn sizes(&self, ranks: usize) -> Sizes {
        let blocks: Vec<usize> = match self.kind {
            _ if self.kind.is_uneven() => (0..ranks).map(|r| self.uneven(ranks, r)).collect(),
            _ if self.kind.is_split() => vec![self.block_elems; ranks],
            _ => vec![self.block_elems],
        };
        let bytes = self.dtype.size();
        let total = blocks.iter().sum::<usize>() * bytes;
        let root = if self.kind == Kind::AllToAllV { None } else { Some(self.root as usize) };
        let home = match root {
            Some(root) if root < blocks.len() => blocks[root],
            // Each rank of an uneven all-to-all keeps another block; the one that keeps the least
            // sends the most.
            _ => (0..ranks).map(|r| self.uneven(ranks, 2 * r)).min().unwrap_or(0),
        };
        let remote = blocks.iter().enumerate().filter(|(block, _)| Some(*block) != root);
        Sizes {
            total,
            others: total - home * bytes,
            largest_remote: remote.map(|(_, elems)| elems * bytes).max().unwrap_or(0),
            largest: blocks.iter().max().map_or(0, |elems| elems * bytes),
            least: blocks.iter().min().map_or(0, |elems| elems * bytes),
        }
    }

    /// The length of a block in the uneven forms: from next to nothing to about twice the average.
    fn uneven(&self, ranks: usize, index: usize) -> usize {
        2 * self.block_elems * (index % ranks + 1) / (ranks + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(kind: Kind, block_elems: usize) -> Case {
        Case { kind, dtype: Dtype::F32, op: Op::Sum, root: 0, block_elems }
    }

    #[test]
    fn names_are_those_of_the_command_line() {
        use clap::ValueEnum;
        for kind in Kind::value_variants() {
            let value = kind.to_possible_value().unwrap();
            assert_eq!(value.get_name(), kind.name());
        }
    }

    #[test]
    fn factors_are_those_of_nccl_tests() {
        assert_eq!(Kind::AllReduce.bus_factor(4), 1.5);
        assert_eq!(Kind::AllGather.bus_factor(4), 0.75);
        assert_eq!(Kind::Broadcast.bus_factor(4), 1.0);
    }

    #[test]
    fn a_size_that_does_not_divide_is_rounded_down_to_whole_elements() {
        assert_eq!(Kind::AllReduce.block_elems(7, Dtype::F32, 3), 1);
        assert_eq!(Kind::AllGather.block_elems(64, Dtype::F32, 3), 5);
        assert_eq!(Kind::AllGather.block_elems(3, Dtype::F32, 3), 0);
    }

    #[test]
    fn bounds_are_what_a_perfect_algorithm_sends() {
        let bound = |kind: Kind, ranks| kind.sent_bound(&case(kind, 12).sizes(ranks), ranks);
        assert_eq!(bound(Kind::AllReduce, 4), 72);
        assert_eq!(bound(Kind::AllGather, 4), 144);
        assert_eq!(bound(Kind::Gather, 4), 48);
        assert_eq!(bound(Kind::Scatter, 4), 144);
        assert_eq!(bound(Kind::AllToAll, 4), 144);
        assert_eq!(bound(Kind::Broadcast, 1), 0);
        // Blocks of 8 and 16 elements: there is but one way for each.
        assert_eq!([Kind::AllGatherV, Kind::ReduceScatterV].map(|kind| bound(kind, 2)), [64, 64]);
        // Of 6, 12 and 18.
        assert_eq!(bound(Kind::AllGatherV, 3), 96);
        assert_eq!(bound(Kind::ReduceScatterV, 3), 120);
    }

    #[test]
    fn uneven_rows_of_all_to_all_have_the_same_sum_on_every_rank() {
        let case = case(Kind::AllToAllV, 100);
        for rank in 0..3 {
            let (input, output) = case.call(3, rank).unwrap().buffer_elems(3, rank as u32);
            assert_eq!((input * 4, output * 4), (case.sizes(3).total, case.sizes(3).total));
        }
    }
}
