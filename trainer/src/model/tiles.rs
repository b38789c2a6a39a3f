//! Memory-centric tiling (Rajbhandari et al. 2021, §5.1.3): a large linear layer is a sequence of
//! smaller ones. Each is a unit, so its parameters come, are used and go before those of the next
//! have to be here, and no rank ever needs room for a whole block.
//!
//! A tile is some of the outputs, so forward has the bits of the whole layer, unless tiles are so
//! narrow (below 16 outputs) that products of them are computed in another way. Backward adds up
//! what the tiles say about the layer's input, in their order: other bits than those of one
//! product, but the same wherever the tiles come from.

use super::Gpt;
use crate::error::Error;
use crate::kernels::{Heads, Kernels};
use crate::layout::{Config, Layout, Line, Tile, cut, cut_mut};
use crate::state::State;
use crate::tape::{BlockTape, Scratch};
use std::ops::Range;

/// Of a piece of a tensor, in one of two layouts.
type Place = Range<usize>;

/// Where a tile's values lie in rows that have those of all tiles.
#[derive(Clone, Copy)]
struct Columns {
    first: usize,
    /// Of the tile, and of all.
    count: usize,
    all: usize,
}

impl Columns {
    fn of(tile: Tile, bias: &[f32]) -> Columns {
        let count = bias.len();
        Columns { first: tile.index * count, count, all: count * tile.count }
    }

    fn take(self, part: &mut [f32], whole: &[f32]) {
        for (part, row) in part.chunks_exact_mut(self.count).zip(whole.chunks_exact(self.all)) {
            part.copy_from_slice(&row[self.first..][..self.count]);
        }
    }

    fn put(self, whole: &mut [f32], part: &[f32]) {
        for (row, part) in whole.chunks_exact_mut(self.all).zip(part.chunks_exact(self.count)) {
            row[self.first..][..self.count].copy_from_slice(part);
        }
    }
}

/// A tile's weight and bias, and room for its part of what goes in and comes out.
struct Layer<'a> {
    tile: Tile,
    weight: &'a [f32],
    bias: &'a [f32],
    room: &'a mut [f32],
}

impl Layer<'_> {
    /// The tile's columns of y = x · weightᵀ + bias + onto.
    fn forward(self, k: &dyn Kernels, y: &mut [f32], x: &[f32], onto: Option<&[f32]>) {
        let Layer { tile, weight, bias, room } = self;
        let (columns, inputs) = (Columns::of(tile, bias), weight.len() / bias.len());
        let (part, rest) = room.split_at_mut(x.len() / inputs * bias.len());
        let onto = onto.map(|onto| {
            let there = &mut rest[..part.len()];
            columns.take(there, onto);
            &*there
        });
        k.linear(part, x, weight, bias, inputs, onto);
        columns.put(y, part);
    }

    /// Writes the gradients of the tile, and adds to `dx`, which the last tile writes.
    fn backward(
        self,
        k: &dyn Kernels,
        dx: &mut [f32],
        grads: [&mut [f32]; 2],
        dy: &[f32],
        x: &[f32],
    ) {
        let Layer { tile, weight, bias, room } = self;
        let (columns, inputs) = (Columns::of(tile, bias), weight.len() / bias.len());
        let [dweight, dbias] = grads;
        let (part, more) = room.split_at_mut(x.len() / inputs * bias.len());
        columns.take(part, dy);
        if tile.is_last() {
            return k.linear_backward(dx, dweight, dbias, part, x, weight, inputs);
        }
        let more = &mut more[..dx.len()];
        k.linear_backward(more, dweight, dbias, part, x, weight, inputs);
        k.add(dx, more);
    }
}

impl Gpt {
    /// A model of this shape in so many tiles a linear layer.
    ///
    /// Errors: `Setting` if they do not divide the width.
    pub fn tiled(
        config: Config,
        kernels: impl Kernels + Send + 'static,
        tiles: usize,
    ) -> Result<Gpt, Error> {
        let whole = Gpt::new(config, kernels)?;
        if tiles == 0 || !config.width.is_multiple_of(tiles) {
            let problem = format!("{tiles} tiles do not divide width {}", config.width);
            return Err(Error::setting("tile", problem));
        }
        Ok(Gpt { layout: Layout::tiled(config, tiles), ..whole })
    }

    /// A whole state in the order of tiles.
    pub(super) fn in_tiles(&self, whole: &State) -> State {
        self.reordered(whole, |(there, here)| (there, here))
    }

