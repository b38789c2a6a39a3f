//! Data-parallel training: every rank computes the whole model on its own lanes.

use super::clip::Clip;
use super::{
    Batch, Lanes, Memory, Packing, Peers, Shards, Sharing, Source, Spent, Strategy, Take,
    gather_losses, loss_bytes, out_of_tiles, tell_whole,
};
use crate::data::fill;
use crate::error::Error;
use crate::model::Gpt;
use crate::offload::{DiskUse, Inputs, Offload, Scope};
use crate::optim::Optimizer;
use crate::precision::{LossScale, Precision};
use crate::state::State;
use crate::tape::{Keep, Scratch, Tape};
use crate::trace::{self, Lane};
use std::time::{Duration, Instant};

/// How a run saves memory.
#[derive(Clone, Debug, Default)]
pub struct Thrift {
    /// What of blocks is kept for backward.
    pub keep: Keep,
    /// What the model computes with.
    pub precision: Precision,
    /// What is kept in cheaper memory.
    pub offload: Option<Offload>,
    /// Where inputs of blocks are, with `Keep::LastInput`: in files.
    pub inputs: Option<Offload>,
    /// Where the state comes from, if it was not given.
    pub source: Source,
}

/// One rank of DDP (Li et al. 2020), ZeRO or FSDP, or a process alone.
pub struct DataParallel<'a> {
    model: &'a Gpt,
    peers: Peers<'a>,
    lanes: Lanes,
    /// What each lane's gradient is rounded to, so that it has the same bits wherever it is added.
    rounding: Packing,
    shards: Shards<'a>,
    optimizer: Optimizer,
    precision: Precision,
    scale: LossScale,
    clip: Option<Clip<'a>>,
    inputs: Option<Inputs>,
    tape: Tape,
    scratch: Scratch,
    /// [samples of a lane × context], and the byte after each.
    tokens: Vec<u32>,
    targets: Vec<u32>,
    /// Summed loss of each of this rank's lanes: `[slots]`.
    losses: Vec<f64>,
    /// Of a step, and of that what does not come from `shards`.
    formula_bytes: u64,
    other_bytes: u64,
}

impl<'a> DataParallel<'a> {
    /// This rank's part, from `state`, which is the same on every rank.
    ///
    /// Errors: those of calls that the group cannot do; `Setting` if a budget is too small,
    /// `Offload` for what a device says.
    pub fn new(
        model: &'a Gpt,
        peers: impl Into<Peers<'a>>,
        lanes: Lanes,
        sharing: Sharing,
        optimizer: Optimizer,
        thrift: &Thrift,
        state: &State,
    ) -> Result<DataParallel<'a>, Error> {
        let (layout, config) = (model.layout(), model.layout().config());
        let peers = peers.into();
        let (samples, time) = (lanes.samples(), config.context);
        let units = 0..layout.units();
        let state = model.part(state);
        let mut shards =
            Shards::new(model.kernels(), peers, sharing, layout, units.clone(), &state);
        let Thrift { keep, precision, ref offload, ref inputs, ref source } = *thrift;
        shards.begin(source, layout, peers)?;
        shards.narrow(precision);
        shards.suit(optimizer.rule(), offload.as_ref())?;
        if let Some(offload) = offload {
            shards.offload(offload)?;
        }
        let inside = lanes.slots() as u64 * model.formula_bytes(keep, units.clone(), samples)?;
        let tokens = vec![0; samples * time];
        let tape = model.tape_that_keeps(keep, units.clone(), samples, time);
        let (layers, len) = (config.layers, tape.input(1).len());
        let scope = Scope { layers, units, slots: 1, len, stays: 1 };
        let inputs = inputs.as_ref().map(|offload| Inputs::new(offload, scope)).transpose()?;
        let clip = Clip::new(&optimizer, model, [peers.parts.filter(|_| sharing.has_parts())]);
        let norm = clip.as_ref().map_or(Ok(0), Clip::formula_bytes)?;
        let other_bytes = inside + loss_bytes(peers.data, lanes.slots())? + norm;
        Ok(DataParallel {
            formula_bytes: shards.formula_bytes()? + other_bytes,
            other_bytes,
            tape,
            scratch: model.scratch(samples, time),
            targets: tokens.clone(),
            losses: vec![0.0; lanes.slots()],
            tokens,
            model,
            peers,
            lanes,
            rounding: sharing.rounding(),
            shards,
            optimizer,
            precision,
            scale: LossScale::of_run(precision, &state),
            clip,
            inputs,
        })
    }

    /// Forward of this rank's lane of `slot`. The last unit stays for backward.
    fn forward(&mut self, slot: usize, batch: &Batch<'_>) -> Result<(), Error> {
        let DataParallel { model, shards, inputs, tape, tokens, targets, .. } = self;
        let scale = self.scale.scale();
        let windows = self.lanes.range(slot);
        let windows =
            windows.map(|index| batch.corpus.sample(batch.seed, batch.step, index, batch.context));
        fill(windows, tokens, targets, batch.context);
        let units = model.layout().units();
        for unit in 0..units {
            shards.prefetch(unit)?;
            shards.prefetch(unit + 1)?;
            model.forward(unit, shards.fetch(unit)?, tape, tokens)?;
            inputs.as_mut().map_or(Ok(()), |inputs| inputs.leave(0, unit, tape))?;
            if unit + 1 < units {
                shards.release(unit);
            }
        }
        self.losses[slot] = model.loss(tape, targets, batch.scale() * scale)?;
        Ok(())
    }

    /// Backward of the same. The first unit stays for the forward of the next slot.
    fn backward(&mut self, slot: usize) -> Result<(), Error> {
        let DataParallel { model, shards, inputs, tape, scratch, tokens, .. } = self;
        let units = model.layout().units();
        for unit in (0..units).rev() {
            inputs.as_mut().map_or(Ok(()), |inputs| inputs.come_back(0, unit, tape))?;
            if unit > 0 {
                shards.prefetch(unit - 1)?;
            }
            let (params, grads) = shards.open(unit, slot)?;
            if tape.has_lost(unit) {
                model.forward(unit, params, tape, tokens)?;
            }
            model.backward(unit, params, grads, tape, scratch, tokens)?;
            self.precision.round(grads);
            self.rounding.round(grads);
            shards.close(unit, slot)?;
            if unit > 0 || slot + 1 == self.lanes.slots() {
                shards.release(unit);
            }
        }
        Ok(())
    }

    /// If the optimizer clips: tell it the norm of the whole gradient. How long others were waited
    /// for.
    fn tell_norm(&mut self, spent: &mut Spent) -> Result<Duration, Error> {
        let Some(clip) = &self.clip else { return Ok(Duration::ZERO) };
        let mine = self.shards.squares(|tensor| clip.counts(tensor))?;
        let (norm, waited) = clip.tell(&mut self.optimizer, mine)?;
        spent.norm = Some(norm);
        Ok(waited)
    }

    /// Now, and how long files have been waited for until now.
    fn clock(&self) -> (Instant, Duration) {
        (Instant::now(), self.disk_use().waited)
    }

    /// That moment, moved by what files were waited for since: what has elapsed is without it.
    fn since(&self, (from, waited): (Instant, Duration)) -> Instant {
        from + (self.disk_use().waited - waited)
    }

    /// What files have cost so far.
    fn disk_use(&self) -> DiskUse {
        let inputs = self.inputs.as_ref().map_or(DiskUse::default(), Inputs::used);
        self.shards.disk_use().plus(inputs)
    }
}

