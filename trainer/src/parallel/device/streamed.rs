//! The state with the host, which updates it: ZeRO-Offload (Ren et al. 2021) and its kin. A unit's
//! parameters go to the device before it is computed, its gradient comes back after, while the
//! device computes the units around it; `Shards` does with both what it does without a device.

use super::crossing::Crossing;
use super::divided_bytes;
use crate::device::{Calls, DeviceDivision, Passes};
use crate::error::Error;
use crate::kernels::cuda::Device;
use crate::model::Gpt;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::clip::Clip;
use crate::parallel::{
    Batch, Lanes, Memory, Packing, Peers, Shards, Sharing, Spent, Strategy, Take, Thrift,
    gather_losses, loss_bytes, out_of_tiles, tell_whole,
};
use crate::precision::{LossScale, Precision};
use crate::state::State;
use std::time::{Duration, Instant};

/// One rank of DDP, ZeRO or FSDP whose device computes what the host holds.
pub struct Streamed<'a> {
    model: &'a Gpt,
    peers: Peers<'a>,
    crossing: Crossing<'a>,
    shards: Shards<'a>,
    optimizer: Optimizer,
    losses: Vec<f64>,
    sharing: Sharing,
    precision: Precision,
    scale: LossScale,
    clip: Option<Clip<'a>>,
    /// Of a step, and of that what does not come from `shards`.
    formula_bytes: u64,
    other_bytes: u64,
}

impl<'a> Streamed<'a> {
    /// This rank's part, from `state`, which is the same on every rank, or a source of its parts,
    /// with a budget and passes as `Crossing` has them.
    ///
    /// Errors: `Setting` if the budget does not hold a pass and two units; else those of
    /// `DataParallel`, and `Device`.
    #[expect(clippy::too_many_arguments, reason = "what a run is made of")]
    pub(super) fn new(
        device: Device,
        model: &'a Gpt,
        division: Option<DeviceDivision<'a>>,
        (peers, lanes, sharing): (Peers<'a>, Lanes, Sharing),
        optimizer: Optimizer,
        thrift: &Thrift,
        state: &State,
        room: (Option<usize>, &[Passes]),
    ) -> Result<Streamed<'a>, Error> {
        let (layout, keep, slots) = (model.layout(), thrift.keep, lanes.slots());
        let crossing = Crossing::new(device, model, division, lanes, thrift, room)?;
        let mut shards =
            Shards::new(model.kernels(), peers, sharing, layout, 0..layout.units(), state);
        shards.begin(&thrift.source, layout, peers)?;
        shards.narrow(thrift.precision);
        shards.suit(optimizer.rule(), thrift.offload.as_ref())?;
        if let Some(offload) = &thrift.offload {
            shards.offload(offload)?;
        }
        let gpt = &crossing.pass.gpt;
        let inside = divided_bytes(model, gpt, keep, 0..layout.units(), &lanes)?;
        let told = loss_bytes(peers.data, slots)?;
        let clip = Clip::new(&optimizer, model, [peers.parts.filter(|_| sharing.has_parts())]);
        let norm = clip.as_ref().map_or(Ok(0), Clip::formula_bytes)?;
        let other_bytes = told + inside + norm;
        Ok(Streamed {
            formula_bytes: shards.formula_bytes()? + other_bytes,
            other_bytes,
            model,
            peers,
            crossing,
            shards,
            optimizer,
            losses: vec![0.0; slots],
            sharing,
            precision: thrift.precision,
            scale: LossScale::of_run(thrift.precision, state),
            clip,
        })
    }

    fn forward(&mut self) -> Result<(), Error> {
        let units = self.model.layout().units();
        for unit in 0..units {
            let Streamed { crossing, shards, .. } = self;
            shards.prefetch(unit)?;
            shards.prefetch(unit + 1)?;
            crossing.forward(unit, || shards.fetch(unit))?;
            if unit + 1 < units {
                self.release(unit)?;
            }
        }
        Ok(())
    }

    /// Backward of a slot: each gradient is taken from the wire while the next is computed.
    fn backward(&mut self, slot: usize) -> Result<(), Error> {
        let units = self.model.layout().units();
        for unit in (0..units).rev() {
            if unit > 0 {
                self.shards.prefetch(unit - 1)?;
            }
            if unit + 2 < units {
                self.take(unit + 2, slot)?;
            }
            let Streamed { crossing, shards, .. } = self;
            crossing.backward(unit, || shards.fetch(unit))?;
            if unit > 0 || slot + 1 == self.losses.len() {
                self.release(unit)?;
            }
        }
        (0..units.min(2)).rev().try_for_each(|unit| self.take(unit, slot))
    }

    /// A unit's gradient comes to the host, and goes on to the other ranks.
    fn take(&mut self, unit: usize, slot: usize) -> Result<(), Error> {
        let grads = self.shards.open_gradient(unit, slot)?;
        self.crossing.take(grads)?;
        self.sharing.rounding().round(grads);
        self.shards.close(unit, slot)
    }

