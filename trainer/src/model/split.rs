//! Backward in two parts (Qi et al. 2024): down to the gradient of a unit's input at once, since
//! another rank waits for it, and those of its weights when there is time.
//!
//! Both parts together are the same products as `Gpt::backward`, so their bits are the same. What
//! the first leaves for the second takes the place of what it was the last to need, as far as that
//! goes; the rest is `Owed`.

use super::Gpt;
use crate::layout::{Config, block_lens, cut, cut_mut, embed_lens, head_lens};
use crate::tape::{Scratch, Tape};
use std::ops::Range;

/// Gradients inside some units, kept for the second part. n = batch · time rows, c = width.
pub struct Owed {
    /// Of each unit: [4 × n × c] of a block, by what they came through last: out, proj, norm 2 and
    /// norm 1; [n × c] of the embedding's output or the final norm's.
    units: Vec<Vec<f32>>,
}

impl Owed {
    /// Allocate for `rows` tokens through some units that follow each other.
    pub fn of_units(config: &Config, units: Range<usize>, rows: usize) -> Owed {
        let is_block = |unit: usize| unit > 0 && unit <= config.layers;
        let len = |unit: usize| rows * config.width * if is_block(unit) { 4 } else { 1 };
        Owed { units: units.map(|unit| vec![0.0; len(unit)]).collect() }
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.units.iter().map(|unit| 4 * unit.len() as u64).sum()
    }
}

impl Gpt {
    /// The first part of `backward`: everything but the gradients of the unit's parameters. Only
    /// of a model that is not divided.
    pub fn backward_input(
        &self,
        unit: usize,
        params: &[f32],
        tape: &mut Tape,
        scratch: &mut Scratch,
        owed: &mut Owed,
    ) {
        let (k, config, heads) = (&self.kernels, self.layout.config(), tape.heads);
        let c = config.width;
        let owed = &mut owed.units[unit - tape.first];
        let Scratch { residual, narrow, wide, scores, .. } = scratch;
        let none: &mut [f32] = &mut [];
        if unit == 0 {
            owed.copy_from_slice(residual);
            return;
        }
        if unit > config.layers {
            let Tape { stream, first, lnf, statsf, logits, .. } = tape;
            let x = &stream[unit - *first];
            let [gain, _, head] = cut(params, head_lens(config));
            k.linear_backward(narrow, none, &mut [], logits, lnf, head, c);
            owed.copy_from_slice(narrow);
            residual.fill(0.0);
            k.layernorm_backward(residual, none, &mut [], narrow, x, statsf, gain);
            return;
        }
        let (x, _, t) = tape.of_block(unit);
        let [gain1, _, qkv_w, _, proj_w, _, gain2, _, fc_w, _, out_w, _] =
            cut(params, block_lens(&self.layout));
        let [out, proj, norm2, norm1] = cut_mut(owed, [residual.len(); 4]);

        out.copy_from_slice(residual);
        k.linear_backward(wide, none, &mut [], residual, &t.active, out_w, 4 * c);
        k.gelu_backward(wide, &t.hidden);
        std::mem::swap(&mut t.hidden, wide);
        k.linear_backward(narrow, none, &mut [], &t.hidden, &t.ln2, fc_w, c);
        norm2.copy_from_slice(narrow);
        k.layernorm_backward(residual, none, &mut [], narrow, &t.middle, &t.stats2, gain2);

        proj.copy_from_slice(residual);
        let dqkv = &mut wide[..t.qkv.len()];
        k.linear_backward(narrow, none, &mut [], residual, &t.mixed, proj_w, c);
        k.attention_backward(dqkv, scores, narrow, &t.qkv, &t.probs, heads);
        t.qkv.copy_from_slice(dqkv);
        k.linear_backward(narrow, none, &mut [], &t.qkv, &t.ln1, qkv_w, c);
        norm1.copy_from_slice(narrow);
        k.layernorm_backward(residual, none, &mut [], narrow, x, &t.stats1, gain1);
    }

    /// The second part: the gradients of the unit's parameters, which it does not need themselves.
    pub fn backward_weight(
        &self,
        unit: usize,
        grads: &mut [f32],
        tape: &Tape,
        owed: &Owed,
        tokens: &[u32],
    ) {
        let (k, config) = (&self.kernels, self.layout.config());
        let c = config.width;
        let at = unit - tape.first;
        let (x, owed) = (&tape.stream[at], &owed.units[at]);
        let none: &mut [f32] = &mut [];
        if unit == 0 {
            let tables = cut_mut(grads, embed_lens(config));
            k.embed_backward(tables, owed, &tape.rows, tokens, tape.shape);
            return;
        }
        if unit > config.layers {
            let [dgain, dbias, dhead] = cut_mut(grads, head_lens(config));
            k.linear_backward(none, dhead, &mut [], &tape.logits, &tape.lnf, &[], c);
            k.layernorm_backward(none, dgain, dbias, owed, x, &tape.statsf, &[]);
            return;
        }
        let t = tape.block(unit);
        let [dg1, db1, dqkv_w, dqkv_b, dproj_w, dproj_b, dg2, db2, dfc_w, dfc_b, dout_w, dout_b] =
            cut_mut(grads, block_lens(&self.layout));
        let [out, proj, norm2, norm1] = cut(owed, [owed.len() / 4; 4]);
        k.linear_backward(none, dout_w, dout_b, out, &t.active, &[], 4 * c);
        k.linear_backward(none, dfc_w, dfc_b, &t.hidden, &t.ln2, &[], c);
        k.layernorm_backward(none, dg2, db2, norm2, &t.middle, &t.stats2, &[]);
        k.linear_backward(none, dproj_w, dproj_b, proj, &t.mixed, &[], c);
        k.linear_backward(none, dqkv_w, dqkv_b, &t.qkv, &t.ln1, &[], c);
        k.layernorm_backward(none, dg1, db1, norm1, x, &t.stats1, &[]);
    }
}
