//! A GPT (Radford et al. 2019) whose backward is written out by hand, layer under layer.
//!
//! A model is computed unit by unit: the embedding, each block, the head. A unit gets its own
//! parameters and writes its own gradients, so that whoever owns them may fetch the former just in
//! time and send the latter away while the units before are still computed.
//!
//! Ranks may divide the inside of the units: a `Division` then talks to the others between a line
//! and the next, and parameters are this rank's part of each tensor.
//!
//! Not here: memory (`Tape`, `Scratch` and the caller own it), optimizers, ranks, text.

mod counted;
mod initial;
mod routed;
mod split;
mod tiles;

pub(crate) use initial::Initial;
pub use split::Owed;

use crate::error::Error;
use crate::extent::Extent;
use crate::kernels::{Heads, Kernels};
use crate::layout::{Config, Layout, block_lens, cut, cut_mut, embed_lens, head_lens};
use crate::moe;
use crate::parallel::tensor::{Attended, Division, Group, Linear, LinearGrads, Split, Whole};
use crate::state::State;
use crate::tape::{BlockTape, Keep, Scratch, Tape};
use crate::trace::{self, Lane};
use std::borrow::Cow;
use std::cell::Cell;
use std::ops::Range;
use std::time::Duration;

/// A model, or one rank's part of it: its layout, the kernels that compute it, and how ranks divide
/// it.
pub struct Gpt {
    layout: Layout,
    kernels: Box<dyn Kernels + Send>,
    division: Box<dyn Division>,
    /// Bytes that gates have made this rank send.
    routed: Cell<u64>,
    /// Bytes that gates have made this rank keep from forward to backward, now and with what passes
    /// at most.
    gated: Cell<[u64; 2]>,
}

impl Gpt {
    /// A model of this shape.
    pub fn new(config: Config, kernels: impl Kernels + Send + 'static) -> Result<Gpt, Error> {
        Gpt::divided(config, kernels, Box::new(Whole))
    }

    /// This rank's part of such a model.
    pub fn divided(
        config: Config,
        kernels: impl Kernels + Send + 'static,
        division: Box<dyn Division>,
    ) -> Result<Gpt, Error> {
        config.validate()?;
        let rank = division.groups().first().map_or(0, Group::rank);
        let layout = Layout::divided(config, division.place(rank).share);
        Ok(Gpt {
            layout,
            kernels: Box::new(kernels),
            division,
            routed: Cell::new(0),
            gated: Cell::default(),
        })
    }

    /// Whether ranks divide its tensors.
    pub(crate) fn is_divided(&self) -> bool {
        self.dividers().is_some()
    }

    /// All who do.
    pub(crate) fn dividers(&self) -> Option<&Group> {
        self.division.groups().first()
    }

    /// The same, and groups of them.
    pub(crate) fn divider_groups(&self) -> &[Group] {
        self.division.groups()
    }

    /// How they divide it.
    pub(crate) fn split(&self) -> Option<Split> {
        self.division.split()
    }

    /// What this rank has of a pass over so many samples of `time` tokens.
    pub(crate) fn extent(&self, batch: usize, time: usize) -> Extent {
        self.division.extent(self.layout.config(), batch, time)
    }

    /// Where each parameter of this rank lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What computes it.
    pub fn kernels(&self) -> &dyn Kernels {
        &*self.kernels
    }

    /// Memory for what this rank keeps of some units.
    pub fn tape(&self, units: Range<usize>, batch: usize, time: usize) -> Tape {
        self.tape_that_keeps(Keep::All, units, batch, time)
    }

    /// The same where blocks may be computed twice.
    pub fn tape_that_keeps(
        &self,
        keep: Keep,
        units: Range<usize>,
        batch: usize,
        time: usize,
    ) -> Tape {
        let config = self.layout.config();
        let extent = self.extent(batch, time);
        let modules = self.layout.module(units.start)..self.layout.module(units.end - 1) + 1;
        let mut tape = Tape::of(config, modules, batch, time, extent, keep);
        tape.tile = vec![0.0; self.tile_room(batch * time)[0]];
        tape
    }

