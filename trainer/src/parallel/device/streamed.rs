//! The state with the host, which updates it: ZeRO-Offload (Ren et al. 2021) and its kin. A unit's
//! parameters go to the device before it is computed, its gradient comes back after, while the
//! device computes the units around it; `Shards` does with both what it does without a device.
//!
//! The device has room for the parameters of all units, which then cross once a step, or of two.

use super::pass::Pass;
use super::{divided_bytes, longest, over};
use crate::device::{Calls, DeviceDivision, DeviceGpt, Passes, Rooms};
use crate::error::Error;
use crate::kernels::cuda::{Device, Inside, Room, View};
use crate::layout::Layout;
use crate::model::Gpt;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::{
    Batch, Lanes, Memory, Packing, Peers, Shards, Sharing, Spent, Strategy, Take, Thrift, gather_losses,
    loss_bytes, tell_whole,
};
use crate::state::State;
use brigade_cuda::{DeviceMemory, Event};
use std::time::Instant;

/// One rank of DDP, ZeRO or FSDP whose device computes what the host holds.
pub struct Streamed<'a> {
    model: &'a Gpt,
    peers: Peers<'a>,
    pass: Pass<'a>,
    shards: Shards<'a>,
    slots: Vec<Slot>,
    /// Gradients on the device, in turn, in what they cross in: f32, or bf16 beside it.
    grads: [Gradient; 2],
    optimizer: Optimizer,
    losses: Vec<f64>,
    sharing: Sharing,
    /// Of a step, and of that what does not come from `shards`.
    formula_bytes: u64,
    other_bytes: u64,
    /// Of the device, pinned, and where what goes into blocks is or passes through.
    pass_bytes: [u64; 3],
}

/// Room for a unit's parameters.
struct Slot {
    view: View,
    /// Whose they are, since the last update.
    holds: Option<usize>,
    /// After the last use.
    used: Event,
}

/// Room for a unit's gradient.
#[derive(Clone, Copy)]
struct Gradient {
    full: View,
    crossing: View,
}

impl Gradient {
    fn take(room: &mut Room, longest: usize, inside: Inside) -> Gradient {
        let full = room.take(longest, 4);
        let crossing = if inside.size() == 4 { full } else { room.take(longest, inside.size()) };
        Gradient { full, crossing }
    }
}

