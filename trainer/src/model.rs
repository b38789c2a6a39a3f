//! A GPT (Radford et al. 2019) whose backward is written out by hand, layer under layer.
//!
//! A model is computed unit by unit: the embedding, each block, the head. A unit gets its own
//! parameters and writes its own gradients, so that whoever owns them may fetch the former just in
//! time and send the latter away while the units before are still computed.
//!
//! Not here: memory (`Tape`, `Scratch` and the caller own it), optimizers, ranks, text.

use crate::error::Error;
use crate::kernels::{Heads, Kernels};
use crate::layout::{Config, Layout, block_lens, cut, cut_mut, embed_lens, head_lens};
use crate::tape::{BlockTape, Scratch, Tape};

/// A model: its layout and the kernels that compute it.
pub struct Gpt {
    layout: Layout,
    kernels: Box<dyn Kernels + Send>,
}

impl Gpt {
    /// A model of this shape.
    pub fn new(config: Config, kernels: impl Kernels + Send + 'static) -> Result<Gpt, Error> {
        config.validate()?;
        Ok(Gpt { layout: Layout::new(config), kernels: Box::new(kernels) })
    }

    /// Where each parameter lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What computes it.
    pub fn kernels(&self) -> &dyn Kernels {
        &*self.kernels
    }

