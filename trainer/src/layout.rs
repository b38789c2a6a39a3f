//! Where each parameter lies in the one flat buffer.
//!
//! Parameters, gradients and both optimizer moments are four buffers of the same layout. Tensors
//! are laid out in forward order: embedding first, head last. Backward therefore finishes gradients
//! from the end of the buffer to its start, and "everything from `start` on is final" is one
//! number.
//!
//! A rank of a group that divides tensors has a layout of its own parts, of the same names.
//!
//! Not here: values. This file knows names, shapes and ranges only.

mod tiles;

pub(crate) use tiles::{Line, Tile};

use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Shape of a GPT.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Distinct tokens; 256 for bytes.
    pub vocab: usize,
    /// Tokens the model can look back on.
    pub context: usize,
    /// Blocks.
    pub layers: usize,
    /// Attention heads per block; divides `width`.
    pub heads: usize,
    /// Numbers per token between blocks.
    pub width: usize,
    /// Experts in place of each block's perceptron; 0 for the perceptron itself.
    #[serde(default)]
    pub experts: usize,
    /// How many of them a token goes to.
    #[serde(default)]
    pub top: usize,
}

impl Config {
    /// Refuse shapes that no model has.
    pub fn validate(&self) -> Result<(), Error> {
        let zero = [
            ("vocab", self.vocab),
            ("context", self.context),
            ("layers", self.layers),
            ("heads", self.heads),
            ("width", self.width),
        ];
        for (name, value) in zero {
            if value == 0 {
                return Err(Error::setting(name, "must be at least 1".to_string()));
            }
        }
        // Far beyond what memory holds, so that what is counted from these stays a number.
        let most = [
            ("context", self.context, 1 << 20),
            ("layers", self.layers, 4096),
            ("width", self.width, 1 << 16),
            ("experts", self.experts, 4096),
        ];
        for (name, value, most) in most {
            if value > most {
                return Err(Error::setting(name, format!("{value} is more than {most}")));
            }
        }
        if !self.width.is_multiple_of(self.heads) {
            let problem = format!("{} does not divide width {}", self.heads, self.width);
            return Err(Error::setting("heads", problem));
        }
        if self.experts > 0 && !(1..=self.experts).contains(&self.top) {
            let problem = format!("{} of {} experts is none or too many", self.top, self.experts);
            return Err(Error::setting("top", problem));
        }
        Ok(())
    }

    /// Elements of a block's gate.
    pub(crate) fn gate_len(&self) -> usize {
        self.experts * self.width
    }
}

impl fmt::Display for Config {
    /// As the flags of `brigade train` have it; the vocabulary has no flag.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { context, layers, heads, width, experts, top, .. } = self;
        write!(f, "--layers {layers} --width {width} --heads {heads} --context {context}")?;
        match experts {
            0 => Ok(()),
            experts => write!(f, " --experts {experts} --top {top}"),
        }
    }
}

/// One named parameter tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name in checkpoints, such as `blocks.0.qkv.weight`.
    pub name: String,
    /// Dimensions, outermost first; linear weights are [outputs × inputs].
    pub shape: Vec<usize>,
    /// Elements in the flat buffer.
    pub range: Range<usize>,
}

impl Tensor {
    /// Weight decay pulls on matrices, not on biases and gains.
    pub fn decays(&self) -> bool {
        self.shape.len() > 1
    }
}

/// Into how many parts ranks divide the matrices of a block: those that enter its inside (qkv, fc)
/// and those that leave it (proj, out).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Along the inside: heads, and the perceptron's hidden numbers.
    pub inside: usize,
    /// Along the residual stream.
    pub stream: usize,
    /// And the rows of what is left.
    pub depth: usize,
    /// Whole experts.
    pub experts: usize,
}

impl Share {
    /// Nothing is divided.
    pub const WHOLE: Share = Share { inside: 1, stream: 1, depth: 1, experts: 1 };
}

