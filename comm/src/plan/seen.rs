//! The blocks that a rank has to do with, numbered without gaps.
//!
//! An all-to-all has as many blocks as there are pairs of ranks, of which one rank sees a row, a
//! column, and what passes through it: maps of all of them would be the largest part of its plan.

use brigade_schedule::{Collective, Move, Program};

/// The chunks of a program that mean something on its rank.
pub(super) struct Seen {
    /// In order.
    blocks: Vec<u32>,
    pieces: u32,
    /// Where the numbers of scratch chunks begin, which are all seen, and how many there are.
    scratch: (u32, u32),
}

impl Seen {
    pub(super) fn of(program: &Program) -> Self {
        let (collective, pieces, chunks) = (program.collective, program.pieces, program.chunks());
        let mut blocks: Vec<u32> = collective.blocks_of(program.ranks, program.rank).collect();
        if collective == Collective::AllToAll {
            let spans = program.moves.iter().flat_map(|step| match *step {
                Move::Merge { from, into } => [from, into],
                Move::Send { span, .. } | Move::Recv { span, .. } | Move::Fold { span, .. } => {
                    [span; 2]
                }
            });
            let named = spans.flat_map(|span| span.chunks()).map(|chunk| program.shape(chunk));
            blocks.extend(named.chain(program.scratch.iter().copied()).map(|it| it / pieces));
            blocks.sort_unstable();
            blocks.dedup();
        }
        Self { blocks, pieces, scratch: (chunks, program.scratch.len() as u32) }
    }

    /// In order.
    pub(super) fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// The number of a block among those seen; none for one that is not.
    pub(super) fn block(&self, block: u32) -> Option<usize> {
        // Where all are seen each has its own number.
        if self.blocks.get(block as usize) == Some(&block) {
            return Some(block as usize);
        }
        self.blocks.binary_search(&block).ok()
    }

    /// The number of a chunk, likewise; scratch comes last.
    pub(super) fn chunk(&self, chunk: u32) -> Option<usize> {
        let (blocks, pieces) = (self.blocks.len(), self.pieces as usize);
        match chunk.checked_sub(self.scratch.0) {
            Some(scratch) => Some(blocks * pieces + scratch as usize),
            None => {
                let piece = (chunk % self.pieces) as usize;
                self.block(chunk / self.pieces).map(|block| block * pieces + piece)
            }
        }
    }

    /// How many chunks there are, with scratch.
    pub(super) fn count(&self) -> usize {
        self.blocks.len() * self.pieces as usize + self.scratch.1 as usize
    }

    /// Every chunk of the collective, in the order of the numbers.
    pub(super) fn chunks(&self) -> impl Iterator<Item = u32> {
        let pieces = self.pieces;
        self.blocks.iter().flat_map(move |block| block * pieces..(block + 1) * pieces)
    }

    /// Those, and then the scratch chunks.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        let (first, count) = self.scratch;
        self.chunks().chain(first..first + count)
    }
}

#[cfg(test)]
mod tests {
    use brigade_schedule::{Algorithm, program};

    use super::*;

    fn seen(collective: Collective, algorithm: Algorithm, ranks: u32) -> Seen {
        Seen::of(&program(collective, algorithm, ranks, 2).expect("there is such an algorithm"))
    }

    #[test]
    fn every_chunk_that_is_seen_has_a_number_of_its_own() {
        for (collective, algorithm) in [
            (Collective::AllToAll, Algorithm::Pairwise),
            (Collective::AllToAll, Algorithm::Bruck),
            (Collective::AllReduce, Algorithm::BiRing),
            (Collective::AllReduce, Algorithm::Ordered),
        ] {
            let seen = seen(collective, algorithm, 5);
            let numbers: Vec<_> = seen.all().map(|chunk| seen.chunk(chunk)).collect();
            let all: Vec<_> = (0..seen.count()).map(Some).collect();
            assert_eq!(numbers, all, "{collective} by {algorithm}");
        }
    }

    #[test]
    fn of_an_all_to_all_a_rank_sees_its_row_its_column_and_what_passes_through() {
        let straight = seen(Collective::AllToAll, Algorithm::Pairwise, 4);
        assert_eq!(straight.blocks(), [2, 6, 8, 9, 10, 11, 14]);
        assert_eq!(straight.block(5), None);
        let many = seen(Collective::AllToAll, Algorithm::Pairwise, 1000);
        assert_eq!(many.count(), 2 * 1000 - 1);
        let around = seen(Collective::AllToAll, Algorithm::Bruck, 1000);
        assert!(around.count() < 10 * 1000, "{}", around.count());
        assert_eq!(seen(Collective::AllGather, Algorithm::Ring, 5).blocks(), [0, 1, 2, 3, 4]);
    }
}