    /// GPT-2's start: weights from N(0, 0.02) at its width of 768 and wider for narrower models,
    /// those that feed the residual stream divided by √(2·layers), gains 1, biases 0. The same seed
    /// gives the same bits everywhere.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut params = vec![0.0; self.layout.len()];
        let mut rng = fastrand::Rng::with_seed(seed);
        let std = 0.02 * (768.0 / self.layout.config().width as f32).sqrt();
        let residual = std / (2.0 * self.layout.config().layers as f32).sqrt();
        for tensor in self.layout.tensors() {
            let values = &mut params[tensor.range.clone()];
            let feeds_stream =
                ["proj.weight", "out.weight"].iter().any(|n| tensor.name.ends_with(n));
            match tensor.decays() {
                true if feeds_stream => values.fill_with(|| normal(&mut rng) * residual),
                true => values.fill_with(|| normal(&mut rng) * std),
                false if tensor.name.ends_with("weight") => values.fill(1.0),
                false => values.fill(0.0),
            }
        }
        params
    }

    /// From the output of the unit before, or the tokens, to this unit's: the tape takes it. The
    /// head's are the logits. tokens: [batch × time], each below the vocabulary size.
    pub fn forward(&self, unit: usize, params: &[f32], tape: &mut Tape, tokens: &[u32]) {
        assert_eq!(tokens.len(), tape.tokens(), "tokens of a pass");
        let (k, config, heads) = (&self.kernels, self.layout.config(), tape.heads);
        let at = unit - tape.first;
        let (before, after) = tape.stream.split_at_mut(at + 1);
        if unit == 0 {
            let [wte, wpe] = cut(params, embed_lens(config));
            k.embed(&mut after[0], tokens, wte, wpe, heads);
        } else if unit <= config.layers {
            self.block(&mut after[0], &before[at], params, &mut tape.blocks[at], heads);
        } else {
            let [gain, bias, head] = cut(params, head_lens(config));
            k.layernorm(&mut tape.lnf, &mut tape.statsf, &before[at], gain, bias);
            k.linear(&mut tape.logits, &tape.lnf, head, &[], config.width, None);
        }
    }

    /// All units after each other, from parameters that lie together. params: [layout.len()].
    pub fn forward_all(&self, params: &[f32], tape: &mut Tape, tokens: &[u32]) {
        for unit in 0..self.layout.units() {
            self.forward(unit, &params[self.layout.unit(unit)], tape, tokens);
        }
    }

    /// Sum over all tokens of −log p(target). Leaves `scale` times its gradient in place of the
    /// logits.
    pub fn loss(&self, tape: &mut Tape, targets: &[u32], scale: f32) -> f64 {
        assert_eq!(targets.len(), tape.tokens(), "one target per token");
        self.kernels.cross_entropy(&mut tape.logits, &mut tape.losses, targets, scale);
        tape.losses.iter().map(|&loss| f64::from(loss)).sum()
    }

    /// From the gradient of the unit's output to those of its input, which takes its place in
    /// `scratch`, and of its parameters, which are written to `grads`. The head begins at the
    /// gradient of the logits. Units go backwards, last to first.
    pub fn backward(
        &self,
        unit: usize,
        params: &[f32],
        grads: &mut [f32],
        tape: &Tape,
        scratch: &mut Scratch,
        tokens: &[u32],
    ) {
        let (k, config) = (&self.kernels, self.layout.config());
        let x = &tape.stream[unit - tape.first];
        if unit == 0 {
            let [dwte, dwpe] = cut_mut(grads, embed_lens(config));
            k.embed_backward(dwte, dwpe, &scratch.residual, tokens, tape.heads);
        } else if unit <= config.layers {
            let block = &tape.blocks[unit - tape.first];
            self.block_backward(x, params, grads, block, tape.heads, scratch);
        } else {
            let [gain, _, head] = cut(params, head_lens(config));
            let [dgain, dbias, dhead] = cut_mut(grads, head_lens(config));
            let Scratch { residual, narrow, .. } = scratch;
            k.linear_backward(narrow, dhead, &mut [], &tape.logits, &tape.lnf, head, config.width);
            residual.fill(0.0);
            k.layernorm_backward(residual, dgain, dbias, narrow, x, &tape.statsf, gain);
        }
    }

    /// x → x + attention(norm(x)) → that + perceptron(norm(that)). x, y: [n × c]; what lies
    /// between, with its shapes, is the tape's.
    fn block(&self, y: &mut [f32], x: &[f32], block: &[f32], tape: &mut BlockTape, heads: Heads) {
        let (k, c) = (&self.kernels, heads.width);
        let t = tape;
        let [gain1, bias1, qkv_w, qkv_b, proj_w, proj_b, gain2, bias2, fc_w, fc_b, out_w, out_b] =
            cut(block, block_lens(self.layout.config()));
        k.layernorm(&mut t.ln1, &mut t.stats1, x, gain1, bias1);
        k.linear(&mut t.qkv, &t.ln1, qkv_w, qkv_b, c, None);
        k.attention(&mut t.mixed, &mut t.probs, &t.qkv, heads);
        k.linear(&mut t.middle, &t.mixed, proj_w, proj_b, c, Some(x));
        k.layernorm(&mut t.ln2, &mut t.stats2, &t.middle, gain2, bias2);
        k.linear(&mut t.hidden, &t.ln2, fc_w, fc_b, c, None);
        k.gelu(&mut t.active, &t.hidden);
        k.linear(y, &t.active, out_w, out_b, 4 * c, Some(&t.middle));
    }

    /// The block's lines in reverse. `residual`, [n × c], enters as the gradient of the block's
    /// output and leaves as that of its input; both branches add to it.
    fn block_backward(
        &self,
        x: &[f32],
        params: &[f32],
        grads: &mut [f32],
        t: &BlockTape,
        heads: Heads,
        scratch: &mut Scratch,
    ) {
        let (k, config, c) = (&self.kernels, self.layout.config(), heads.width);
        let [gain1, _, qkv_w, _, proj_w, _, gain2, _, fc_w, _, out_w, _] =
            cut(params, block_lens(config));
        let [dg1, db1, dqkv_w, dqkv_b, dproj_w, dproj_b, dg2, db2, dfc_w, dfc_b, dout_w, dout_b] =
            cut_mut(grads, block_lens(config));
        let Scratch { residual, narrow, wide, scores } = scratch;

        k.linear_backward(wide, dout_w, dout_b, residual, &t.active, out_w, 4 * c);
        k.gelu_backward(wide, &t.hidden);
        k.linear_backward(narrow, dfc_w, dfc_b, wide, &t.ln2, fc_w, c);
        k.layernorm_backward(residual, dg2, db2, narrow, &t.middle, &t.stats2, gain2);

        let dqkv = &mut wide[..t.qkv.len()];
        k.linear_backward(narrow, dproj_w, dproj_b, residual, &t.mixed, proj_w, c);
        k.attention_backward(dqkv, scores, narrow, &t.qkv, &t.probs, heads);
        k.linear_backward(narrow, dqkv_w, dqkv_b, dqkv, &t.ln1, qkv_w, c);
        k.layernorm_backward(residual, dg1, db1, narrow, x, &t.stats1, gain1);
    }
}

/// One draw from N(0, 1) (Box and Muller 1958).
fn normal(rng: &mut fastrand::Rng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * rng.f64()).cos()) as f32
}
