//! What forward keeps for backward, and the scratch that backward needs: all of it allocated once.

pub use crate::extent::Extent;
use crate::kernels::Heads;
use crate::layout::Config;
use crate::moe::MixtureTape;
use std::ops::Range;

/// What a pass keeps of its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Everything that backward needs.
    #[default]
    All,
    /// What goes in: the forward of a block is computed again before its backward (Chen et al.
    /// 2016), with the same bits.
    Inputs,
    /// The same for the last block; what goes into the others is kept elsewhere.
    LastInput,
}

/// Saved activations of one block. n = batch · time rows, c = width, of whatever this rank has.
pub(crate) struct BlockTape {
    /// [n × c], first norm's output, and its [n × 2] statistics.
    pub(crate) ln1: Vec<f32>,
    pub(crate) stats1: Vec<f32>,
    /// [n × 3c]
    pub(crate) qkv: Vec<f32>,
    /// [batch × heads × time × time], or what else attention keeps.
    pub(crate) probs: Vec<f32>,
    /// [n × c], attention's output before its projection.
    pub(crate) mixed: Vec<f32>,
    /// [n × c], the residual stream between attention and the perceptron.
    pub(crate) middle: Vec<f32>,
    /// [n × c], second norm's output, and its [n × 2] statistics.
    pub(crate) ln2: Vec<f32>,
    pub(crate) stats2: Vec<f32>,
    /// [n × 4c], before and after GELU; empty where there are experts.
    pub(crate) hidden: Vec<f32>,
    pub(crate) active: Vec<f32>,
    /// What experts keep, which is as much as gates decide.
    pub(crate) mixture: MixtureTape,
}

/// Gradients on their way down; each unit and each micro-batch reuses them.
pub struct Scratch {
    /// [n × c], of the residual stream.
    pub(crate) residual: Vec<f32>,
    /// [n × c], of whatever fed a linear layer.
    pub(crate) narrow: Vec<f32>,
    /// [n × 4c], of the perceptron's inside; its first [n × 3c] also serve queries, keys and
    /// values.
    pub(crate) wide: Vec<f32>,
    /// [batch × `Heads::scratch`]
    pub(crate) scores: Vec<f32>,
    /// For tiles: the part of a gradient that is one's, and what it adds to that of its input.
    pub(crate) tile: Vec<f32>,
}

impl Scratch {
    /// Allocate for `batch` samples of `time` tokens. Cost: 4·n·(6c) bytes and a little.
    pub fn new(config: &Config, batch: usize, time: usize) -> Scratch {
        Scratch::of(config, &Extent::whole(config, batch, time))
    }

    /// Allocate for what a rank has of a pass.
    pub(crate) fn of(config: &Config, extent: &Extent) -> Scratch {
        let (stream, inner) = (extent.rows.len() * config.width, extent.inner());
        Scratch {
            residual: vec![0.0; stream],
            narrow: vec![0.0; stream.max(inner)],
            wide: vec![0.0; 4 * inner],
            scores: vec![0.0; extent.scores],
            tile: Vec::new(),
        }
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        let Scratch { residual, narrow, wide, scores, tile } = self;
        4 * (residual.len() + narrow.len() + wide.len() + scores.len() + tile.len()) as u64
    }
}

/// Activations of one forward pass over `batch` samples of `time` tokens, through some units.
pub struct Tape {
    /// Of whole samples, of which there are so many.
    pub(crate) shape: Heads,
    pub(crate) batch: usize,
    /// Of attention, on this rank.
    pub(crate) heads: Heads,
    /// Rows of the stream that this rank has, and the targets there.
    pub(crate) rows: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    /// The first of the units.
    pub(crate) first: usize,
    /// What goes into each unit and what comes out of the last: [units + 1][n × c]. Nothing of the
    /// kind goes into the embedding, and logits come out of the head: those are empty.
    pub(crate) stream: Vec<Vec<f32>>,
    /// Of each unit, or of one after the other; those of the embedding and the head are empty.
    blocks: Vec<BlockTape>,
    /// The unit that the only one is of, where one is for all.
    held: Option<usize>,
    /// [n × c], final norm's output, and its [n × 2] statistics.
    pub(crate) lnf: Vec<f32>,
    pub(crate) statsf: Vec<f32>,
    /// [n × vocab]; the loss turns it into its own gradient.
    pub(crate) logits: Vec<f32>,
    /// `[n]`
    pub(crate) losses: Vec<f32>,
    /// For tiles: what one makes, and what that is added to.
    pub(crate) tile: Vec<f32>,
}

impl Tape {
    /// Allocate for `batch` samples of `time` tokens through the whole model. Cost: about
    /// 4·n·(layers·(16c + heads·time) + vocab) bytes.
    pub fn new(config: &Config, batch: usize, time: usize) -> Tape {
        Tape::of_units(config, 0..config.layers + 2, batch, time)
    }

    /// Allocate for some units that follow each other.
    pub fn of_units(config: &Config, units: Range<usize>, batch: usize, time: usize) -> Tape {
        Tape::of(config, units, batch, time, Extent::whole(config, batch, time), Keep::All)
    }

