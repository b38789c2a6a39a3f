//! A GPT that is computed on a device, unit by unit: the lines of `model.rs`, over views of the
//! device's memory. Everything goes into one stream, and nothing here waits for it.
//!
//! Not here: where parameters and gradients are; whoever calls says so by their views.

use super::calls::Calls;
use super::division::DeviceDivision;
use super::mixture::DeviceMixture;
use super::tape::{BlockRooms, DeviceTape, Scratch};
use super::wire::Wire;
use crate::error::Error;
use crate::kernels::Heads;
use crate::kernels::cuda::{Device, Norm, SQUARES, View};
use crate::layout::{Config, Layout, block_lens, embed_lens, head_lens};
use crate::model::Gpt;
use crate::norms::ExactSum;
use brigade_cuda::DeviceMemory;
use std::time::Duration;

/// A model, and memory for its passes over so many samples at a time.
pub(crate) struct DeviceGpt<'a> {
    /// In front of the memory that its calls are on.
    pub(crate) division: Option<DeviceDivision<'a>>,
    pub(crate) device: Device,
    pub(super) layout: Layout,
    /// Of the model, and of attention on this rank.
    pub(super) shape: Heads,
    pub(super) heads: Heads,
    /// Where experts are in place of the perceptron.
    pub(super) mixture: Option<DeviceMixture<'a>>,
    pub(crate) scratch: Scratch,
    /// What tapes and scratch, and the rooms of whoever opened this, are in.
    _memory: DeviceMemory,
}

