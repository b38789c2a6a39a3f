//! The pen: how an algorithm writes moves, and the groups of ranks it writes them for.
//!
//! An algorithm is written once for a [`Group`]: some members, and for each member a *part* of the
//! chunk space. The whole world is a group; so are the ranks of one node, or the third rank of
//! every node. That is all that composition takes.

use crate::{Move, Program, Span};

impl Program {
    /// Appends a send of each span to rank `to`.
    pub(crate) fn send(&mut self, to: u32, spans: impl IntoIterator<Item = Span>) {
        debug_assert_ne!(to, self.rank, "a rank has no wire to itself");
        self.moves.extend(spans.into_iter().map(|span| Move::Send { to, span }));
    }

    /// Appends a receive from rank `from` into each span.
    pub(crate) fn recv(&mut self, from: u32, spans: impl IntoIterator<Item = Span>) {
        debug_assert_ne!(from, self.rank, "a rank has no wire to itself");
        self.moves.extend(spans.into_iter().map(|span| Move::Recv { from, span }));
    }

    /// Appends a fold of what rank `from` sends into each span.
    pub(crate) fn fold(&mut self, from: u32, spans: impl IntoIterator<Item = Span>) {
        debug_assert_ne!(from, self.rank, "a rank has no wire to itself");
        self.moves.extend(spans.into_iter().map(|span| Move::Fold { from, span }));
    }

    /// Appends a local fold, `into = from ⊕ into`.
    pub(crate) fn merge(&mut self, from: Span, into: Span) {
        debug_assert_eq!(from.count, into.count);
        self.moves.push(Move::Merge { from, into });
    }

    /// New scratch chunks of the same lengths as `like`. The number of pieces must be set before.
    pub(crate) fn scratch_like(&mut self, like: Span) -> Span {
        let first = self.chunks() + self.scratch.len() as u32;
        self.scratch.extend(like.chunks());
        Span { first, count: like.count }
    }

    /// The other ranks, starting after this one: no two ranks begin with the same peer.
    pub(crate) fn after(&self) -> impl DoubleEndedIterator<Item = u32> + use<> {
        let (ranks, rank) = (self.ranks, self.rank);
        (1..ranks).map(move |step| (rank + step) % ranks)
    }

    /// The other ranks, starting before this one: the order in which [`Program::after`] reaches it.
    pub(crate) fn before(&self) -> impl Iterator<Item = u32> + use<> {
        self.after().rev()
    }
}

/// Some ranks in a given order, seen by one of them; each has a part of the chunk space.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The rank of each member.
    members: Vec<u32>,
    /// The part of each member; may be empty.
    parts: Vec<Vec<Span>>,
    /// Which member this program's rank is.
    pub(crate) me: u32,
}

impl Group {
    /// A group of `members`, one of which is `rank`; member `i` has the part `part(i)`.
    pub(crate) fn new<P>(members: Vec<u32>, rank: u32, part: impl Fn(u32) -> P) -> Self
    where
        P: IntoIterator<Item = Span>,
    {
        let me = members.iter().position(|&member| member == rank);
        let me = me.expect("a rank writes only for groups it is in") as u32;
        let parts = (0..members.len() as u32).map(|i| part(i).into_iter().collect()).collect();
        Self { members, parts, me }
    }

    /// All ranks in order; rank `i` has chunk `i`.
    pub(crate) fn world(program: &Program) -> Self {
        Self::new((0..program.ranks).collect(), program.rank, |i| [Span::one(i)])
    }

    /// All ranks in order starting at `root`; member `i` has chunk `chunk(i, its rank)`.
    pub(crate) fn rooted(program: &Program, root: u32, chunk: fn(u32, u32) -> u32) -> Self {
        let rank_of = |i| (root + i) % program.ranks;
        let members = (0..program.ranks).map(rank_of).collect();
        Self::new(members, program.rank, |i| [Span::one(chunk(i, rank_of(i)))])
    }

    /// The same group the other way round.
    pub(crate) fn reversed(mut self) -> Self {
        self.members.reverse();
        self.parts.reverse();
        self.me = self.size() - 1 - self.me;
        self
    }

    /// How many members.
    pub(crate) fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// The rank of member `index`, counted around the circle.
    pub(crate) fn rank(&self, index: u32) -> u32 {
        self.members[(index % self.size()) as usize]
    }

    /// The parts of `count` members from `first` on, around the circle; neighbouring spans are one.
    pub(crate) fn parts(&self, first: u32, count: u32) -> Vec<Span> {
        let members = (first..first + count).map(|i| (i % self.size()) as usize);
        join(members.flat_map(|i| self.parts[i].iter().copied()))
    }
}

/// The same chunks in the same order in as few spans as possible.
pub(crate) fn join(spans: impl IntoIterator<Item = Span>) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if last.end() == span.first => last.count += span.count,
            _ => joined.push(span),
        }
    }
    joined
}