    /// Memory that this rank's backward needs.
    pub fn scratch(&self, batch: usize, time: usize) -> Scratch {
        let config = self.layout.config();
        let mut scratch = Scratch::of(config, &self.extent(batch, time));
        scratch.tile = vec![0.0; self.tile_room(batch * time)[1]];
        scratch
    }

    /// This rank's part of a whole state.
    pub fn part<'s>(&self, whole: &'s State) -> Cow<'s, State> {
        if self.layout.tiles() > 0 && !whole.is_absent() {
            return Cow::Owned(self.in_tiles(whole));
        }
        let Some(group) = self.division.groups().first().filter(|_| !whole.is_absent()) else {
            return Cow::Borrowed(whole);
        };
        let (layout, place) =
            (Layout::new(*self.layout.config()), self.division.place(group.rank()));
        let cut = |values: &[f32]| place.cut(&layout, values);
        let State { params, mean, square, steps, scale } = whole;
        let (params, mean, square) = (cut(params), cut(mean), cut(square));
        Cow::Owned(State { params, mean, square, steps: *steps, scale: *scale })
    }

    /// The whole state, from the parts of all ranks that divide it. Collective over them.
    pub fn assemble(&self, part: State) -> Result<State, Error> {
        if self.layout.tiles() > 0 {
            return Ok(self.out_of_tiles(&part));
        }
        let Some(group) = self.division.groups().first() else { return Ok(part) };
        let layout = Layout::new(*self.layout.config());
        let gather = |mine: Vec<f32>| -> Result<Vec<f32>, Error> {
            let (mut all, mut whole) =
                (vec![0.0; group.size() * mine.len()], vec![0.0; layout.len()]);
            group.all_gather(&mine, &mut all)?;
            for (rank, part) in all.chunks_exact(mine.len()).enumerate() {
                self.division.place(rank).put(&layout, part, &mut whole);
            }
            Ok(whole)
        };
        let State { params, mean, square, steps, scale } = part;
        let (params, mean, square) = (gather(params)?, gather(mean)?, gather(square)?);
        Ok(State { params, mean, square, steps, scale })
    }

    /// Bytes that forward and backward of some units make this rank send to those who divide them.
    /// What is not kept of blocks is computed twice, but for the last.
    pub fn formula_bytes(
        &self,
        keep: Keep,
        units: Range<usize>,
        batch: usize,
    ) -> Result<u64, Error> {
        let config = self.layout.config();
        let last = (units.end - 1).min(config.layers);
        let mut bytes = 0;
        for unit in units {
            let tokens = batch * config.context;
            let [forward, backward] = self.division.formula_bytes(&self.layout, unit, tokens)?;
            let is_lost = keep != Keep::All && unit > 0 && unit < last;
            bytes += forward + backward + if is_lost { forward } else { 0 };
        }
        Ok(bytes)
    }

    /// This rank's number among those who divide the model.
    pub(crate) fn rank(&self) -> usize {
        self.division.groups().first().map_or(0, Group::rank)
    }

    /// How long this rank waited for those since this was asked last.
    pub fn take_waited(&self) -> Duration {
        self.division.groups().iter().map(Group::take_waited).sum()
    }

    /// Bytes of memory that the division has of its own.
    pub fn room_bytes(&self) -> u64 {
        self.division.room_bytes()
    }

    /// From the output of the unit before, or the tokens, to this unit's: the tape takes it. The
    /// head's are the logits. tokens: [batch × time], each below the vocabulary size.
    ///
    /// Errors: those of a call, where ranks divide the model.
    pub fn forward(
        &self,
        unit: usize,
        params: &[f32],
        tape: &mut Tape,
        tokens: &[u32],
    ) -> Result<(), Error> {
        assert_eq!(tokens.len(), tape.tokens(), "tokens of a pass");
        let _span = trace::span(Lane::Compute, "forward", unit);
        let (k, config) = (&self.kernels, self.layout.config());
        let (tile, unit) = (self.layout.tile(unit), self.layout.module(unit));
        if unit == 0 {
            let tables = cut(params, embed_lens(config));
            k.embed(&mut tape.stream[1], &tape.rows, tokens, tables, tape.shape);
        } else if unit <= config.layers {
            let (heads, mut room) = (tape.heads, std::mem::take(&mut tape.tile));
            let (x, y, kept) = tape.of_block(unit);
            match tile {
                None => self.block(y, x, params, kept, heads)?,
                Some(tile) => self.tile(tile, (y, x), params, kept, heads, &mut room),
            }
            tape.tile = room;
        } else {
            let [gain, bias, head] = cut(params, head_lens(config));
            let x = &tape.stream[unit - tape.first];
            k.layernorm(&mut tape.lnf, &mut tape.statsf, x, gain, bias);
            k.linear(&mut tape.logits, &tape.lnf, head, &[], config.width, None);
        }
        Ok(())
    }

    /// All units of a model that is not divided, from parameters that lie together. params:
    /// [layout.len()].
    pub fn forward_all(&self, params: &[f32], tape: &mut Tape, tokens: &[u32]) {
        assert!(self.division.groups().is_empty(), "parts of a model are computed unit by unit");
        for unit in 0..self.layout.units() {
            let done = self.forward(unit, &params[self.layout.unit(unit)], tape, tokens);
            done.expect("one process makes no calls");
        }
    }

    /// Sum over all tokens of −log p(target). Leaves `scale` times its gradient in place of the
    /// logits.
    ///
    /// Errors: those of a call, where ranks divide the model.
    pub fn loss(&self, tape: &mut Tape, targets: &[u32], scale: f32) -> Result<f64, Error> {
        assert_eq!(targets.len(), tape.tokens(), "one target per token");
        for (target, &row) in tape.targets.iter_mut().zip(&tape.rows) {
            *target = targets[row as usize];
        }
        self.kernels.cross_entropy(&mut tape.logits, &mut tape.losses, &tape.targets, scale);
        self.division.sum_loss(tape.losses.iter().map(|&loss| f64::from(loss)).sum())
    }

    /// From the gradient of the unit's output to those of its input, which takes its place in
    /// `scratch`, and of its parameters, which are written to `grads`. The head begins at the
    /// gradient of the logits. Units go backwards, last to first.
    ///
    /// Errors: those of a call, where ranks divide the model.
    pub fn backward(
        &self,
        unit: usize,
        params: &[f32],
        grads: &mut [f32],
        tape: &Tape,
        scratch: &mut Scratch,
        tokens: &[u32],
    ) -> Result<(), Error> {
        let (k, config) = (&self.kernels, self.layout.config());
        let _span = trace::span(Lane::Compute, "backward", unit);
        let (tile, unit) = (self.layout.tile(unit), self.layout.module(unit));
        let x = &tape.stream[unit - tape.first];
        if let Some(tile) = tile {
            self.tile_backward(tile, x, params, grads, tape.block(unit), tape.heads, scratch);
            return Ok(());
        }
        if unit == 0 {
            let tables = cut_mut(grads, embed_lens(config));
            k.embed_backward(tables, &scratch.residual, &tape.rows, tokens, tape.shape);
        } else if unit <= config.layers {
            self.block_backward(x, params, grads, tape.block(unit), tape.heads, scratch)?;
            return self.division.complete(grads, Some(&block_lens(&self.layout)));
        } else {
            let [gain, _, head] = cut(params, head_lens(config));
            let [dgain, dbias, dhead] = cut_mut(grads, head_lens(config));
            let Scratch { residual, narrow, .. } = scratch;
            let narrow = &mut narrow[..residual.len()];
            k.linear_backward(narrow, dhead, &mut [], &tape.logits, &tape.lnf, head, config.width);
            residual.fill(0.0);
            k.layernorm_backward(residual, dgain, dbias, narrow, x, &tape.statsf, gain);
        }
        self.division.complete(grads, None)
    }

    /// x → x + attention(norm(x)) → that + perceptron(norm(that)). x, y: [n × c]; what lies
    /// between, with its shapes, is the tape's.
    fn block(
        &self,
        y: &mut [f32],
        x: &[f32],
        block: &[f32],
        t: &mut BlockTape,
        heads: Heads,
    ) -> Result<(), Error> {
        let (k, ranks) = (&*self.kernels, &self.division);
        let [gain1, bias1, qkv_w, qkv_b, proj_w, proj_b, gain2, bias2, fc_w, fc_b, out_w, out_b] =
            cut(block, block_lens(&self.layout));
        k.layernorm(&mut t.ln1, &mut t.stats1, x, gain1, bias1);
        ranks.enter(k, &mut t.qkv, &t.ln1, linear(qkv_w, qkv_b))?;
        ranks.attention(k, &mut t.mixed, &mut t.probs, &t.qkv, heads)?;
        ranks.leave(k, &mut t.middle, &t.mixed, linear(proj_w, proj_b), x)?;
        k.layernorm(&mut t.ln2, &mut t.stats2, &t.middle, gain2, bias2);
        if self.layout.config().experts > 0 {
            let (gate, fc_w) = fc_w.split_at(self.layout.config().gate_len());
            let params = [gate, fc_w, fc_b, out_w, out_b];
            let (how, mixture) = (self.mixture(), &mut t.mixture);
            let before = mixture.bytes();
            moe::forward((k, how.0, &how.1), y, &t.ln2, params, mixture, &t.middle)?;
            self.add_routed(mixture.formula_bytes(&how.1, self.rank())[0]);
            self.keep_gated(before, mixture.bytes(), mixture.passing_bytes(&how.1)[0]);
            return Ok(());
        }
        ranks.enter(k, &mut t.hidden, &t.ln2, linear(fc_w, fc_b))?;
        k.gelu(&mut t.active, &t.hidden);
        ranks.leave(k, y, &t.active, linear(out_w, out_b), &t.middle)
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
    ) -> Result<(), Error> {
        let (k, ranks, config) = (&*self.kernels, &self.division, self.layout.config());
        let [gain1, _, qkv_w, qkv_b, proj_w, proj_b, gain2, _, fc_w, fc_b, out_w, out_b] =
            cut(params, block_lens(&self.layout));
        let [dg1, db1, dqkv_w, dqkv_b, dproj_w, dproj_b, dg2, db2, dfc_w, dfc_b, dout_w, dout_b] =
            cut_mut(grads, block_lens(&self.layout));
        let Scratch { residual, narrow, wide, scores, .. } = scratch;
        let to = |weight, bias| LinearGrads { weight, bias };

        let dx = &mut narrow[..residual.len()];
        if config.experts > 0 {
            let (gate, fc_w) = fc_w.split_at(config.gate_len());
            let (dgate, dfc_w) = dfc_w.split_at_mut(config.gate_len());
            let params = [gate, fc_w, fc_b, out_w, out_b];
            let to = (&mut *dx, [dgate, dfc_w, dfc_b, dout_w, dout_b]);
            let how = self.mixture();
            moe::backward((k, how.0, &how.1), to, residual, &t.ln2, params, &t.mixture)?;
            self.add_routed(t.mixture.formula_bytes(&how.1, self.rank())[1]);
            self.keep_gated(0, 0, t.mixture.passing_bytes(&how.1)[1]);
        } else {
            let out = linear(out_w, out_b);
            ranks.leave_backward(k, wide, to(dout_w, dout_b), residual, &t.active, out)?;
            k.gelu_backward(wide, &t.hidden);
            ranks.enter_backward(k, dx, to(dfc_w, dfc_b), wide, &t.ln2, linear(fc_w, fc_b))?;
        }
        k.layernorm_backward(residual, dg2, db2, dx, &t.middle, &t.stats2, gain2);

        let (dqkv, dmixed) = (&mut wide[..t.qkv.len()], &mut narrow[..t.mixed.len()]);
        let proj = linear(proj_w, proj_b);
        ranks.leave_backward(k, dmixed, to(dproj_w, dproj_b), residual, &t.mixed, proj)?;
        let from = Attended { qkv: &t.qkv, y: &t.mixed, kept: &t.probs, heads };
        ranks.attention_backward(k, dqkv, scores, dmixed, from)?;
        let dx = &mut narrow[..residual.len()];
        ranks.enter_backward(k, dx, to(dqkv_w, dqkv_b), dqkv, &t.ln1, linear(qkv_w, qkv_b))?;
        k.layernorm_backward(residual, dg1, db1, dx, x, &t.stats1, gain1);
        Ok(())
    }
}

fn linear<'a>(weight: &'a [f32], bias: &'a [f32]) -> Linear<'a> {
    Linear { weight, bias }
}