impl<'a> Streamed<'a> {
    /// This rank's part, from `state`, which is the same on every rank, or a source of its parts,
    /// with the first of these passes, or the last where the budget asks for it.
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
        (budget, passes): (Option<usize>, &[Passes]),
    ) -> Result<Streamed<'a>, Error> {
        let (layout, inside, keep) = (model.layout(), device.inside(), thrift.keep);
        let plan = |(is_held, passes): (bool, Passes), room: &mut Room| {
            let views = views(room, layout, is_held, inside);
            let longest = longest(layout, 0..layout.units());
            let grads = [0, 1].map(|_| Gradient::take(room, longest, inside));
            (views, grads, Rooms::take(room, layout.config(), passes))
        };
        let bytes_of = |way| {
            let mut room = Room::default();
            plan(way, &mut room);
            room.taken()
        };
        let [plain, last] = [passes.first(), passes.last()].map(|passes| *passes.expect("a way"));
        let fits = |way: &(bool, Passes)| budget.is_none_or(|budget| bytes_of(*way) <= budget);
        let way = [(true, plain), (false, plain), (false, last)].into_iter().find(fits);
        let way = way.ok_or_else(|| over(budget, bytes_of((false, last)), "a pass needs", keep))?;
        let bytes = bytes_of(way);
        let memory = DeviceMemory::new(device.context(), bytes)?;
        let (views, grads, rooms) = plan(way, &mut Room::at(memory.address()));
        let slot = |view| Ok(Slot { view, holds: None, used: Event::new(device.context())? });
        let slots = views.into_iter().map(slot).collect::<Result<Vec<_>, Error>>()?;

        let mut shards =
            Shards::new(model.kernels(), peers, sharing, layout, 0..layout.units(), state);
        shards.begin(&thrift.source, layout, peers)?;
        shards.narrow(thrift.precision);
        shards.suit(optimizer.rule(), thrift.offload.as_ref())?;
        if let Some(offload) = &thrift.offload {
            shards.offload(offload)?;
        }
        let losses = vec![0.0; lanes.slots()];
        let gpt = DeviceGpt::new(device, model, division, plain.heads, rooms.scratch, memory)?;
        let down_bytes = grads[0].crossing.bytes();
        let mut pass = Pass::new(gpt, model, rooms.tape, lanes, thrift, down_bytes)?;
        let first = |unit: usize, view: View| view.first(layout.unit(unit).len());
        pass.begin(layout.units(), |unit| {
            let params = slots[unit % slots.len()].view;
            [params, grads[unit % 2].full].map(|view| first(unit, view))
        })?;
        let inside = divided_bytes(model, &pass.gpt, keep, 0..layout.units(), &lanes)?;
        let told = loss_bytes(peers.data, lanes.slots())?;
        let other_bytes = told + inside;
        let [pinned, inputs] = pass.host_bytes();
        Ok(Streamed {
            formula_bytes: shards.formula_bytes()? + other_bytes,
            other_bytes,
            model,
            peers,
            pass,
            shards,
            slots,
            grads,
            optimizer,
            losses,
            sharing,
            pass_bytes: [bytes as u64, pinned, inputs],
        })
    }

    /// A unit's parameters, on the device.
    fn params(&mut self, unit: usize) -> Result<(usize, View), Error> {
        let Streamed { model, pass, shards, slots, .. } = self;
        let at = unit % slots.len();
        let Slot { view, holds, used } = &mut slots[at];
        let view = view.first(model.layout().unit(unit).len());
        if *holds != Some(unit) {
            pass.wire.send(view, shards.fetch(unit)?, used)?;
            *holds = Some(unit);
        }
        Ok((at, view))
    }

    /// What was given to the device so far uses the slot's parameters.
    fn used(&self, slot: usize) -> Result<(), Error> {
        Ok(self.pass.gpt.device.stream().record(&self.slots[slot].used)?)
    }

    fn forward(&mut self) -> Result<(), Error> {
        let units = self.model.layout().units();
        for unit in 0..units {
            self.shards.prefetch(unit)?;
            self.shards.prefetch(unit + 1)?;
            let (slot, view) = self.params(unit)?;
            self.pass.forward(unit, view)?;
            self.used(slot)?;
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
            let (at, view) = self.params(unit)?;
            let grads = self.grads[unit % 2];
            let full = grads.full.first(view.len());
            let crossing = grads.crossing.first(view.len());
            if unit + 2 < units {
                // Its room was the unit's above the one above.
                self.take(unit + 2, slot)?;
            }
            self.pass.backward(unit, view, full)?;
            self.used(at)?;
            if crossing != full {
                self.pass.gpt.device.to_bf16(crossing, full)?;
            }
            self.pass.wire.fetch(crossing)?;
            if unit > 0 || slot + 1 == self.losses.len() {
                self.release(unit)?;
            }
        }
        self.pass.end()?;
        (0..units.min(2)).rev().try_for_each(|unit| self.take(unit, slot))
    }

    /// A unit's gradient comes to the host, and goes on to the other ranks.
    fn take(&mut self, unit: usize, slot: usize) -> Result<(), Error> {
        let size = self.grads[0].crossing.size();
        let grads = self.shards.open_gradient(unit, slot)?;
        self.pass.wire.take(grads, size)?;
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
        self.pass.send([tokens, targets])?;
        self.forward()?;
        self.release(self.model.layout().units() - 1)?;
        self.pass.take_losses(losses)
    }

    /// The others hear of it where this rank goes no further.
    fn seen<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        let abort = |error: &Error| self.pass.gpt.calls().map_or((), |calls| calls.abort(error));
        outcome.inspect_err(abort)
    }

    /// What files have cost so far.
    fn disk_use(&self) -> DiskUse {
        self.shards.disk_use().plus(self.pass.disk_use())
    }

    fn step_or_fail(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let mut spent = Spent { loss_scale: 1.0, ..Spent::default() };
        if self.shards.has_changed() {
            self.formula_bytes = self.shards.formula_bytes()? + self.other_bytes;
        }
        let disk = self.disk_use();
        for slot in 0..self.losses.len() {
            self.pass.enter(slot, batch)?;
            self.forward()?;
            self.pass.turn(slot, batch.scale())?;
            self.backward(slot)?;
        }
        self.pass.losses(&mut self.losses)?;
        self.pass.add_times(&mut spent)?;
        spent.exposed = self.shards.take_waited() + self.pass.gpt.take_waited();
        let begun = Instant::now();
        let sum = gather_losses(self.peers.data, &self.losses)?;
        spent.loss = sum * f64::from(batch.scale());
        spent.exposed += begun.elapsed();

        let begun = Instant::now();
        self.optimizer.scale = 1.0;
        self.shards.update(&mut self.optimizer, lr)?;
        self.optimizer.steps += 1;
        self.slots.iter_mut().for_each(|slot| slot.holds = None);
        let waited = self.shards.take_waited();
        spent.exposed += waited;
        spent.disk = self.disk_use().since(disk);
        spent.optimizer = begun.elapsed().saturating_sub(waited);
        Ok(spent)
    }
}

