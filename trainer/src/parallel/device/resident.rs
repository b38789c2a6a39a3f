//! All of the state on the device, which updates it too. Among ranks, DDP: each unit's gradient is
//! summed over the ranks once it is there, while the units below are still computed.

use super::held::Held;
use super::pass::Pass;
use super::sums::Sums;
use super::{divided_bytes, longest};
use crate::device::{Calls, DeviceDivision, DeviceGpt, Passes, Rooms};
use crate::error::Error;
use crate::kernels::cuda::{Device, Room, View};
use crate::layout::Layout;
use crate::model::Gpt;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::clip::Clip;
use crate::parallel::source::Passing;
use crate::parallel::{
    Batch, Lanes, Memory, Spent, Strategy, Take, Thrift, gather_losses, loss_bytes, out_of_tiles,
    tell_whole,
};
use crate::state::State;
use brigade_comm::Communicator;
use brigade_cuda::DeviceMemory;
use std::time::{Duration, Instant};

/// One rank of DDP, or a process alone, with everything on its device.
pub struct Resident<'a> {
    model: &'a Gpt,
    layout: &'a Layout,
    group: Option<&'a Communicator>,
    /// In front of the memory that its calls are on.
    sums: Sums<'a>,
    pass: Pass<'a>,
    held: Held,
    /// [parameters] in bf16: gradients as they travel, where they do so packed.
    packs: Option<View>,
    optimizer: Optimizer,
    clip: Option<Clip<'a>>,
    losses: Vec<f64>,
    /// Of a step, and of that what does not come from `sums`.
    formula_bytes: u64,
    other_bytes: u64,
    memory: Memory,
}

impl<'a> Resident<'a> {
    /// Bytes of the device that it takes.
    pub(super) fn bytes(layout: &Layout, slots: usize, is_packed: bool, passes: Passes) -> usize {
        let mut room = Room::default();
        Held::take(&mut room, layout, 0..layout.units(), slots, passes.inside);
        is_packed.then(|| room.take(layout.len(), 2));
        Rooms::take(&mut room, layout.config(), passes);
        room.taken()
    }

