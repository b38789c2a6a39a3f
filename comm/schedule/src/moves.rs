//! The vocabulary: a rank's program is a list of moves over numbered chunks.
//!
//! # The chunk space
//!
//! A collective speaks of *blocks*: one vector (all-reduce, broadcast, reduce), one block per rank
//! (reduce-scatter, all-gather, gather, scatter), or one block per pair of ranks (all-to-all, block
//! `source * ranks + target`). An algorithm may cut every block into the same number of *pieces*;
//! chunk `block * pieces + piece` is the unit that moves name. Chunks from `blocks * pieces` on are
//! scratch: they belong to no caller's buffer, and `scratch[i]` names the chunk whose length
//! scratch chunk `i` shares. Lengths are given later, when a program is linked to a call; they may
//! differ from chunk to chunk and may be zero.
//!
//! # How a program runs
//!
//! Every ordered pair of ranks has one first-in-first-out wire. Moves on the same wire happen in
//! program order. Moves on different wires happen at the same time unless they touch the same chunk
//! and at least one of them writes it; then the later one in program order waits for the earlier
//! one. The wait is byte by byte: a `Send` of a chunk that a `Fold` is still filling streams along
//! behind it, so an algorithm need not cut its chunks to be pipelined. A wire must hold at least a
//! byte: ranks that exchange a chunk in place both send first.
//!
//! # What a chunk is to its rank
//!
//! A rank has room for every chunk its program names, and starts with what it brings in those it
//! [`brings`](Collective::has_input). It may overwrite them all: one that it brings but does not
//! [`take`](Collective::has_output) is not the caller's memory by then, nor is one that only passes
//! through. In a barrier a chunk is what a rank has heard; `Recv` adds to it, as `Fold` does.

use std::ops::Range;

use crate::Algorithm;

/// A run of consecutive chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first chunk.
    pub first: u32,
    /// How many chunks; at least one.
    pub count: u32,
}

impl Span {
    /// The span of one chunk.
    pub fn one(chunk: u32) -> Self {
        Self { first: chunk, count: 1 }
    }

    /// The chunk after the last one.
    pub fn end(self) -> u32 {
        self.first + self.count
    }

    /// The chunks of the span, in order.
    pub fn chunks(self) -> Range<u32> {
        self.first..self.end()
    }
}

/// One move of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Move {
    /// Send what the span holds now to rank `to`.
    Send {
        /// The receiving rank.
        to: u32,
        /// What is sent.
        span: Span,
    },
    /// Overwrite the span with what rank `from` sends.
    Recv {
        /// The sending rank.
        from: u32,
        /// What is overwritten.
        span: Span,
    },
    /// Fold what rank `from` sends into the span: `span = span ⊕ arriving`.
    Fold {
        /// The sending rank.
        from: u32,
        /// The operand and the result.
        span: Span,
    },
    /// Fold one span of this rank into another: `into = from ⊕ into`, the other way round than a
    /// `Fold`, so that what comes first in rank order can be gathered apart.
    Merge {
        /// The left operand, which stays as it is.
        from: Span,
        /// The right operand, which becomes the result; as many chunks as `from`, of the same
        /// lengths.
        into: Span,
    },
}

impl Move {
    /// The rank at the other end of the wire; `None` for a local move.
    pub fn peer(self) -> Option<u32> {
        match self {
            Self::Send { to, .. } => Some(to),
            Self::Recv { from, .. } | Self::Fold { from, .. } => Some(from),
            Self::Merge { .. } => None,
        }
    }

    /// The span that is sent or written.
    pub fn span(self) -> Span {
        match self {
            Self::Send { span, .. } | Self::Recv { span, .. } | Self::Fold { span, .. } => span,
            Self::Merge { into, .. } => into,
        }
    }
}

/// Which result every rank shall hold at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// Every rank ends with the fold of all vectors.
    AllReduce,
    /// Rank `r` ends with block `r` of the fold of all vectors.
    ReduceScatter,
    /// Every rank ends with the blocks of all ranks.
    AllGather,
    /// Every rank ends with the root's vector.
    Broadcast {
        /// The rank that has it.
        root: u32,
    },
    /// The root ends with the fold of all vectors.
    Reduce {
        /// The rank that gets it.
        root: u32,
    },
    /// Rank `t` ends with block `(s, t)` of every rank `s`.
    AllToAll,
    /// The root ends with the blocks of all ranks.
    Gather {
        /// The rank that gets them.
        root: u32,
    },
    /// Rank `r` ends with block `r` of the root.
    Scatter {
        /// The rank that has them.
        root: u32,
    },
    /// No rank leaves before every rank has entered. One block of length zero; what counts is that
    /// every rank has heard, at first or second hand, from every other.
    Barrier,
}