impl Strategy for Streamed<'_> {
    fn close(&mut self) -> Result<(), Error> {
        self.pass.gpt.calls().map_or(Ok(()), Calls::close)
    }

    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let outcome = self.step_or_fail(batch, lr);
        self.seen(outcome)
    }

    fn gather(&mut self) -> Result<State, Error> {
        let mut state = State::room(self.model.layout());
        self.shards.gather(&mut state)?;
        state.steps = self.optimizer.steps;
        self.model.assemble(state)
    }

    fn tell(&mut self, has_moments: bool, take: &mut Take<'_>) -> Result<(), Error> {
        if self.model.is_divided() {
            return tell_whole(self.gather()?, has_moments, take);
        }
        self.shards.tell(has_moments, take)
    }

    fn steps(&self) -> usize {
        self.optimizer.steps
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn sent_bytes(&self) -> u64 {
        let meetings = self.pass.gpt.calls().map_or(0, Calls::meeting_bytes);
        self.peers.sent_bytes() + self.model.sent_bytes() - meetings
    }

    fn memory(&self) -> Memory {
        let [params, grads, moments, calls, arena] = self.shards.bytes();
        let [activations, pinned, inputs] = self.pass_bytes;
        let (calls, arena) = (calls + pinned, arena + inputs);
        Memory { params, grads, moments, calls, activations, arena }
    }

    fn disk_formula(&self) -> DiskUse {
        self.shards.disk_formula().plus(self.pass.disk_formula())
    }

    fn evaluates(&self) -> Option<usize> {
        // Where parameters travel as less than they are, the host looks at all of them.
        let is_all = self.sharing.travel.gather == Packing::F32;
        is_all.then(|| self.pass.lanes.samples())
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
        let units = self.slots.len();
        let all = self.model.layout().units();
        let device = self.pass.gpt.describe();
        Some(format!("{device}, parameters of {units} of {all} units at a time"))
    }
}

/// Room for parameters: of every unit, or of any two.
fn views(room: &mut Room, layout: &Layout, is_held: bool, inside: Inside) -> Vec<View> {
    let size = inside.size();
    match is_held {
        true => (0..layout.units()).map(|unit| room.take(layout.unit(unit).len(), size)).collect(),
        false => {
            let longest = longest(layout, 0..layout.units());
            (0..2).map(|_| room.take(longest, size)).collect()
        }
    }
}