    /// The host needs a unit's parameters no more.
    fn release(&mut self, unit: usize) -> Result<(), Error> {
        // What is on the device already may still be on its way to the host.
        self.shards.fetch(unit)?;
        self.shards.release(unit);
        Ok(())
    }
}

impl Streamed<'_> {
    fn look(&mut self, tokens: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), Error> {
        self.crossing.pass.send([tokens, targets])?;
        self.forward()?;
        self.release(self.model.layout().units() - 1)?;
        self.crossing.pass.take_losses(losses)
    }

    /// The others hear of it where this rank goes no further.
    fn seen<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        let calls = || self.crossing.pass.gpt.calls();
        outcome.inspect_err(|error| calls().for_each(|calls| calls.abort(error)))
    }

    /// What files have cost so far.
    fn disk_use(&self) -> DiskUse {
        self.shards.disk_use().plus(self.crossing.pass.disk_use())
    }

    fn step_or_fail(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let mut spent = Spent { loss_scale: self.scale.scale(), ..Spent::default() };
        if self.shards.has_changed() {
            self.formula_bytes = self.shards.formula_bytes()? + self.other_bytes;
        }
        let disk = self.disk_use();
        for slot in 0..self.losses.len() {
            self.crossing.enter(slot, batch)?;
            self.forward()?;
            self.crossing.turn(slot, batch.scale() * self.scale.scale())?;
            self.backward(slot)?;
        }
        self.crossing.losses(&mut self.losses, &mut spent)?;
        spent.exposed = self.shards.take_waited() + self.crossing.pass.gpt.take_waited();
        let begun = Instant::now();
        let sum = gather_losses(self.peers.data, &self.losses)?;
        spent.loss = sum * f64::from(batch.scale());
        spent.exposed += begun.elapsed();

        let begun = Instant::now();
        self.optimizer.scale = 1.0 / spent.loss_scale;
        let mut waited = Duration::ZERO;
        if let Some(clip) = &self.clip {
            let mine = self.shards.squares(|tensor| clip.counts(tensor))?;
            let (norm, asked) = clip.tell(&mut self.optimizer, mine)?;
            (spent.norm, waited) = (Some(norm), asked);
        }
        spent.is_skipped = !self.shards.update(&mut self.optimizer, lr)?;
        if self.precision == Precision::F16 {
            self.scale = self.scale.after(!spent.is_skipped);
            self.optimizer.skipped += usize::from(spent.is_skipped);
        }
        spent.norm = spent.norm.filter(|_| !spent.is_skipped);
        self.optimizer.steps += 1;
        self.crossing.renew();
        waited += self.shards.take_waited();
        spent.exposed += waited;
        spent.disk = self.disk_use().since(disk);
        spent.optimizer = begun.elapsed().saturating_sub(waited);
        Ok(spent)
    }
}

impl Strategy for Streamed<'_> {
    fn close(&mut self) -> Result<(), Error> {
        Calls::close_all(self.crossing.pass.gpt.calls())
    }

    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let outcome = self.step_or_fail(batch, lr);
        self.seen(outcome)
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

    fn commit(&mut self, note: &str) -> Result<(), Error> {
        let outcome = self.shards.commit(self.optimizer.steps, note);
        self.seen(outcome)
    }

    fn steps(&self) -> usize {
        self.optimizer.steps
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn sent_bytes(&self) -> u64 {
        let meetings: u64 = self.crossing.pass.gpt.calls().map(Calls::meeting_bytes).sum();
        self.peers.sent_bytes() + self.model.sent_bytes() - meetings
    }

    fn memory(&self) -> Memory {
        let [params, grads, moments, calls, arena] = self.shards.bytes();
        let [activations, pinned, inputs] = self.crossing.bytes();
        let (calls, arena) = (calls + pinned, arena + inputs);
        Memory { params, grads, moments, calls, activations, arena }
    }

    fn disk_formula(&self) -> DiskUse {
        self.shards.disk_formula().plus(self.crossing.pass.disk_formula())
    }

    fn loss_scale(&self) -> Option<LossScale> {
        (self.precision == Precision::F16).then_some(self.scale)
    }

    fn evaluates(&self) -> Option<usize> {
        // Where parameters travel as less than they are, the host looks at all of them.
        let is_all = self.sharing.travel.gather == Packing::F32;
        is_all.then(|| self.crossing.pass.lanes.samples())
    }

    fn evaluate(
        &mut self,
        tokens: &[u32],
        targets: &[u32],
        losses: &mut [f32],
    ) -> Result<(), Error> {
        let outcome = self.look(tokens, targets, losses);
        self.seen(outcome)
    }

    fn device(&self) -> Option<String> {
        Some(self.crossing.describe())
    }
}
