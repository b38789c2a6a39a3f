//! How passes are made, and how much that takes of each part.

use crate::kernels::Heads;
use crate::kernels::cuda::ProductFormat;
use crate::parallel::tensor;
use crate::tape::Keep;

/// How passes are made.
#[derive(Clone, Copy)]
pub(crate) struct Passes {
    /// At a time, inside of blocks on this rank.
    pub(crate) samples: usize,
    pub(crate) keep: Keep,
    pub(crate) inside: ProductFormat,
    /// How ranks divide the model, if they do.
    pub(crate) split: Option<tensor::Split>,
    /// Rows of the stream on this rank, and the shape of attention.
    pub(crate) rows: usize,
    pub(crate) heads: Heads,
    /// Whether attention goes tile by tile, and keeps a number a row in place of its scores.
    pub(crate) has_tiles: bool,
    /// Whether units are tiles of linear layers, which come one after the other.
    pub(crate) has_tiled_layers: bool,
}

impl Passes {
    /// Whether other ranks have other rows of the stream.
    pub(super) fn divides_rows(&self) -> bool {
        self.split.is_some_and(tensor::Split::divides_rows)
    }

    /// Whether keys and values go round.
    pub(super) fn is_ring(&self) -> bool {
        self.split == Some(tensor::Split::Ring)
    }

    /// Rows inside of a block.
    pub(super) fn inner_rows(&self) -> usize {
        self.samples * self.heads.time
    }

    /// Numbers that attention keeps of a block: probabilities, or one of each of their rows.
    pub(super) fn attention(&self) -> [usize; 2] {
        let lines = self.samples * self.heads.heads * self.heads.time;
        let is_lean = self.has_tiles || self.is_ring();
        if is_lean { [0, lines] } else { [lines * self.heads.time, 0] }
    }

    /// Numbers of the scores that there are at a time.
    pub(super) fn scores(&self) -> usize {
        let chunk = self.heads.time / 2;
        match self.is_ring() {
            true => self.samples * self.heads.heads * chunk * chunk,
            false => self.attention()[0],
        }
    }
}
