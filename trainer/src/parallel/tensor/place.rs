//! Which part of each tensor belongs to which rank of a group that divides them. Pure arithmetic;
//! the same table cuts the first state, puts a checkpoint together, and proves that nothing is
//! left out.

use crate::layout::{Config, Layout, Share, Tensor};
use std::ops::Range;

/// Where a rank stands along the axes that a matrix is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Along the inside.
    pub inside: usize,
    /// Along the stream.
    pub stream: usize,
    /// Among those that divide the rows of what is left.
    pub depth: usize,
}

/// A rank's part of every tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Into how many parts.
    pub share: Share,
    /// Which part of the matrices that enter.
    pub enter: At,
    /// Which part of those that leave.
    pub leave: At,
    /// Which of the parts that experts are divided into.
    pub expert: usize,
}

/// Rows and columns of a tensor.
#[derive(PartialEq)]
struct Block {
    rows: Vec<usize>,
    columns: Range<usize>,
}

impl Place {
    /// The only one.
    pub const WHOLE: Place = {
        let at = At { inside: 0, stream: 0, depth: 0 };
        Place { share: Share::WHOLE, enter: at, leave: at, expert: 0 }
    };

    /// This rank's part of `whole`, which is laid out for the whole model.
    pub fn cut(&self, layout: &Layout, whole: &[f32]) -> Vec<f32> {
        let mut part = Vec::new();
        for tensor in layout.tensors() {
            let values = &whole[tensor.range.clone()];
            self.each(layout.config(), tensor, |row| part.extend_from_slice(&values[row]));
        }
        part
    }

    /// Write this rank's part to its place in `whole`.
    pub fn put(&self, layout: &Layout, part: &[f32], whole: &mut [f32]) {
        let mut from = 0;
        for tensor in layout.tensors() {
            let values = &mut whole[tensor.range.clone()];
            self.each(layout.config(), tensor, |row| {
                let len = row.len();
                values[row].copy_from_slice(&part[from..from + len]);
                from += len;
            });
        }
        assert_eq!(from, part.len(), "the parts of all tensors");
    }

    /// Whether none of these ranks has the same part of a tensor of the whole model as this one.
    /// Any other part has nothing in common with it.
    pub(crate) fn is_first(&self, others: &[Place], config: &Config, tensor: &Tensor) -> bool {
        let columns = tensor.shape.get(1).copied().unwrap_or(1);
        let own = self.block(config, tensor, columns);
        others.iter().all(|other| other.block(config, tensor, columns) != own)
    }

    /// The rows of this rank's part of a tensor, as ranges of the tensor's elements.
    fn each(&self, config: &Config, tensor: &Tensor, mut see: impl FnMut(Range<usize>)) {
        let columns = tensor.shape.get(1).copied().unwrap_or(1);
        let block = self.block(config, tensor, columns);
        for row in block.rows {
            see(row * columns + block.columns.start..row * columns + block.columns.end);
        }
    }

    fn block(&self, config: &Config, tensor: &Tensor, columns: usize) -> Block {
        let Place { share, enter, leave, expert } = *self;
        let (rows, width) = (tensor.shape[0], config.width);
        let part = |of: usize, parts: usize, at: usize| of * at / parts..of * (at + 1) / parts;
        let deep =
            |rows: Vec<usize>, at: At| rows[part(rows.len(), share.depth, at.depth)].to_vec();
        // Queries, keys and values are three matrices on top of each other.
        let heads = || -> Vec<usize> {
            let heads = part(width, share.inside, enter.inside);
            (0..3).flat_map(|matrix| heads.clone().map(move |row| matrix * width + row)).collect()
        };
        let hidden = || part(rows, share.inside, enter.inside).collect();
        let is_experts = [".fc.", ".out."].iter().any(|name| tensor.name.contains(name));
        if config.experts > 0 && is_experts {
            return Block {
                rows: part(rows, share.experts, expert).collect(),
                columns: 0..columns,
            };
        }
        let (rows, columns) = match tensor.name.rsplitn(3, '.').collect::<Vec<_>>()[..] {
            ["weight", "qkv", _] => {
                (deep(heads(), enter), part(columns, share.stream, enter.stream))
            }
            ["weight", "fc", _] => {
                (deep(hidden(), enter), part(columns, share.stream, enter.stream))
            }
            ["bias", "qkv", _] => (heads(), 0..1),
            ["bias", "fc", _] => (hidden(), 0..1),
            ["weight", "proj" | "out", _] => {
                let rows = part(rows, share.stream, leave.stream).collect();
                (deep(rows, leave), part(columns, share.inside, leave.inside))
            }
            _ => ((0..rows).collect(), 0..columns),
        };
        Block { rows, columns }
    }
}