    /// And back.
    pub(super) fn out_of_tiles(&self, tiled: &State) -> State {
        self.reordered(tiled, |(there, here)| (here, there))
    }

    fn reordered(&self, state: &State, from_to: fn((Place, Place)) -> (Place, Place)) -> State {
        let pieces: Vec<_> = self.layout.pieces().into_iter().map(from_to).collect();
        let reordered = |values: &[f32]| {
            let mut out = vec![0.0; values.len()];
            for (from, to) in &pieces {
                out[to.clone()].copy_from_slice(&values[from.clone()]);
            }
            out
        };
        let State { params, mean, square, steps, scale } = state;
        let (params, mean, square) = (reordered(params), reordered(mean), reordered(square));
        State { params, mean, square, steps: *steps, scale: *scale }
    }

    /// Numbers of room that forward and backward of so many rows need beside what blocks need.
    pub(super) fn tile_room(&self, rows: usize) -> [usize; 2] {
        let width = self.layout.config().width;
        let of_tile = (4 * rows * width).checked_div(self.layout.tiles());
        of_tile.map_or([0; 2], |of_tile| [of_tile, rows * (4 + 1) * width])
    }

    /// A tile of `block`, and what comes before the first or after the last of its layer.
    pub(super) fn tile(
        &self,
        tile: Tile,
        (y, x): (&mut [f32], &[f32]),
        params: &[f32],
        t: &mut BlockTape,
        heads: Heads,
        room: &mut [f32],
    ) {
        let k = &*self.kernels;
        let [gain, shift, weight, bias] = cut(params, tile.lens(self.layout.config()));
        let layer = Layer { tile, weight, bias, room };
        match tile.line {
            Line::Qkv => {
                if tile.index == 0 {
                    k.layernorm(&mut t.ln1, &mut t.stats1, x, gain, shift);
                }
                layer.forward(k, &mut t.qkv, &t.ln1, None);
                if tile.is_last() {
                    k.attention(&mut t.mixed, &mut t.probs, &t.qkv, heads);
                }
            }
            Line::Proj => layer.forward(k, &mut t.middle, &t.mixed, Some(x)),
            Line::Fc => {
                if tile.index == 0 {
                    k.layernorm(&mut t.ln2, &mut t.stats2, &t.middle, gain, shift);
                }
                layer.forward(k, &mut t.hidden, &t.ln2, None);
                if tile.is_last() {
                    k.gelu(&mut t.active, &t.hidden);
                }
            }
            Line::Out => layer.forward(k, y, &t.active, Some(&t.middle)),
        }
    }

    /// The same in reverse: a tile of `block_backward`.
    #[expect(clippy::too_many_arguments, reason = "those of `block_backward`, and which tile")]
    pub(super) fn tile_backward(
        &self,
        tile: Tile,
        x: &[f32],
        params: &[f32],
        grads: &mut [f32],
        t: &BlockTape,
        heads: Heads,
        scratch: &mut Scratch,
    ) {
        let (k, lens) = (&*self.kernels, tile.lens(self.layout.config()));
        let [gain, _, weight, bias] = cut(params, lens);
        let [dgain, dshift, dweight, dbias] = cut_mut(grads, lens);
        let Scratch { residual, narrow, wide, scores, tile: room } = scratch;
        let (layer, grads) = (Layer { tile, weight, bias, room }, [dweight, dbias]);
        let stream = residual.len();
        match tile.line {
            Line::Out => layer.backward(k, wide, grads, residual, &t.active),
            Line::Fc => {
                if tile.is_last() {
                    k.gelu_backward(wide, &t.hidden);
                }
                layer.backward(k, &mut narrow[..stream], grads, wide, &t.ln2);
                if tile.index == 0 {
                    let dx = &narrow[..stream];
                    k.layernorm_backward(residual, dgain, dshift, dx, &t.middle, &t.stats2, gain);
                }
            }
            Line::Proj => layer.backward(k, &mut narrow[..stream], grads, residual, &t.mixed),
            Line::Qkv => {
                let dqkv = &mut wide[..t.qkv.len()];
                if tile.is_last() {
                    let dmixed = &narrow[..stream];
                    k.attention_backward(dqkv, scores, dmixed, &t.qkv, &t.probs, heads);
                }
                layer.backward(k, &mut narrow[..stream], grads, dqkv, &t.ln1);
                if tile.index == 0 {
                    let dx = &narrow[..stream];
                    k.layernorm_backward(residual, dgain, dshift, dx, x, &t.stats1, gain);
                }
            }
        }
    }
}
