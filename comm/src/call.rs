//! One call of a collective, before it meets any memory: what, of which type, how long.

use std::fmt;
use std::sync::Arc;

use brigade_schedule::Collective;

use crate::numbers::beyond;
use crate::{Dtype, Error, Op};

/// How many elements each block has.
///
/// A block is what one rank brings in or takes out: see [`Collective`] for how many there are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Counts {
    /// Every block has so many elements.
    Even(usize),
    /// Block `r`, that of rank `r`, has `counts[r]` elements. Gather and scatter need them all only
    /// on the root; elsewhere only the rank's own count is looked at.
    PerRank(Arc<[usize]>),
    /// All-to-all: what this rank sends to each rank, and what it receives from each.
    PerPair {
        /// `[ranks]` elements to each rank.
        to: Arc<[usize]>,
        /// `[ranks]` elements from each rank.
        from: Arc<[usize]>,
    },
}

/// A collective with its type, operator and lengths; equal calls share one plan.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which result.
    pub collective: Collective,
    /// The element type.
    pub dtype: Dtype,
    /// How elements are folded; ignored where nothing is folded.
    pub op: Op,
    /// The lengths, in elements.
    pub counts: Counts,
}

impl Call {
    /// A call with `count` elements in every block.
    pub fn new(collective: Collective, dtype: Dtype, op: Op, count: usize) -> Self {
        Self { collective, dtype, op, counts: Counts::Even(count) }
    }

    /// A call that only moves elements, with `count` in every block.
    pub fn moving(collective: Collective, dtype: Dtype, count: usize) -> Self {
        Self::new(collective, dtype, Op::Sum, count)
    }

    /// Elements of `block` as `rank` knows them; zero where it need not know.
    pub(crate) fn block_elems(&self, ranks: u32, rank: u32, block: u32) -> usize {
        match &self.counts {
            Counts::Even(count) => *count,
            // What others stated of a gather or a scatter is not looked at, however long it is.
            Counts::PerRank(_)
                if block != rank && self.collective.root().is_some_and(|root| root != rank) =>
            {
                0
            }
            Counts::PerRank(counts) => counts[block as usize],
            Counts::PerPair { to, from } => {
                let (source, target) = (block / ranks, block % ranks);
                if source == rank {
                    to[target as usize]
                } else if target == rank {
                    from[source as usize]
                } else {
                    0
                }
            }
        }
    }

    /// Elements of the input and of the output buffer of `rank`, in a call that makes sense among
    /// so many ranks: see [`Communicator::check`](crate::Communicator::check).
    ///
    /// # Panics
    ///
    /// If it does not, it may: counts of fewer ranks do not say how long all blocks are.
    pub fn buffer_elems(&self, ranks: u32, rank: u32) -> (usize, usize) {
        let (mut input, mut output) = (0, 0);
        for block in self.collective.blocks_of(ranks, rank) {
            if self.collective.has_input(ranks, rank, block) {
                input += self.block_elems(ranks, rank, block);
            }
            if self.collective.has_output(ranks, rank, block) {
                output += self.block_elems(ranks, rank, block);
            }
        }
        (input, output)
    }

    /// Whether lengths may differ from block to block.
    pub(crate) fn is_uneven(&self) -> bool {
        !matches!(self.counts, Counts::Even(_))
    }

    /// Refuse what no rank could carry out. Everything here is decided by this rank alone; the
    /// communicator stays usable after a refusal.
    pub(crate) fn validate(&self, ranks: u32, rank: u32) -> Result<(), Error> {
        if let Some(root) = self.collective.root()
            && root >= ranks
        {
            let root = beyond(root, ranks as usize);
            return Err(Error::invalid(format!("{self}: root {root}")));
        }
        if self.collective.folds() && !self.op.supports(self.dtype) {
            return Err(Error::invalid(format!(
                "{self}: operator {} has no meaning for type {}",
                self.op.name(),
                self.dtype.name()
            )));
        }
        let vectors: &[&Arc<[usize]>] = match &self.counts {
            Counts::Even(_) => &[],
            Counts::PerRank(counts) => &[counts],
            Counts::PerPair { to, from } => &[to, from],
        };
        if let Some(wrong) = vectors.iter().find(|v| v.len() != ranks as usize) {
            return Err(Error::invalid(format!(
                "{self}: {} counts were given for {ranks} ranks",
                wrong.len()
            )));
        }
        if let Counts::PerPair { to, from } = &self.counts
            && let (sent, received) = (to[rank as usize], from[rank as usize])
            && sent != received
        {
            return Err(Error::invalid(format!(
                "{self}: rank {rank} sends itself {sent} elements, and receives {received}"
            )));
        }
        if !self.fits_memory(ranks, rank) {
            return Err(Error::invalid(format!("{self}: no memory is that large")));
        }
        if self.collective == Collective::Barrier && self.counts != Counts::Even(0) {
            return Err(Error::invalid(format!("{self}: a barrier has no elements")));
        }
        let pairs = matches!(self.counts, Counts::PerPair { .. });
        let per_rank = matches!(self.counts, Counts::PerRank(_));
        let vector = self.collective.blocks(ranks) == 1 && ranks > 1;
        if (pairs && self.collective != Collective::AllToAll)
            || (per_rank && (vector || self.collective == Collective::AllToAll))
        {
            return Err(Error::invalid(format!("{self}: counts of this form do not fit it")));
        }
        Ok(())
    }
}

impl Call {
    /// Whether the bytes of all blocks that `rank` knows can be counted together, so that no length
    /// overflows later.
    fn fits_memory(&self, ranks: u32, rank: u32) -> bool {
        let sum = |counts: &[usize]| counts.iter().try_fold(0usize, |sum, c| sum.checked_add(*c));
        let elems = match &self.counts {
            Counts::Even(count) => count.checked_mul(self.collective.blocks(ranks) as usize),
            Counts::PerRank(_) => (0..ranks).try_fold(0usize, |sum, block| {
                sum.checked_add(self.block_elems(ranks, rank, block))
            }),
            Counts::PerPair { to, from } => sum(to).zip(sum(from)).map(|(to, from)| to.max(from)),
        };
        let bytes = elems.and_then(|elems| elems.checked_mul(self.dtype.size()));
        bytes.is_some_and(|bytes| isize::try_from(bytes).is_ok())
    }
}

impl fmt::Display for Call {
    /// As it is named in errors: `all-reduce(f32 x 1000, sum)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({}", self.collective, self.dtype.name())?;
        match &self.counts {
            Counts::Even(count) => write!(f, " x {count}")?,
            Counts::PerRank(counts) => write!(f, " x {counts:?}")?,
            Counts::PerPair { to, from } => write!(f, " x {to:?} out, {from:?} in")?,
        }
        if self.collective.folds() {
            write!(f, ", {}", self.op.name())?;
        }
        if let Some(root) = self.collective.root() {
            write!(f, ", root {root}")?;
        }
        write!(f, ")")
    }
}

/// The memory of a call, as bytes.
pub enum Buffers<'a> {
    /// What is read and what is written lie apart.
    OutOfPlace {
        /// The blocks this rank brings, in order.
        input: &'a [u8],
        /// The blocks this rank takes, in order.
        output: &'a mut [u8],
    },
    /// One buffer for both, laid out as NCCL lays it out: the larger of input and output, the
    /// smaller one lying at its own rank's block (reduce-scatter, all-gather, gather, scatter). An
    /// all-to-all in place goes by a copy of the whole input, for which the communicator keeps as
    /// much memory as the longest takes.
    InPlace(&'a mut [u8]),
}