/// All tensors of a model, or one rank's part of each, in buffer order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    config: Config,
    share: Share,
    tensors: Vec<Tensor>,
    embed: Range<usize>,
    blocks: Vec<Range<usize>>,
    head: Range<usize>,
    /// Of each linear layer of a block, if they are units; else 0, and blocks are.
    tiles: usize,
}

impl Layout {
    /// Lay out a model of this shape.
    pub fn new(config: Config) -> Layout {
        Layout::divided(config, Share::WHOLE)
    }

    /// Lay out one rank's part of such a model.
    pub fn divided(config: Config, share: Share) -> Layout {
        let mut tensors = Vec::new();
        let embed = push(&mut tensors, "", &embed_shapes(&config));
        let blocks = (0..config.layers)
            .map(|layer| {
                push(&mut tensors, &format!("blocks.{layer}."), &block_shapes(&config, share))
            })
            .collect();
        let head = push(&mut tensors, "", &head_shapes(&config));
        Layout { config, share, tensors, embed, blocks, head, tiles: 0 }
    }

    /// The whole model's shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Into how many parts ranks divide it.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Elements in the flat buffer.
    pub fn len(&self) -> usize {
        self.head.end
    }

    /// A model always has parameters; this is here because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every tensor, in buffer order: their ranges follow each other without a gap.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Token and position tables.
    pub fn embed(&self) -> Range<usize> {
        self.embed.clone()
    }

    /// One block's tensors.
    pub fn block(&self, layer: usize) -> Range<usize> {
        self.blocks[layer].clone()
    }

    /// Final norm and output matrix.
    pub fn head(&self) -> Range<usize> {
        self.head.clone()
    }

    /// How many units there are: the embedding, the blocks (or their tiles), the head. A unit is
    /// what is computed, gathered and sent as one.
    pub fn units(&self) -> usize {
        self.blocks.len() + 2
    }

    /// The tensors of some units that follow each other.
    pub fn span(&self, units: &Range<usize>) -> Range<usize> {
        self.unit(units.start).start..self.unit(units.end - 1).end
    }

    /// One unit's tensors; units are counted in forward order.
    pub fn unit(&self, unit: usize) -> Range<usize> {
        match unit {
            0 => self.embed(),
            unit if unit <= self.blocks.len() => self.block(unit - 1),
            _ => self.head(),
        }
    }
}

/// These ranges in their order, where what follows without a gap is one.
pub(crate) fn joined(ranges: impl Iterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges.filter(|range| !range.is_empty()) {
        match all.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => all.push(range),
        }
    }
    all
}

/// Elements of the two embedding tables, in order: tokens, positions.
pub(crate) fn embed_lens(config: &Config) -> [usize; 2] {
    embed_shapes(config).map(|(_, shape)| shape.iter().product())
}

/// Elements of a block's twelve tensors, in order: norm 1, qkv, proj, norm 2, fc, out, each as
/// weight and bias. A gate counts to fc's weight, in front of it.
pub(crate) fn block_lens(layout: &Layout) -> [usize; 12] {
    let shapes = block_shapes(&layout.config, layout.share);
    let lens = shapes.map(|(_, shape)| shape.iter().product::<usize>());
    let [norms @ .., gate, fc_w, fc_b, out_w, out_b] = lens;
    let [a, b, c, d, e, f, g, h] = norms;
    [a, b, c, d, e, f, g, h, gate + fc_w, fc_b, out_w, out_b]
}

/// Elements of the head's three tensors, in order: norm weight, norm bias, output matrix.
pub(crate) fn head_lens(config: &Config) -> [usize; 3] {
    head_shapes(config).map(|(_, shape)| shape.iter().product())
}

/// Cut a module's range into its tensors.
pub(crate) fn cut<const N: usize>(mut flat: &[f32], lens: [usize; N]) -> [&[f32]; N] {
    assert_eq!(flat.len(), lens.iter().sum::<usize>(), "the lengths cover the module");
    lens.map(|len| {
        let (tensor, rest) = flat.split_at(len);
        flat = rest;
        tensor
    })
}

