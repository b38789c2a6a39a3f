//! What forward keeps for backward, and the scratch that backward needs: all of it allocated once.

use crate::kernels::Heads;
use crate::layout::Config;

/// Saved activations of one block. n = batch · time rows, c = width.
pub(crate) struct BlockTape {
    /// [n × c], first norm's output, and its [n × 2] statistics.
    pub(crate) ln1: Vec<f32>,
    pub(crate) stats1: Vec<f32>,
    /// [n × 3c]
    pub(crate) qkv: Vec<f32>,
    /// [batch × heads × time × time]
    pub(crate) probs: Vec<f32>,
    /// [n × c], attention's output before its projection.
    pub(crate) mixed: Vec<f32>,
    /// [n × c], the residual stream between attention and the perceptron.
    pub(crate) middle: Vec<f32>,
    /// [n × c], second norm's output, and its [n × 2] statistics.
    pub(crate) ln2: Vec<f32>,
    pub(crate) stats2: Vec<f32>,
    /// [n × 4c], before and after GELU.
    pub(crate) hidden: Vec<f32>,
    pub(crate) active: Vec<f32>,
}

/// Gradients on their way down; each block reuses them.
pub(crate) struct Gradients {
    /// [n × c], of the residual stream.
    pub(crate) residual: Vec<f32>,
    /// [n × c], of whatever fed a linear layer.
    pub(crate) narrow: Vec<f32>,
    /// [n × 4c], of the perceptron's inside; its first [n × 3c] also serve queries, keys and
    /// values.
    pub(crate) wide: Vec<f32>,
    /// [batch × `Heads::scratch`]
    pub(crate) scores: Vec<f32>,
}

/// Activations of one forward pass over `batch` samples of `time` tokens.
pub struct Tape {
    pub(crate) heads: Heads,
    pub(crate) batch: usize,
    /// The residual stream before each block and after the last: [layers + 1][n × c].
    pub(crate) stream: Vec<Vec<f32>>,
    pub(crate) blocks: Vec<BlockTape>,
    /// [n × c], final norm's output, and its [n × 2] statistics.
    pub(crate) lnf: Vec<f32>,
    pub(crate) statsf: Vec<f32>,
    /// [n × vocab]; the loss turns it into its own gradient.
    pub(crate) logits: Vec<f32>,
    /// [n]
    pub(crate) losses: Vec<f32>,
    pub(crate) grads: Gradients,
}

impl Tape {
    /// Allocate for `batch` samples of `time` tokens. Cost: about 4·n·(layers·(16c + heads·time) +
    /// vocab) bytes.
    pub fn new(config: &Config, batch: usize, time: usize) -> Tape {
        assert!(
            batch > 0 && time > 0 && time <= config.context,
            "{batch} samples of {time} tokens"
        );
        let heads = Heads { time, heads: config.heads, width: config.width };
        let (n, c) = (batch * time, config.width);
        let zeros = |len: usize| vec![0.0f32; len];
        let block = || BlockTape {
            ln1: zeros(n * c),
            stats1: zeros(n * 2),
            qkv: zeros(n * 3 * c),
            probs: zeros(batch * config.heads * time * time),
            mixed: zeros(n * c),
            middle: zeros(n * c),
            ln2: zeros(n * c),
            stats2: zeros(n * 2),
            hidden: zeros(n * 4 * c),
            active: zeros(n * 4 * c),
        };
        Tape {
            heads,
            batch,
            stream: (0..=config.layers).map(|_| zeros(n * c)).collect(),
            blocks: (0..config.layers).map(|_| block()).collect(),
            lnf: zeros(n * c),
            statsf: zeros(n * 2),
            logits: zeros(n * config.vocab),
            losses: zeros(n),
            grads: Gradients {
                residual: zeros(n * c),
                narrow: zeros(n * c),
                wide: zeros(n * 4 * c),
                scores: zeros(batch * heads.scratch()),
            },
        }
    }

    /// Tokens that a pass takes: batch · time.
    pub fn tokens(&self) -> usize {
        self.batch * self.heads.time
    }

    /// The scores of every next token after the last `forward`: [tokens × vocab].
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// The loss at every token after the last `loss`: `[tokens]`.
    pub fn losses(&self) -> &[f32] {
        &self.losses
    }
}
