//! A GPT (Radford et al. 2019) whose backward is written out by hand, layer under layer.
//!
//! Parameters come in as one flat buffer and gradients leave in one, cut by `Layout`. Backward
//! fills the gradients from the end of the buffer to its start and says after every module from
//! where on they are final, so that whoever owns the buffer can already send that part away.
//!
//! Not here: memory (`Tape` and the caller own it), optimizers, ranks, text.

use crate::error::Error;
use crate::kernels::{Heads, Kernels};
use crate::layout::{Config, Layout, block_lens, cut, cut_mut, embed_lens, head_lens};
use crate::tape::{BlockTape, Gradients, Tape};

/// Owner of a gradient buffer while backward fills it.
pub trait GradientSync {
    /// The part of the buffer that is not final yet: always a prefix of it.
    fn open(&mut self) -> &mut [f32];

    /// Everything from element `start` on is final now; backward will not touch it again.
    fn ready(&mut self, start: usize) -> Result<(), Error>;
}

/// The trivial owner: one process keeps its gradients to itself.
pub struct Local<'a>(pub &'a mut [f32]);

impl GradientSync for Local<'_> {
    fn open(&mut self) -> &mut [f32] {
        self.0
    }

    fn ready(&mut self, _start: usize) -> Result<(), Error> {
        Ok(())
    }
}

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

    /// Fill the tape up to the logits. tokens: [batch × time], each below the vocabulary size.
    pub fn forward(&self, params: &[f32], tape: &mut Tape, tokens: &[u32]) {
        assert_eq!(params.len(), self.layout.len(), "one parameter buffer");
        assert_eq!(tokens.len(), tape.tokens(), "tokens of a pass");
        let config = self.layout.config();
        let [wte, wpe] = cut(&params[self.layout.embed()], embed_lens(config));
        self.kernels.embed(&mut tape.stream[0], tokens, wte, wpe, tape.heads);
        for layer in 0..config.layers {
            let (before, after) = tape.stream.split_at_mut(layer + 1);
            let block = &params[self.layout.block(layer)];
            self.block(&mut after[0], &before[layer], block, &mut tape.blocks[layer], tape.heads);
        }
        let [gain, bias, head] = cut(&params[self.layout.head()], head_lens(config));
        let stream = &tape.stream[config.layers];
        self.kernels.layernorm(&mut tape.lnf, &mut tape.statsf, stream, gain, bias);
        self.kernels.linear(&mut tape.logits, &tape.lnf, head, &[], config.width, None);
    }

    /// Sum over all tokens of −log p(target). Leaves `scale` times its gradient in place of the
    /// logits.
    pub fn loss(&self, tape: &mut Tape, targets: &[u32], scale: f32) -> f64 {
        assert_eq!(targets.len(), tape.tokens(), "one target per token");
        self.kernels.cross_entropy(&mut tape.logits, &mut tape.losses, targets, scale);
        tape.losses.iter().map(|&loss| f64::from(loss)).sum()
    }

    /// From the logits' gradient to every parameter's. Writes the whole buffer of `sync`, last
    /// module first. Errors: those of `sync`.
    pub fn backward(
        &self,
        params: &[f32],
        tape: &mut Tape,
        tokens: &[u32],
        sync: &mut dyn GradientSync,
    ) -> Result<(), Error> {
        self.head_backward(params, tape, sync)?;
        for layer in (0..self.layout.config().layers).rev() {
            self.block_backward(layer, params, tape, sync)?;
        }
        let range = self.layout.embed();
        let [dwte, dwpe] = cut_mut(&mut sync.open()[range], embed_lens(self.layout.config()));
        self.kernels.embed_backward(dwte, dwpe, &tape.grads.residual, tokens, tape.heads);
        sync.ready(0)
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

    fn head_backward(
        &self,
        params: &[f32],
        tape: &mut Tape,
        sync: &mut dyn GradientSync,
    ) -> Result<(), Error> {
        let (k, config, range) = (&self.kernels, self.layout.config(), self.layout.head());
        let [gain, _, head] = cut(&params[range.clone()], head_lens(config));
        let [dgain, dbias, dhead] = cut_mut(&mut sync.open()[range.clone()], head_lens(config));
        let Gradients { residual, narrow, .. } = &mut tape.grads;
        k.linear_backward(narrow, dhead, &mut [], &tape.logits, &tape.lnf, head, config.width);
        residual.fill(0.0);
        let stream = &tape.stream[config.layers];
        k.layernorm_backward(residual, dgain, dbias, narrow, stream, &tape.statsf, gain);
        sync.ready(range.start)
    }

    /// The block's lines in reverse. `residual`, [n × c], enters as the gradient of the block's
    /// output and leaves as that of its input; both branches add to it.
    fn block_backward(
        &self,
        layer: usize,
        params: &[f32],
        tape: &mut Tape,
        sync: &mut dyn GradientSync,
    ) -> Result<(), Error> {
        let (k, config, range) = (&self.kernels, self.layout.config(), self.layout.block(layer));
        let (c, heads, t, x) = (config.width, tape.heads, &tape.blocks[layer], &tape.stream[layer]);
        let [gain1, _, qkv_w, _, proj_w, _, gain2, _, fc_w, _, out_w, _] =
            cut(&params[range.clone()], block_lens(config));
        let [dg1, db1, dqkv_w, dqkv_b, dproj_w, dproj_b, dg2, db2, dfc_w, dfc_b, dout_w, dout_b] =
            cut_mut(&mut sync.open()[range.clone()], block_lens(config));
        let Gradients { residual, narrow, wide, scores } = &mut tape.grads;

        k.linear_backward(wide, dout_w, dout_b, residual, &t.active, out_w, 4 * c);
        k.gelu_backward(wide, &t.hidden);
        k.linear_backward(narrow, dfc_w, dfc_b, wide, &t.ln2, fc_w, c);
        k.layernorm_backward(residual, dg2, db2, narrow, &t.middle, &t.stats2, gain2);

        let dqkv = &mut wide[..t.qkv.len()];
        k.linear_backward(narrow, dproj_w, dproj_b, residual, &t.mixed, proj_w, c);
        k.attention_backward(dqkv, scores, narrow, &t.qkv, &t.probs, heads);
        k.linear_backward(narrow, dqkv_w, dqkv_b, dqkv, &t.ln1, qkv_w, c);
        k.layernorm_backward(residual, dg1, db1, narrow, x, &t.stats1, gain1);
        sync.ready(range.start)
    }
}

/// One draw from N(0, 1) (Box and Muller 1958).
fn normal(rng: &mut fastrand::Rng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * rng.f64()).cos()) as f32
}
