//! Units cut into the parts of ranks.

use brigade_comm::{Call, Counts, Dtype, Op};
use brigade_schedule::Collective;
use std::ops::Range;
use std::sync::Arc;

/// How one unit is cut into the ranks' parts.
#[derive(Clone, Debug)]
pub(super) struct Cut {
    /// Elements of each rank's part.
    pub(super) counts: Arc<[usize]>,
    /// This rank's part.
    pub(super) part: Range<usize>,
}

impl Cut {
    /// As evenly as it goes, without padding.
    pub(super) fn new(len: usize, rank: usize, ranks: usize) -> Cut {
        let edge = |rank: usize| len * rank / ranks;
        let counts = (0..ranks).map(|rank| edge(rank + 1) - edge(rank)).collect();
        Cut { counts, part: edge(rank)..edge(rank + 1) }
    }

    pub(super) fn len(&self) -> usize {
        self.counts.iter().sum()
    }

    /// A call with these parts.
    pub(super) fn call(&self, collective: Collective) -> Call {
        let counts = Counts::PerRank(Arc::clone(&self.counts));
        Call { counts, ..Call::new(collective, Dtype::F32, Op::Sum, 0) }
    }

    /// Each rank sends everyone their part of its lane, where so many copies of the state are
    /// held.
    pub(super) fn exchange(&self, copies: usize) -> Call {
        let from = vec![self.part.len(); copies * self.counts.len()].into();
        let to = match copies {
            1 => Arc::clone(&self.counts),
            _ => self.counts.repeat(copies).into(),
        };
        let counts = Counts::PerPair { to, from };
        Call { counts, ..Call::new(Collective::AllToAll, Dtype::F32, Op::Sum, 0) }
    }

    pub(super) fn all_reduce(&self) -> Call {
        Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, self.len())
    }
}
