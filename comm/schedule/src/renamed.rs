//! A program among the same ranks by other names: how a schedule for consecutive ranks serves those
//! that lie otherwise.

use crate::write::join;
use crate::{Move, Program, Span};

impl Program {
    /// What this program is if the rank it calls v is rank `order[v]`: so are peers, blocks and the
    /// root. The programs of all ranks, renamed alike, are one schedule with as many steps and
    /// bytes. What was one span may become several, and what was folded in the order of ranks is
    /// folded in the other one.
    ///
    /// Panics if `order` does not have every rank once.
    pub fn renamed(self, order: &[u32]) -> Self {
        assert_eq!(order.len(), self.ranks as usize, "an order of all ranks");
        let name = |rank: u32| order[rank as usize];
        let one = |chunk: u32| Span::one(self.renamed_chunk(chunk, order));
        let mut moves = Vec::with_capacity(self.moves.len());
        for &step in &self.moves {
            if let Move::Merge { from, into } = step {
                let pairs = from.chunks().zip(into.chunks());
                moves.extend(pairs.map(|(a, b)| Move::Merge { from: one(a), into: one(b) }));
                continue;
            }
            moves.extend(join(step.span().chunks().map(one)).into_iter().map(|span| match step {
                Move::Send { to, .. } => Move::Send { to: name(to), span },
                Move::Recv { from, .. } => Move::Recv { from: name(from), span },
                Move::Fold { from, .. } => Move::Fold { from: name(from), span },
                Move::Merge { .. } => unreachable!("it was renamed above"),
            }));
        }
        let scratch = self.scratch.iter().map(|&like| self.renamed_chunk(like, order)).collect();
        let collective = match self.collective.root() {
            Some(root) => self.collective.with_root(name(root)),
            None => self.collective,
        };
        Self { collective, rank: name(self.rank), scratch, moves, ..self }
    }

    /// A chunk of the block that `order` makes of its own; scratch has no names.
    fn renamed_chunk(&self, chunk: u32, order: &[u32]) -> u32 {
        let (blocks, ranks) = (self.collective.blocks(self.ranks), self.ranks);
        let (block, piece) = (chunk / self.pieces, chunk % self.pieces);
        if chunk >= self.chunks() || blocks == 1 {
            return chunk;
        }
        let name = |rank: u32| order[rank as usize];
        let block = match blocks == ranks {
            true => name(block),
            false => name(block / ranks) * ranks + name(block % ranks),
        };
        block * self.pieces + piece
    }
}