    /// Allocate for what a rank has of some units that follow each other.
    pub(crate) fn of(
        config: &Config,
        units: Range<usize>,
        batch: usize,
        time: usize,
        extent: Extent,
        keep: Keep,
    ) -> Tape {
        assert!(
            batch > 0 && time > 0 && time <= config.context,
            "{batch} samples of {time} tokens"
        );
        let (rows, c, end) = (extent.rows.len(), config.width, config.layers + 2);
        let (stream, inner) = (rows * c, extent.inner());
        let zeros = |len: usize, is_there: bool| vec![0.0f32; if is_there { len } else { 0 }];
        let block = |unit: usize| {
            let zeros = |len| zeros(len, unit > 0 && unit + 1 < end);
            BlockTape {
                ln1: zeros(stream),
                stats1: zeros(rows * 2),
                qkv: zeros(3 * inner),
                probs: zeros(extent.probs),
                mixed: zeros(inner),
                middle: zeros(stream),
                ln2: zeros(stream),
                stats2: zeros(rows * 2),
                hidden: zeros(if config.experts == 0 { 4 * inner } else { 0 }),
                active: zeros(if config.experts == 0 { 4 * inner } else { 0 }),
                mixture: MixtureTape::default(),
            }
        };
        let has_head = units.end == end;
        // What goes into one block and comes out of it: both are passed on.
        let (is_lean, lean) = (keep == Keep::LastInput, end.min(units.start.max(1) + 2));
        Tape {
            shape: Heads { time, heads: config.heads, width: c },
            batch,
            heads: extent.heads,
            first: units.start,
            stream: (units.start..=units.end)
                .map(|unit| zeros(stream, unit > 0 && unit < if is_lean { lean } else { end }))
                .collect(),
            blocks: match keep {
                Keep::All => units.map(block).collect(),
                // If there is any block, the second unit is one, or else the first.
                Keep::Inputs | Keep::LastInput => {
                    vec![block(units.start.max(1).min(units.end - 1))]
                }
            },
            held: (keep != Keep::All).then_some(usize::MAX),
            lnf: zeros(stream, has_head),
            statsf: zeros(rows * 2, has_head),
            logits: zeros(rows * config.vocab, has_head),
            losses: zeros(rows, has_head),
            tile: Vec::new(),
            targets: vec![0; rows],
            rows: extent.rows,
        }
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        let of_block = |t: &BlockTape| {
            let narrow = t.ln1.len() + t.mixed.len() + t.middle.len() + t.ln2.len();
            let wide = t.qkv.len() + t.probs.len() + t.hidden.len() + t.active.len();
            narrow + wide + t.stats1.len() + t.stats2.len()
        };
        let head = self.lnf.len() + self.statsf.len() + self.logits.len() + self.losses.len();
        let stream: usize = self.stream.iter().map(Vec::len).sum();
        let blocks = self.blocks.iter().map(of_block).sum::<usize>();
        let places = self.rows.len() + self.targets.len();
        4 * (stream + head + places + self.tile.len() + blocks) as u64
    }

    /// Whether a unit's forward must be computed again before its backward.
    pub fn has_lost(&self, unit: usize) -> bool {
        self.held.is_some_and(|held| held != unit)
            && self.stream[unit - self.first..][..2].iter().all(|end| !end.is_empty())
    }

    /// Where a unit's activations are.
    fn slot(&self, unit: usize) -> usize {
        if self.held.is_some() { 0 } else { unit - self.first }
    }

    /// A unit's activations.
    pub(crate) fn block(&self, unit: usize) -> &BlockTape {
        assert!(self.held.is_none_or(|held| held == unit), "unit {unit} is not what is held");
        &self.blocks[self.slot(unit)]
    }

    /// What goes into a block, and room for what comes out of it and what is kept of it.
    pub(crate) fn of_block(&mut self, unit: usize) -> (&[f32], &mut [f32], &mut BlockTape) {
        let (at, slot) = (unit - self.first, self.slot(unit));
        self.held = self.held.map(|_| unit);
        let (before, after) = self.stream.split_at_mut(at + 1);
        (&before[at], &mut after[0], &mut self.blocks[slot])
    }

    /// What goes into a unit.
    pub(crate) fn input(&self, unit: usize) -> &[f32] {
        &self.stream[unit - self.first]
    }

    /// After the forward of a block whose input is kept elsewhere: its memory serves the block
    /// after the next.
    pub(crate) fn pass_on(&mut self, unit: usize) {
        let at = unit - self.first;
        self.stream.swap(at, at + 2);
    }

    /// Before the backward of such a block: room for its input.
    pub(crate) fn take_back(&mut self, unit: usize) -> &mut [f32] {
        let at = unit - self.first;
        self.stream.swap(at, at + 2);
        &mut self.stream[at]
    }

    /// Tokens that a pass takes: batch · time.
    pub fn tokens(&self) -> usize {
        self.batch * self.shape.time
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
