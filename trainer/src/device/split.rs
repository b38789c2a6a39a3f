//! Backward in two parts on a device, as `model/split.rs` has it: down to the gradient of a unit's
//! input at once, since another rank waits for it, and those of its weights when there is time.
//! Only of a model that nobody divides.

use super::gpt::DeviceGpt;
use super::passes::Passes;
use super::tape::{DeviceTape, Scratch};
use crate::error::Error;
use crate::kernels::cuda::{Norm, Room, View};
use crate::layout::{Config, block_lens, embed_lens, head_lens};
use std::ops::Range;

/// Gradients inside some units, kept for the second part. n = batch · time rows, c = width.
pub(crate) struct DeviceOwed {
    /// The first of the units.
    first: usize,
    /// Of each unit, [n × c]: of a block by what they came through last, out and proj inside, norm
    /// 2 and norm 1 in f32; of an end only the last, of the embedding's output or the final norm's.
    units: Vec<[View; 4]>,
}

impl DeviceOwed {
    pub(crate) fn take(
        room: &mut Room,
        config: &Config,
        units: Range<usize>,
        passes: Passes,
    ) -> DeviceOwed {
        let (stream, inside) = (passes.rows * config.width, passes.inside);
        let first = units.start;
        let take = |unit: usize| {
            let of_block = if (1..=config.layers).contains(&unit) { stream } else { 0 };
            let sizes = [inside.size(), inside.size(), 4];
            let [out, proj, norm2] = sizes.map(|size| room.take(of_block, size));
            [out, proj, norm2, room.take(stream, 4)]
        };
        DeviceOwed { first, units: units.map(take).collect() }
    }

    fn of(&self, unit: usize) -> [View; 4] {
        self.units[unit - self.first]
    }
}

impl DeviceGpt<'_> {
    /// The first part of `backward`: everything but the gradients of the unit's parameters.
    pub(crate) fn backward_input(
        &mut self,
        tape: &mut DeviceTape,
        unit: usize,
        params: View,
        owed: &DeviceOwed,
    ) -> Result<(), Error> {
        let config = *self.layout.config();
        let (d, Scratch { residual, narrow, .. }) = (&self.device, self.scratch);
        let [.., last] = owed.of(unit);
        if unit == 0 {
            return d.copy(last, residual);
        }
        if (1..=config.layers).contains(&unit) {
            return self.block_input(tape, unit, params, owed.of(unit));
        }
        let [gain, _, head] = params.cut(head_lens(&config));
        d.linear_input(narrow, tape.dlogits, head, config.vocab)?;
        d.copy(last, narrow)?;
        d.clear(residual)?;
        d.layernorm_input(residual, narrow, Norm { x: tape.input(unit), stats: tape.statsf, gain })
    }

    /// The second part: the gradients of the unit's parameters, which it does not need themselves.
    pub(crate) fn backward_weight(
        &self,
        tape: &DeviceTape,
        unit: usize,
        grads: View,
        owed: &DeviceOwed,
    ) -> Result<(), Error> {
        let config = *self.layout.config();
        let (d, partials) = (&self.device, self.scratch.partials);
        let [.., last] = owed.of(unit);
        if unit == 0 {
            let tables = grads.cut(embed_lens(&config));
            let sizes = [self.heads.time, config.width];
            return d.embed_backward(tables, last, tape.tokens(), partials, sizes);
        }
        if (1..=config.layers).contains(&unit) {
            return self.block_weight(tape, unit, grads, owed.of(unit));
        }
        let [dgain, dbias, dhead] = grads.cut(head_lens(&config));
        d.linear_weight(dhead, tape.dlogits, tape.lnf, config.vocab)?;
        d.layernorm_params([dgain, dbias], last, [tape.input(unit), tape.statsf], partials)
    }

    /// What is left for the second part takes the place of what nobody needs any more, as far as
    /// that goes.
    fn block_input(
        &mut self,
        tape: &mut DeviceTape,
        unit: usize,
        params: View,
        [out, proj, norm2, norm1]: [View; 4],
    ) -> Result<(), Error> {
        let (d, x, c) = (&self.device, tape.input(unit), self.shape.width);
        let Scratch { residual, narrow, dy, dmixed, wide, .. } = self.scratch;
        let [gain1, _, qkv_w, _, proj_w, _, gain2, _, fc_w, _, out_w, _] =
            params.cut(block_lens(&self.layout));

        self.scratch.narrow_residual(d)?;
        d.copy(out, dy)?;
        let t = tape.block(unit);
        d.linear_input(wide, dy, out_w, c)?;
        d.gelu_backward(wide, t.hidden)?;
        d.linear_input(narrow, wide, fc_w, 4 * c)?;
        d.copy(norm2, narrow)?;
        d.layernorm_input(residual, narrow, Norm { x: t.middle, stats: t.stats2, gain: gain2 })?;

        self.scratch.narrow_residual(d)?;
        d.copy(proj, dy)?;
        d.linear_input(dmixed, dy, proj_w, c)?;
        std::mem::swap(&mut self.scratch.wide, &mut tape.block_mut(unit).hidden);
        let t = tape.block(unit);
        let dqkv = self.scratch.wide.first(t.qkv.len());
        self.attention_backward(dqkv, t)?;
        let d = &self.device;
        d.copy(t.qkv, dqkv)?;
        d.linear_input(narrow, dqkv, qkv_w, 3 * c)?;
        d.copy(norm1, narrow)?;
        d.layernorm_input(residual, narrow, Norm { x, stats: t.stats1, gain: gain1 })
    }

    fn block_weight(
        &self,
        tape: &DeviceTape,
        unit: usize,
        grads: View,
        [out, proj, norm2, norm1]: [View; 4],
    ) -> Result<(), Error> {
        let (d, x, t) = (&self.device, tape.input(unit), tape.block(unit));
        let (c, partials) = (self.shape.width, self.scratch.partials);
        let [dg1, db1, dqkv_w, dqkv_b, dproj_w, dproj_b, dg2, db2, dfc_w, dfc_b, dout_w, dout_b] =
            grads.cut(block_lens(&self.layout));
        let layers = [
            ([dout_w, dout_b], out, t.active, c),
            ([dfc_w, dfc_b], t.hidden, t.ln2, 4 * c),
            ([dproj_w, dproj_b], proj, t.mixed, c),
            ([dqkv_w, dqkv_b], t.qkv, t.ln1, 3 * c),
        ];
        for ([weight, bias], dy, x, outputs) in layers {
            d.linear_weight(weight, dy, x, outputs)?;
            d.bias_backward(bias, dy, partials)?;
        }
        d.layernorm_params([dg2, db2], norm2, [t.middle, t.stats2], partials)?;
        d.layernorm_params([dg1, db1], norm1, [x, t.stats1], partials)
    }
}
