//! Linear layers of which each tile is a unit, as `model/tiles.rs` has them: a device need not have
//! room for the parameters of a whole block. Only of a model that nobody divides.
//!
//! A tile's columns are written and read where they lie among those of all tiles. What tiles say
//! about the layer's input adds up in f32.

use super::gpt::DeviceGpt;
use super::grid::LinearGrads;
use super::tape::DeviceTape;
use crate::error::Error;
use crate::kernels::cuda::{Columns, Norm, View};
use crate::layout::{Line, Tile};

impl DeviceGpt<'_> {
    /// A tile of `block`, and what comes before the first or after the last of its layer.
    pub(super) fn tile(
        &mut self,
        tile: Tile,
        tape: &mut DeviceTape,
        block: usize,
        params: View,
    ) -> Result<(), Error> {
        let (x, y) = (tape.input(block), tape.output(block));
        let t = tape.block_mut(block);
        let d = &self.device;
        let [gain, shift, weight, bias] = params.cut(tile.lens(self.layout.config()));
        let layer = [weight, bias];
        let columns = |view| columns(view, tile, bias.len());
        match tile.line {
            Line::Qkv => {
                if tile.index == 0 {
                    d.layernorm(t.ln1, Norm { x, stats: t.stats1, gain }, shift)?;
                }
                d.enter_columns(columns(t.qkv), t.ln1, layer)?;
                if tile.is_last() { self.attention(t) } else { Ok(()) }
            }
            Line::Proj => d.leave_columns(columns(t.middle), t.mixed, layer, Some(columns(x))),
            Line::Fc => {
                if tile.index == 0 {
                    d.layernorm(t.ln2, Norm { x: t.middle, stats: t.stats2, gain }, shift)?;
                }
                d.enter_columns(columns(t.hidden), t.ln2, layer)?;
                if tile.is_last() { d.gelu(t.active, t.hidden) } else { Ok(()) }
            }
            Line::Out => d.leave_columns(columns(y), t.active, layer, Some(columns(t.middle))),
        }
    }

    /// The same in reverse. Units go backwards, so the last tile of a layer begins.
    pub(super) fn tile_backward(
        &mut self,
        tile: Tile,
        tape: &DeviceTape,
        block: usize,
        [params, grads]: [View; 2],
    ) -> Result<(), Error> {
        let (x, t) = (tape.input(block), tape.block(block));
        let lens = tile.lens(self.layout.config());
        let [gain, _, weight, _] = params.cut(lens);
        let [dgain, dshift, dweight, dbias] = grads.cut(lens);
        let s = self.scratch;
        let layer = (weight, [dweight, dbias]);
        let of_norm = |gpt: &Self, x: View, stats: View| {
            let (norm, params) = (Norm { x, stats, gain }, [dgain, dshift]);
            gpt.device.layernorm_backward(s.residual, params, s.narrow, norm, s.partials)
        };
        let (is_first, is_last) = (tile.index == 0, tile.is_last());
        match tile.line {
            Line::Out => {
                if is_last {
                    s.narrow_residual(&self.device)?;
                }
                self.tile_linear(tile, s.wide, layer, s.dy, t.active)
            }
            Line::Fc => {
                if is_last {
                    self.device.gelu_backward(s.wide, t.hidden)?;
                }
                self.tile_linear(tile, s.narrow, layer, s.wide, t.ln2)?;
                if is_first { of_norm(self, t.middle, t.stats2) } else { Ok(()) }
            }
            Line::Proj => {
                if is_last {
                    s.narrow_residual(&self.device)?;
                }
                self.tile_linear(tile, s.dmixed, layer, s.dy, t.mixed)
            }
            Line::Qkv => {
                let dqkv = s.wide.first(t.qkv.len());
                if is_last {
                    self.attention_backward(dqkv, t)?;
                }
                self.tile_linear(tile, s.narrow, layer, dqkv, t.ln1)?;
                if is_first { of_norm(self, x, t.stats1) } else { Ok(()) }
            }
        }
    }

    /// Writes the gradients of a tile, and adds to `dx`, which is there after the first tile. dy:
    /// of all outputs of the layer.
    fn tile_linear(
        &self,
        tile: Tile,
        dx: View,
        (weight, [dweight, dbias]): (View, LinearGrads),
        dy: View,
        x: View,
    ) -> Result<(), Error> {
        let (d, s) = (&self.device, self.scratch);
        let dy = columns(dy, tile, dbias.len());
        let sum = if dx.size() == 4 { dx } else { s.tiled.first(dx.len()) };
        d.columns_input(sum, dy, weight, tile.is_last())?;
        d.columns_weight(dweight, dy, x)?;
        d.columns_bias(dbias, dy, s.partials)?;
        if tile.index == 0 && sum != dx { d.to_inside(dx, sum) } else { Ok(()) }
    }
}

/// A tile's columns of rows that have those of all tiles.
fn columns(rows: View, tile: Tile, count: usize) -> Columns {
    let first = tile.index * count;
    Columns::all(rows, tile.count * count).part(first..first + count)
}