impl Strategy for DataParallel<'_> {
    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let mut spent = Spent::default();
        if self.shards.has_changed() {
            self.formula_bytes = self.shards.formula_bytes()? + self.other_bytes;
        }
        let disk = self.disk_use();
        for slot in 0..self.lanes.slots() {
            let from = self.clock();
            self.forward(slot, batch)?;
            let waited = self.shards.take_waited() + self.model.take_waited();
            spent.add_forward(self.since(from), waited);
            let from = self.clock();
            self.backward(slot)?;
            let waited = self.shards.take_waited() + self.model.take_waited();
            spent.add_backward(self.since(from), waited);
        }
        let from = Instant::now();
        let waiting = trace::span(Lane::Waiting, "losses of step", batch.step + 1);
        let sum = gather_losses(self.peers.data, &self.losses)?;
        spent.loss = sum * f64::from(batch.scale());
        drop(waiting);
        spent.exposed += from.elapsed();

        let from = self.clock();
        let _span = trace::span(Lane::Compute, "update", batch.step + 1);
        spent.loss_scale = self.scale.scale();
        self.optimizer.scale = 1.0 / spent.loss_scale;
        let told = self.tell_norm(&mut spent)?;
        spent.is_skipped = !self.shards.update(&mut self.optimizer, lr)?;
        if self.precision == Precision::F16 {
            self.scale = self.scale.after(!spent.is_skipped);
            self.optimizer.skipped += usize::from(spent.is_skipped);
        }
        spent.norm = spent.norm.filter(|_| !spent.is_skipped);
        self.optimizer.steps += 1;
        let (from, waited) = (self.since(from), self.shards.take_waited() + told);
        spent.exposed += waited;
        spent.disk = self.disk_use().since(disk);
        spent.optimizer = from.elapsed().saturating_sub(waited);
        Ok(spent)
    }

    fn gather(&mut self) -> Result<State, Error> {
        let mut state = State::room(self.model.layout());
        self.shards.gather(&mut state)?;
        state.steps = self.optimizer.steps;
        state.scale = self.loss_scale();
        self.model.assemble(state)
    }

    fn tell(&mut self, has_moments: bool, take: &mut Take<'_>) -> Result<(), Error> {
        if self.model.is_divided() {
            return tell_whole(self.gather()?, has_moments, take);
        }
        self.shards.tell(has_moments, &mut out_of_tiles(self.model.layout(), take))
    }

    fn loss_scale(&self) -> Option<LossScale> {
        (self.precision == Precision::F16).then_some(self.scale)
    }

    fn commit(&mut self, note: &str) -> Result<(), Error> {
        self.shards.commit(self.optimizer.steps, note)
    }

    fn steps(&self) -> usize {
        self.optimizer.steps
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn sent_bytes(&self) -> u64 {
        self.peers.sent_bytes() + self.model.sent_bytes()
    }

    fn memory(&self) -> Memory {
        let [params, grads, moments, calls, arena] = self.shards.bytes();
        let gated = self.model.gated_bytes();
        let text = 4 * (self.tokens.len() + self.targets.len()) as u64;
        let activations = self.tape.bytes() + self.scratch.bytes() + gated + text;
        let calls = calls + self.model.room_bytes();
        let arena = arena + self.inputs.as_ref().map_or(0, Inputs::arena_bytes);
        Memory { params, grads, moments, calls, activations, arena }
    }

    fn disk_formula(&self) -> DiskUse {
        let inputs = self.inputs.as_ref().map_or(DiskUse::default(), Inputs::formula);
        self.shards.disk_formula().plus(inputs.times(self.lanes.slots() as u32))
    }
}

impl Spent {
    pub(super) fn add_forward(&mut self, from: Instant, waited: Duration) {
        self.forward += from.elapsed().saturating_sub(waited);
        self.exposed += waited;
    }

    pub(super) fn add_backward(&mut self, from: Instant, waited: Duration) {
        self.backward += from.elapsed().saturating_sub(waited);
        self.exposed += waited;
    }
}