impl<'a> DeviceGpt<'a> {
    /// This model, which those divide; this rank's attention has the shape `heads`, and `scratch`
    /// is in `memory`.
    pub(crate) fn new(
        device: Device,
        model: &'a Gpt,
        division: Option<DeviceDivision<'a>>,
        heads: Heads,
        scratch: Scratch,
        memory: DeviceMemory,
    ) -> Result<DeviceGpt<'a>, Error> {
        let layout = model.layout().clone();
        let Config { context: time, heads: all, width, experts, .. } = *layout.config();
        let shape = Heads { time, heads: all, width };
        let mixture = (experts > 0).then(|| DeviceMixture::new(model, device.stream()));
        let mixture = mixture.transpose()?;
        Ok(DeviceGpt { division, device, layout, shape, heads, mixture, scratch, _memory: memory })
    }

    /// One line: what computes, and how.
    pub(crate) fn describe(&self) -> String {
        let attention = if self.scratch.scores.is_empty() { ", attention in tiles" } else { "" };
        let division = self.division.as_ref().map_or(String::new(), DeviceDivision::describe);
        format!("{}{attention}{division}", self.device.describe())
    }

    /// Calls of the devices of those who divide the model, if they make them.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Calls<'a>> {
        self.division.iter().flat_map(DeviceDivision::calls)
    }

    /// How long the host waited for those since this was asked last.
    pub(crate) fn take_waited(&mut self) -> Duration {
        let waited = self.division.as_mut().map_or(Duration::ZERO, DeviceDivision::take_waited);
        waited + self.mixture.as_ref().map_or(Duration::ZERO, DeviceMixture::take_waited)
    }

    /// Bytes of the host's memory that they take.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        let bytes = self.division.as_ref().map_or(0, DeviceDivision::bytes);
        bytes + self.mixture.as_ref().map_or(0, DeviceMixture::bytes)
    }

    /// Leave out what those who divide the model sum, or no more.
    pub(crate) fn hush(&mut self, is_silent: bool) {
        if let Some(division) = &mut self.division {
            division.hush(is_silent);
        }
    }

    /// The squares of these gradients, waited for: scratch is free between passes.
    pub(crate) fn squares(
        &self,
        wire: &mut Wire,
        grads: impl IntoIterator<Item = View>,
    ) -> Result<ExactSum, Error> {
        let mut words = [0; 2 * SQUARES];
        let sum = self.scratch.partials.first(words.len());
        self.device.clear(sum)?;
        grads.into_iter().try_for_each(|grads| self.device.squares(sum, grads))?;
        wire.read_whole(sum, &mut words)?;
        Ok(ExactSum::of_words(&words))
    }

    /// Wait for all that was given to the device.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        self.device.stream().synchronize()?;
        self.mixture.as_ref().map_or(Ok(()), DeviceMixture::settle)?;
        self.division.as_ref().map_or(Ok(()), DeviceDivision::settle)
    }

    /// From the output of the unit before, or the tokens, to this unit's. params: the unit's.
    pub(crate) fn forward(
        &mut self,
        tape: &mut DeviceTape,
        unit: usize,
        params: View,
    ) -> Result<(), Error> {
        let (d, config) = (&self.device, *self.layout.config());
        let (tile, unit) = (self.layout.tile(unit), self.layout.module(unit));
        if unit == 0 {
            let tables = params.cut(embed_lens(&config));
            return d.embed(tape.output(0), tape.tokens(), tables, self.shape);
        }
        if unit > config.layers {
            let [gain, bias, head] = params.cut(head_lens(&config));
            let norm = Norm { x: tape.input(unit), stats: tape.statsf, gain };
            d.layernorm(tape.lnf, norm, bias)?;
            return d.project(self.logits(tape), tape.lnf, head, config.vocab);
        }
        tape.hold(unit);
        match tile {
            None => self.block(tape, unit, params),
            Some(tile) => self.tile(tile, tape, unit, params),
        }
    }

    /// Sum over all tokens of −log p(target), which `scratch.loss` takes. Leaves `scale` times the
    /// gradient of the logits for backward.
    pub(crate) fn loss(&self, tape: &DeviceTape, scale: f32) -> Result<(), Error> {
        let (d, t) = (&self.device, &self.scratch);
        d.cross_entropy(tape.dlogits, t.losses, self.logits(tape), tape.targets(), scale)?;
        d.sum_losses(t.loss, t.losses)
    }

    /// From the gradient of the unit's output to those of its input, which stays here for the unit
    /// before, and of its parameters, which are written to `grads`, in f32.
    pub(crate) fn backward(
        &mut self,
        tape: &mut DeviceTape,
        unit: usize,
        params: View,
        grads: View,
    ) -> Result<(), Error> {
        let config = *self.layout.config();
        let (tile, unit) = (self.layout.tile(unit), self.layout.module(unit));
        if let Some(tile) = tile {
            return self.tile_backward(tile, tape, unit, [params, grads]);
        }
        let is_block = (1..=config.layers).contains(&unit);
        if is_block && tape.has_lost(unit) {
            self.forward(tape, unit, params)?;
        }
        if is_block {
            self.block_backward(tape, unit, params, grads)?;
        } else {
            self.end_backward(tape, unit, params, grads)?;
        }
        self.complete(grads, is_block)
    }

    /// That of the embedding, or the head.
    fn end_backward(
        &mut self,
        tape: &DeviceTape,
        unit: usize,
        params: View,
        grads: View,
    ) -> Result<(), Error> {
        let (d, t, config) = (&self.device, &self.scratch, *self.layout.config());
        if unit == 0 {
            let tables = grads.cut(embed_lens(&config));
            let sizes = [self.heads.time, config.width];
            return d.embed_backward(tables, t.residual, tape.tokens(), t.partials, sizes);
        }
        let [gain, _, head] = params.cut(head_lens(&config));
        let [dgain, dbias, dhead] = grads.cut(head_lens(&config));
        d.linear_backward(t.narrow, dhead, tape.dlogits, tape.lnf, head, config.vocab)?;
        d.clear(t.residual)?;
        let norm = Norm { x: tape.input(unit), stats: tape.statsf, gain };
        d.layernorm_backward(t.residual, [dgain, dbias], t.narrow, norm, t.partials)
    }

    /// Where logits are: where their gradient is, if that has as many bytes.
    fn logits(&self, tape: &DeviceTape) -> View {
        if self.scratch.logits.is_empty() { tape.dlogits } else { self.scratch.logits }
    }

    fn block(&mut self, tape: &mut DeviceTape, unit: usize, params: View) -> Result<(), Error> {
        let (x, y) = (tape.input(unit), tape.output(unit));
        let t = tape.block_mut(unit);
        let [gain1, bias1, qkv_w, qkv_b, proj_w, proj_b, gain2, bias2, fc_w, fc_b, out_w, out_b] =
            params.cut(block_lens(&self.layout));
        self.device.layernorm(t.ln1, Norm { x, stats: t.stats1, gain: gain1 }, bias1)?;
        self.enter(t.qkv, t.ln1, [qkv_w, qkv_b])?;
        self.attention(t)?;
        self.leave(t.middle, t.mixed, [proj_w, proj_b], x)?;
        let norm = Norm { x: t.middle, stats: t.stats2, gain: gain2 };
        self.device.layernorm(t.ln2, norm, bias2)?;
        if let Some(kept) = &mut t.mixture {
            return self.answer([y, t.ln2, t.middle], kept, [fc_w, fc_b, out_w, out_b]);
        }
        self.enter(t.hidden, t.ln2, [fc_w, fc_b])?;
        self.device.gelu(t.active, t.hidden)?;
        self.leave(y, t.active, [out_w, out_b], t.middle)
    }

    /// The block's lines in reverse; `residual` is both ends.
    fn block_backward(
        &mut self,
        tape: &DeviceTape,
        unit: usize,
        params: View,
        grads: View,
    ) -> Result<(), Error> {
        let (t, x) = (tape.block(unit), tape.input(unit));
        let Scratch { residual, narrow, dmixed, wide, partials, .. } = self.scratch;
        let [gain1, _, qkv_w, _, proj_w, _, gain2, _, fc_w, fc_b, out_w, out_b] =
            params.cut(block_lens(&self.layout));
        let [dg1, db1, dqkv_w, dqkv_b, dproj_w, dproj_b, dg2, db2, dfc_w, dfc_b, dout_w, dout_b] =
            grads.cut(block_lens(&self.layout));

        if let Some(kept) = &t.mixture {
            let layers = [[fc_w, fc_b, out_w, out_b], [dfc_w, dfc_b, dout_w, dout_b]];
            self.answer_backward([narrow, t.ln2], kept, layers)?;
        } else {
            self.leave_backward(wide, [dout_w, dout_b], t.active, out_w)?;
            self.device.gelu_backward(wide, t.hidden)?;
            self.enter_backward(narrow, [dfc_w, dfc_b], wide, t.ln2, fc_w)?;
        }
        let norm = Norm { x: t.middle, stats: t.stats2, gain: gain2 };
        self.device.layernorm_backward(residual, [dg2, db2], narrow, norm, partials)?;

        let dqkv = wide.first(t.qkv.len());
        self.leave_backward(dmixed, [dproj_w, dproj_b], t.mixed, proj_w)?;
        self.attention_backward(dqkv, t)?;
        self.enter_backward(narrow, [dqkv_w, dqkv_b], dqkv, t.ln1, qkv_w)?;
        let norm = Norm { x, stats: t.stats1, gain: gain1 };
        self.device.layernorm_backward(residual, [dg1, db1], narrow, norm, partials)
    }

    pub(super) fn attention(&mut self, t: &BlockRooms) -> Result<(), Error> {
        match self.circle() {
            Some(circle) => self.attention_in_ring(circle, [t.mixed, t.lse, t.qkv]),
            None if t.probs.is_empty() => {
                self.device.attention_in_tiles(t.mixed, t.lse, t.qkv, self.heads)
            }
            None => self.device.attention(t.mixed, t.probs, t.qkv, self.heads),
        }
    }

    /// From the gradient in `dmixed`.
    pub(super) fn attention_backward(&mut self, dqkv: View, t: &BlockRooms) -> Result<(), Error> {
        let Scratch { dmixed, scores, delta, .. } = self.scratch;
        match self.circle() {
            Some(circle) => self.attention_in_ring_backward(circle, dqkv, t),
            None if t.probs.is_empty() => {
                let kept = [t.mixed, t.qkv, t.lse];
                self.device.attention_in_tiles_backward(dqkv, delta, dmixed, kept, self.heads)
            }
            None => {
                self.device.attention_backward(dqkv, scores, dmixed, t.qkv, t.probs, self.heads)
            }
        }
    }
}