    /// Of all ranks with other samples the same, of what passes by them. Those who divide the model
    /// are given, and who sums gradients: where devices do, packed or as they are.
    ///
    /// Errors: `Device` for what the driver says; those of calls that the group cannot do, and of
    /// `passing`.
    #[expect(clippy::too_many_arguments, reason = "what a run is made of")]
    pub(super) fn new(
        device: Device,
        model: &'a Gpt,
        division: Option<DeviceDivision<'a>>,
        (group, lanes, mut sums, is_packed): (Option<&'a Communicator>, Lanes, Sums<'a>, bool),
        optimizer: Optimizer,
        passes: Passes,
        thrift: &Thrift,
        mut passing: Passing<'_>,
    ) -> Result<Resident<'a>, Error> {
        let (layout, slots) = (model.layout(), lanes.slots());
        // Hosts who add up pack by themselves.
        let is_packed = is_packed && sums.calls().is_some();
        let bytes = Resident::bytes(layout, slots, is_packed, passes);
        let memory = DeviceMemory::new(device.context(), bytes)?;
        let mut room = Room::at(memory.address());
        let held = Held::take(&mut room, layout, 0..layout.units(), slots, passes.inside);
        let packs = is_packed.then(|| room.take(layout.len(), 2));
        let activations = (bytes - room.taken()) as u64;
        let rooms = Rooms::take(&mut room, layout.config(), passes);
        let units = 0..layout.units();
        let longest = if sums.bytes() > 0 { 4 * longest(layout, units.clone()) } else { 0 };
        let gpt = DeviceGpt::new(device, model, division, passes.heads, rooms.scratch, memory)?;
        let mut pass = Pass::new(gpt, model, rooms.tape, lanes, thrift, longest)?;
        let views = |unit| [held.params(layout, unit), held.grads(layout, unit)];
        if sums.shares_process() {
            pass.rehearse(layout.units(), views)?;
            sums.meet()?;
        }
        pass.begin(layout.units(), views)?;
        held.fill(&mut pass.wire, layout, &mut passing)?;
        let [pinned, arena] = pass.host_bytes();
        let calls = sums.bytes() + pinned + packs.map_or(0, |packs| packs.bytes() as u64);
        let inside = divided_bytes(model, &pass.gpt, passes.keep, units, &lanes)?;
        let clip = Clip::new(&optimizer, model, []);
        let norm = clip.as_ref().map_or(Ok(0), Clip::formula_bytes)?;
        let other_bytes = loss_bytes(group, slots)? + inside + norm;
        Ok(Resident {
            model,
            layout,
            group,
            memory: Memory { calls, activations, arena, ..held.memory() },
            pass,
            held,
            packs,
            optimizer,
            clip,
            losses: vec![0.0; slots],
            formula_bytes: sums.formula_bytes()? + other_bytes,
            other_bytes,
            sums,
        })
    }

    fn forward(&mut self) -> Result<(), Error> {
        let Resident { layout, pass, held, .. } = self;
        (0..layout.units()).try_for_each(|unit| pass.forward(unit, held.params(layout, unit)))
    }

    /// Backward of a slot. After the last one gradients are on their way to the other ranks.
    fn backward(&mut self, slot: usize) -> Result<(), Error> {
        let Resident { layout, pass, held, packs, sums, losses, .. } = self;
        let is_last = slot + 1 == losses.len();
        for unit in (0..layout.units()).rev() {
            let (sum, lane) = (held.grads(layout, unit), held.lane(layout, unit, slot));
            pass.backward(unit, held.params(layout, unit), lane)?;
            if slot > 0 {
                pass.gpt.device.add(sum, lane)?;
            }
            if is_last {
                let travels = packs.map_or(sum, |packs| packs.part(layout.unit(unit)));
                if travels != sum {
                    pass.gpt.device.to_bf16(travels, sum)?;
                }
                sums.sum(unit, travels, &mut pass.wire)?;
            }
        }
        pass.end()?;
        if is_last { sums.flush(&mut pass.wire) } else { Ok(()) }
    }

    /// What is computed next sees the sum of a unit's gradients over all ranks. How long this
    /// waited for them.
    fn take(&mut self, unit: usize) -> Result<Duration, Error> {
        let Resident { layout, pass, held, packs, sums, .. } = self;
        let grads = held.grads(layout, unit);
        match packs.map(|packs| packs.part(layout.unit(unit))) {
            Some(packs) => pass.gpt.device.add_bf16(grads, packs, true).map(|()| Duration::ZERO),
            None => sums.take(unit, grads, &mut pass.wire),
        }
    }

    /// Tell the optimizer the norm of the whole gradient. How long others were waited for.
    fn tell_norm(&mut self, spent: &mut Spent) -> Result<Duration, Error> {
        let Resident { layout, pass, held, optimizer, clip, .. } = self;
        let Some(clip) = clip else { return Ok(Duration::ZERO) };
        let counts = |tensor: usize| clip.counts(tensor);
        let grads = (0..layout.units()).flat_map(|unit| held.counted(layout, unit, counts));
        let mine = pass.gpt.squares(&mut pass.wire, grads)?;
        let (norm, waited) = clip.tell(optimizer, mine)?;
        spent.norm = Some(norm);
        Ok(waited)
    }

    fn look(&mut self, tokens: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), Error> {
        self.pass.send([tokens, targets])?;
        self.forward()?;
        self.pass.take_losses(losses)
    }

    fn step_or_fail(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let mut spent = Spent { loss_scale: 1.0, ..Spent::default() };
        if self.sums.has_changed() {
            self.formula_bytes = self.sums.formula_bytes()? + self.other_bytes;
        }
        let disk = self.pass.disk_use();
        for slot in 0..self.losses.len() {
            self.pass.enter(slot, batch)?;
            self.forward()?;
            self.pass.turn(slot, batch.scale())?;
            self.backward(slot)?;
        }
        let mut waited = Duration::ZERO;
        if self.clip.is_some() {
            waited +=
                (0..self.layout.units()).rev().map(|unit| self.take(unit)).sum::<Result<_, _>>()?;
            waited += self.tell_norm(&mut spent)?;
        }
        for unit in (0..self.layout.units()).rev() {
            if self.clip.is_none() {
                waited += self.take(unit)?;
            }
            let Resident { layout, pass, held, optimizer, .. } = self;
            held.update(&pass.gpt.device, layout, unit, (optimizer, lr))?;
        }
        self.optimizer.steps += 1;
        self.pass.updated()?;
        self.pass.losses(&mut self.losses)?;
        self.pass.add_times(&mut spent)?;
        let begun = Instant::now();
        let sum = gather_losses(self.group, &self.losses)?;
        spent.loss = sum * f64::from(batch.scale());
        spent.exposed = waited + begun.elapsed() + self.pass.gpt.take_waited();
        spent.optimizer = self.pass.update_time()?.saturating_sub(waited);
        spent.disk = self.pass.disk_use().since(disk);
        Ok(spent)
    }
}

impl<'a> Resident<'a> {
    /// Calls of the devices.
    fn calls(&self) -> impl Iterator<Item = &Calls<'a>> {
        self.sums.calls().into_iter().chain(self.pass.gpt.calls())
    }

    /// The others hear of it where this rank goes no further.
    fn seen<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect_err(|error| self.calls().for_each(|calls| calls.abort(error)))
    }
}

impl Strategy for Resident<'_> {
    fn close(&mut self) -> Result<(), Error> {
        Calls::close_all(self.calls())
    }

    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let outcome = self.step_or_fail(batch, lr);
        self.seen(outcome)
    }

    fn gather(&mut self) -> Result<State, Error> {
        let Resident { layout, pass, held, optimizer, .. } = self;
        let mut state = State { steps: optimizer.steps, ..State::room(layout) };
        held.tell(&mut pass.wire, layout, true, &mut |array, first, values| {
            state.put(array, first, values);
            Ok(())
        })?;
        self.model.assemble(state)
    }

    fn tell(&mut self, has_moments: bool, take: &mut Take<'_>) -> Result<(), Error> {
        if self.model.is_divided() {
            return tell_whole(self.gather()?, has_moments, take);
        }
        let take = &mut out_of_tiles(self.layout, take);
        self.held.tell(&mut self.pass.wire, self.layout, has_moments, take)
    }

    fn steps(&self) -> usize {
        self.optimizer.steps
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn sent_bytes(&self) -> u64 {
        let sent = self.group.map_or(0, |group| group.stats().sent_bytes);
        sent + self.model.sent_bytes() - self.calls().map(Calls::meeting_bytes).sum::<u64>()
    }

    fn memory(&self) -> Memory {
        self.memory
    }

    fn disk_formula(&self) -> DiskUse {
        self.pass.disk_formula()
    }

    fn evaluates(&self) -> Option<usize> {
        Some(self.pass.lanes.samples())
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
        let sums = self.sums.describe();
        Some(format!("{}, which has the state too{sums}", self.pass.gpt.describe()))
    }
}