/// Cut a module's range into its tensors, for writing.
pub(crate) fn cut_mut<const N: usize>(mut flat: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    assert_eq!(flat.len(), lens.iter().sum::<usize>(), "the lengths cover the module");
    lens.map(|len| {
        let (tensor, rest) = std::mem::take(&mut flat).split_at_mut(len);
        flat = rest;
        tensor
    })
}

type Shapes<const N: usize> = [(&'static str, Vec<usize>); N];

fn embed_shapes(c: &Config) -> Shapes<2> {
    [("wte", vec![c.vocab, c.width]), ("wpe", vec![c.context, c.width])]
}

fn block_shapes(c: &Config, share: Share) -> Shapes<13> {
    let width = c.width;
    let (inner, wide) = (width / share.inside, 4 * width / share.inside);
    let (inputs, outputs) = (width / share.stream, width / share.stream / share.depth);
    // Experts' matrices lie on top of each other.
    let experts = c.experts.max(1) / share.experts;
    [
        ("ln1.weight", vec![width]),
        ("ln1.bias", vec![width]),
        ("qkv.weight", vec![3 * inner / share.depth, inputs]),
        ("qkv.bias", vec![3 * inner]),
        ("proj.weight", vec![outputs, inner]),
        ("proj.bias", vec![width]),
        ("ln2.weight", vec![width]),
        ("ln2.bias", vec![width]),
        ("gate.weight", vec![c.experts, width]),
        ("fc.weight", vec![experts * wide / share.depth, inputs]),
        ("fc.bias", vec![experts * wide]),
        ("out.weight", vec![experts * outputs, wide]),
        ("out.bias", vec![experts * width]),
    ]
}

fn head_shapes(c: &Config) -> Shapes<3> {
    [
        ("lnf.weight", vec![c.width]),
        ("lnf.bias", vec![c.width]),
        ("head.weight", vec![c.vocab, c.width]),
    ]
}

/// Append a module's tensors behind the last one; returns the module's range.
fn push(
    tensors: &mut Vec<Tensor>,
    prefix: &str,
    shapes: &[(&'static str, Vec<usize>)],
) -> Range<usize> {
    let start = tensors.last().map_or(0, |last| last.range.end);
    let mut end = start;
    // A perceptron has no gate.
    for (name, shape) in shapes.iter().filter(|(_, shape)| !shape.contains(&0)) {
        let range = end..end + shape.iter().product::<usize>();
        end = range.end;
        tensors.push(Tensor { name: format!("{prefix}{name}"), shape: shape.clone(), range });
    }
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: Config =
        Config { vocab: 11, context: 5, layers: 3, heads: 2, width: 4, experts: 0, top: 0 };

    #[test]
    fn tensors_follow_each_other_without_a_gap() {
        let layout = Layout::new(TINY);
        let mut end = 0;
        for tensor in layout.tensors() {
            assert_eq!(tensor.range.start, end, "{}", tensor.name);
            assert_eq!(tensor.range.len(), tensor.shape.iter().product::<usize>());
            end = tensor.range.end;
        }
        assert_eq!(end, layout.len());
    }

    #[test]
    fn modules_cover_the_buffer_in_forward_order() {
        let layout = Layout::new(TINY);
        let mut end = layout.embed().end;
        for layer in 0..TINY.layers {
            assert_eq!(layout.block(layer).start, end);
            end = layout.block(layer).end;
        }
        assert_eq!(layout.head(), end..layout.len());
    }

    #[test]
    fn parameter_count_is_the_usual_formula() {
        let Config { vocab, context, layers, width, .. } = TINY;
        let block = 12 * width * width + 13 * width;
        let want = layers * block + (2 * vocab + context) * width + 2 * width;
        assert_eq!(Layout::new(TINY).len(), want);
    }

    #[test]
    fn heads_must_divide_the_width() {
        assert!(Config { heads: 3, ..TINY }.validate().is_err());
        assert!(Config { layers: 0, ..TINY }.validate().is_err());
        assert!(TINY.validate().is_ok());
    }
}
