//! Two levels by composition: direct inside a node, halving and doubling across nodes; or doubling
//! alone, which takes fewer steps there and is for what is short.
//!
//! Every rank owns one part. Inside a node, local rank q speaks for the parts of all ranks that are
//! q-th in their node; across nodes, the q-th ranks are a group of their own.
//!
//! ```text
//! 6 ranks, nodes of 3          inside: reduce-scatter by column, across: by row, and back
//! node 0:  0  1  2             {0,3}  {1,4}  {2,5}   column q belongs to local rank q
//! node 1:  3  4  5             groups across: 0-3, 1-4, 2-5
//! ```
//!
//! The last node may be smaller. There, local rank q mod (its size) stands in for local rank q.

use crate::write::{Group, join};
use crate::{Collective, Program, Span, direct, doubling, halving};

/// Two levels. With g ranks in a node and N nodes, P = gN; n = all blocks:
///
/// | collective | steps | bytes sent per rank inside its node | bytes sent per rank across |
/// |---|---|---|---|
/// | reduce-scatter, all-gather | 1 + ceil(log2 N) | n(g-1)/g | n(N-1)/P |
/// | all-reduce | 2 + 2·ceil(log2 N) | 2n(g-1)/g | 2n(N-1)/P |
///
/// Together n(P-1)/P and 2n(P-1)/P: as few as a flat algorithm sends, and as few across as
/// possible. Compare Jia et al. 2018, "Highly scalable deep learning training system with
/// mixed-precision", and the "rab" hierarchy of UCC.
pub(crate) fn write(program: &mut Program, node_ranks: u32) -> Option<()> {
    if node_ranks < 2 || node_ranks >= program.ranks {
        return None;
    }
    let mut nodes = Nodes { ranks: program.ranks, node_ranks, by_column: false };
    match program.collective {
        Collective::AllReduce => {
            program.pieces = program.ranks;
            nodes.by_column = true;
            nodes.reduce_scatter(program);
            nodes.all_gather(program);
        }
        Collective::ReduceScatter => nodes.reduce_scatter(program),
        Collective::AllGather => nodes.all_gather(program),
        _ => return None,
    }
    Some(())
}

/// Two levels in few steps across: whole columns go there and are folded by doubling, one for each
/// rank of a node. With N nodes of g ranks, d = log2 N for a power of two, else floor(log2 N) + 2:
///
/// | all-reduce | steps, at most | bytes sent per rank inside its node | across, at most |
/// |---|---|---|---|
/// | N a power of two | 2 + d | 2n(g-1)/g | n·d/g |
/// | other N | 2 + d | 2n(g-1)/g | n(d-1)/g |
///
/// Doubling among all ranks sends g times the bytes across, and takes more steps there where g is
/// no power of two.
pub(crate) fn write_doubling(program: &mut Program, node_ranks: u32) -> Option<()> {
    let is_several = node_ranks >= 2 && node_ranks < program.ranks;
    if !is_several || program.collective != Collective::AllReduce {
        return None;
    }
    program.pieces = node_ranks;
    let nodes = Nodes { ranks: program.ranks, node_ranks, by_column: true };
    let inside = nodes.inside(program.rank, |column| Some(Span::one(column)));
    direct::reduce_scatter(program, &inside);
    for group in nodes.across(program.rank, |_, column| Some(Span::one(column))) {
        doubling::all_reduce(program, &group);
    }
    direct::all_gather(program, &inside);
    Some(())
}

/// Ranks in rows (nodes) and columns (the q-th rank of each node).
struct Nodes {
    ranks: u32,
    node_ranks: u32,
    /// Whether chunks are numbered column by column, so that a column is one span: an all-reduce
    /// may hand out its pieces as it likes.
    by_column: bool,
}

impl Nodes {
    fn reduce_scatter(&self, program: &mut Program) {
        direct::reduce_scatter(program, &self.inside(program.rank, |it| self.column(it)));
        for group in self.across(program.rank, |node, column| self.owned(node, column)) {
            halving::reduce_scatter(program, &group);
        }
    }

    fn all_gather(&self, program: &mut Program) {
        for group in self.across(program.rank, |node, column| self.owned(node, column)) {
            doubling::all_gather(program, &group);
        }
        direct::all_gather(program, &self.inside(program.rank, |it| self.column(it)));
    }

    /// The ranks of this rank's node; local rank q has the columns it stands for, each of which is
    /// `chunks(column)`.
    fn inside<C: IntoIterator<Item = Span>>(&self, rank: u32, chunks: impl Fn(u32) -> C) -> Group {
        let first = rank - rank % self.node_ranks;
        let size = self.node_ranks.min(self.ranks - first);
        let columns = |q| (q..self.node_ranks).step_by(size as usize);
        Group::new((first..first + size).collect(), rank, |q| join(columns(q).flat_map(&chunks)))
    }

    /// For each column that this rank stands for, the ranks that stand for it in their nodes, each
    /// with `part(node, column)`.
    fn across(&self, rank: u32, part: impl Fn(u32, u32) -> Option<Span>) -> Vec<Group> {
        let nodes = self.ranks.div_ceil(self.node_ranks);
        let size = |node: u32| self.node_ranks.min(self.ranks - node * self.node_ranks);
        let group = |column: u32| {
            let members = (0..nodes).map(|node| node * self.node_ranks + column % size(node));
            Group::new(members.collect(), rank, |node| part(node, column))
        };
        let (node, local) = (rank / self.node_ranks, rank % self.node_ranks);
        (local..self.node_ranks).step_by(size(node) as usize).map(group).collect()
    }

    /// The chunk of a column that somebody in that node owns: in a smaller one, maybe nobody.
    fn owned(&self, node: u32, column: u32) -> Option<Span> {
        let owner = node * self.node_ranks + column;
        (owner < self.ranks).then(|| Span::one(self.chunk(owner)))
    }

    /// The chunks of a column, from the first node to the last.
    fn column(&self, column: u32) -> impl Iterator<Item = Span> {
        (column..self.ranks)
            .step_by(self.node_ranks as usize)
            .map(|owner| Span::one(self.chunk(owner)))
    }

    /// The chunk that a rank owns.
    fn chunk(&self, owner: u32) -> u32 {
        if !self.by_column {
            return owner;
        }
        let (row, column) = (owner / self.node_ranks, owner % self.node_ranks);
        let full_columns = self.ranks % self.node_ranks;
        column * (self.ranks / self.node_ranks) + column.min(full_columns) + row
    }
}