impl Collective {
    /// How many blocks the chunk space has.
    pub fn blocks(self, ranks: u32) -> u32 {
        match self {
            Self::AllReduce | Self::Broadcast { .. } | Self::Reduce { .. } | Self::Barrier => 1,
            Self::ReduceScatter | Self::AllGather | Self::Gather { .. } | Self::Scatter { .. } => {
                ranks
            }
            Self::AllToAll => ranks * ranks,
        }
    }

    /// The blocks that may concern `rank`, in order: those that it brings or takes, and others only
    /// where blocks are few. Of the square of an all-to-all these are its row and its column.
    pub fn blocks_of(self, ranks: u32, rank: u32) -> impl Iterator<Item = u32> {
        let (row, side) = match self {
            Self::AllToAll => (rank * ranks..(rank + 1) * ranks, ranks),
            _ => (0..self.blocks(ranks), 0),
        };
        let column = move |sources: Range<u32>| sources.map(move |it| it * ranks + rank);
        column(0..rank.min(side)).chain(row).chain(column((rank + 1).min(side)..side))
    }

    /// Whether `rank` brings `block` into the call.
    pub fn has_input(self, ranks: u32, rank: u32, block: u32) -> bool {
        match self {
            Self::AllReduce | Self::Reduce { .. } | Self::ReduceScatter | Self::Barrier => true,
            Self::AllGather | Self::Gather { .. } => block == rank,
            Self::Broadcast { root } | Self::Scatter { root } => rank == root,
            Self::AllToAll => block / ranks == rank,
        }
    }

    /// Whether `rank` takes `block` out of the call.
    pub fn has_output(self, ranks: u32, rank: u32, block: u32) -> bool {
        match self {
            Self::AllReduce | Self::AllGather | Self::Broadcast { .. } | Self::Barrier => true,
            Self::Reduce { root } | Self::Gather { root } => rank == root,
            Self::ReduceScatter | Self::Scatter { .. } => block == rank,
            Self::AllToAll => block % ranks == rank,
        }
    }

    /// The root, if it has one.
    pub fn root(self) -> Option<u32> {
        match self {
            Self::Broadcast { root }
            | Self::Reduce { root }
            | Self::Gather { root }
            | Self::Scatter { root } => Some(root),
            _ => None,
        }
    }

    /// The same collective with another root; without one, itself.
    pub fn with_root(self, root: u32) -> Self {
        match self {
            Self::Broadcast { .. } => Self::Broadcast { root },
            Self::Reduce { .. } => Self::Reduce { root },
            Self::Gather { .. } => Self::Gather { root },
            Self::Scatter { .. } => Self::Scatter { root },
            rootless => rootless,
        }
    }

    /// Whether blocks are folded (rather than only moved).
    pub fn folds(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce { .. })
    }
}

/// What one rank does in one collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The result the program is for.
    pub collective: Collective,
    /// The algorithm that wrote it.
    pub algorithm: Algorithm,
    /// How many ranks take part.
    pub ranks: u32,
    /// Whose program it is.
    pub rank: u32,
    /// How many pieces every block is cut into; the same on every rank.
    pub pieces: u32,
    /// For each scratch chunk, the chunk whose length it shares.
    pub scratch: Vec<u32>,
    /// The moves, in program order.
    pub moves: Vec<Move>,
}

impl Program {
    /// How many chunks the collective itself has; scratch chunks are numbered from here.
    pub fn chunks(&self) -> u32 {
        self.collective.blocks(self.ranks) * self.pieces
    }

    /// The chunk of the collective that shares its length with `chunk`: itself, unless it is
    /// scratch.
    ///
    /// Panics if there is no such chunk.
    pub fn shape(&self, chunk: u32) -> u32 {
        match chunk.checked_sub(self.chunks()) {
            None => chunk,
            Some(scratch) => self.scratch[scratch as usize],
        }
    }
}
