//! A layout in which each tile of a block's four linear layers is a unit of its own.
//!
//! A tile is some outputs of a layer, with their biases; the first of those behind a norm also has
//! the norm. Tiles of a layer follow each other, as do the layers.

use super::{Config, Layout, Share, embed_shapes, head_shapes, push};
use std::ops::Range;

/// The linear layers of a block, in the order of its forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Qkv,
    Proj,
    Fc,
    Out,
}

const LINES: [Line; 4] = [Line::Qkv, Line::Proj, Line::Fc, Line::Out];

/// Some outputs of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tile {
    pub(crate) line: Line,
    /// Which of so many.
    pub(crate) index: usize,
    pub(crate) count: usize,
}

impl Tile {
    /// Whether forward comes to it last, and backward first.
    pub(crate) fn is_last(self) -> bool {
        self.index + 1 == self.count
    }

    /// Its tensors: those of a norm in front of it, if there is one, the weight and the bias.
    fn shapes(self, c: &Config) -> [(&'static str, Vec<usize>); 4] {
        let Config { width, .. } = *c;
        let (norm, names, outputs, inputs) = match self.line {
            Line::Qkv => (["ln1.weight", "ln1.bias"], ["qkv.weight", "qkv.bias"], 3 * width, width),
            Line::Proj => ([""; 2], ["proj.weight", "proj.bias"], width, width),
            Line::Fc => (["ln2.weight", "ln2.bias"], ["fc.weight", "fc.bias"], 4 * width, width),
            Line::Out => ([""; 2], ["out.weight", "out.bias"], width, 4 * width),
        };
        // A tensor of no elements is none.
        let is_there = self.index == 0 && norm != [""; 2];
        let norms = vec![if is_there { width } else { 0 }];
        let outputs = outputs / self.count;
        [
            (norm[0], norms.clone()),
            (norm[1], norms),
            (names[0], vec![outputs, inputs]),
            (names[1], vec![outputs]),
        ]
    }

    /// Elements of its tensors: the norm's gain and shift, weight, bias.
    pub(crate) fn lens(self, config: &Config) -> [usize; 4] {
        self.shapes(config).map(|(_, shape)| shape.iter().product())
    }
}

impl Layout {
    /// Lay out a model whose linear layers are cut into so many tiles, which divide the width.
    pub(crate) fn tiled(config: Config, tiles: usize) -> Layout {
        let mut tensors = Vec::new();
        let embed = push(&mut tensors, "", &embed_shapes(&config));
        let mut blocks = Vec::new();
        for layer in 0..config.layers {
            for tile in (0..4 * tiles).map(|at| of_block(at, tiles)) {
                let prefix = format!("blocks.{layer}.");
                blocks.push(push(&mut tensors, &prefix, &tile.shapes(&config)));
            }
        }
        let head = push(&mut tensors, "", &head_shapes(&config));
        Layout { config, share: Share::WHOLE, tensors, embed, blocks, head, tiles }
    }

    /// How many tiles each linear layer is cut into; 0 if blocks are whole units.
    pub(crate) fn tiles(&self) -> usize {
        self.tiles
    }

    /// The tile that a unit is, if it is one.
    pub(crate) fn tile(&self, unit: usize) -> Option<Tile> {
        let is_tile = self.tiles > 0 && unit > 0 && unit <= self.blocks.len();
        is_tile.then(|| of_block((unit - 1) % (4 * self.tiles), self.tiles))
    }

    /// Which of the embedding, the blocks and the head a unit is of, counted from 0.
    pub(crate) fn module(&self, unit: usize) -> usize {
        match self.tiles {
            0 => unit,
            _ if unit == 0 => 0,
            _ if unit > self.blocks.len() => self.config.layers + 1,
            tiles => 1 + (unit - 1) / (4 * tiles),
        }
    }

    /// Where everything lies in a layout that is not tiled: (there, here).
    pub(crate) fn pieces(&self) -> Vec<(Range<usize>, Range<usize>)> {
        let whole = Layout::new(self.config);
        // Pieces of a tensor come in its order.
        let mut done = vec![0; whole.tensors.len()];
        let piece = |here: &super::Tensor| {
            let at = whole.tensors.iter().position(|tensor| tensor.name == here.name);
            let at = at.expect("both layouts are of one model");
            let from = whole.tensors[at].range.start + done[at];
            done[at] += here.range.len();
            (from..from + here.range.len(), here.range.clone())
        };
        self.tensors.iter().map(piece).collect()
    }
}

fn of_block(at: usize, count: usize) -> Tile {
    Tile { line: LINES[at / count], index: at % count, count }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_all_of_a_model_and_nothing_else() {
        let config =
            Config { vocab: 11, context: 5, layers: 3, heads: 2, width: 4, experts: 0, top: 0 };
        for tiles in [1, 2, 4] {
            let (layout, whole) = (Layout::tiled(config, tiles), Layout::new(config));
            assert_eq!(layout.units(), 2 + 3 * 4 * tiles);
            let mut seen = vec![0; whole.len()];
            for (there, here) in layout.pieces() {
                assert_eq!(there.len(), here.len());
                seen[there].iter_mut().for_each(|times| *times += 1);
            }
            assert!(seen.iter().all(|times| *times == 1), "{tiles} tiles");
            let modules: Vec<_> = (0..layout.units()).map(|unit| layout.module(unit)).collect();
            assert!(modules.is_sorted() && modules.last() == Some(&4));
            let end = layout.unit(layout.units() - 1).end;
            assert_eq!((end, layout.len()), (whole.len(), whole.len()));
        }
    }
}
