//! How much of a pass one rank has.

use crate::kernels::Heads;
use crate::layout::Config;

/// What one rank has of a pass over some samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Rows of the residual stream, by their place among the tokens of the pass.
    pub rows: Vec<u32>,
    /// Samples inside of the blocks, and the shape of attention there.
    pub samples: usize,
    /// Tokens per sample, heads and numbers per token inside.
    pub heads: Heads,
    /// Elements that attention keeps for its backward.
    pub probs: usize,
    /// Scratch of attention's backward.
    pub scores: usize,
}

impl Extent {
    /// All of it.
    pub fn whole(config: &Config, batch: usize, time: usize) -> Extent {
        let heads = Heads { time, heads: config.heads, width: config.width };
        Extent::inside((0..(batch * time) as u32).collect(), batch, heads)
    }

    /// These rows of the stream, and so many samples inside, whose scores are kept.
    pub fn inside(rows: Vec<u32>, samples: usize, heads: Heads) -> Extent {
        let probs = samples * heads.heads * heads.time * heads.time;
        Extent { rows, samples, heads, probs, scores: samples * heads.scratch() }
    }

    /// Elements of an activation inside that has a head's width in all heads.
    pub(crate) fn inner(&self) -> usize {
        self.samples * self.heads.time * self.heads.width
    }
}
