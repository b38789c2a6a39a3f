//! The state in parts on the devices of ranks that share their data: ZeRO-1, ZeRO-2 and FSDP
//! without the hosts. Each rank's device has what `Held` says of it, gathers a unit's parameters
//! while the unit before is computed, gives each gradient to those who own its parts while the
//! unit below is computed, and updates its own. Where the state is held several times, those who
//! have the same part then add that up, too.

mod flow;
mod held;
mod unit;

use super::divided_bytes;
use super::pass::Pass;
use super::sums::{Hosts, Sums};
use crate::device::{Calls, DeviceDivision, DeviceGpt, Passes, Rooms, Wire};
use crate::error::Error;
use crate::kernels::cuda::{Device, Room, View};
use crate::layout::Layout;
use crate::model::Gpt;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::clip::Clip;
use crate::parallel::source::Passing;
use crate::parallel::{
    Batch, Lanes, Memory, Peers, Spent, Strategy, Take, Thrift, gather_losses, loss_bytes,
    out_of_tiles, tell_whole,
};
use crate::state::State;
use brigade_cuda::DeviceMemory;
pub(super) use flow::Flow;
pub(super) use held::{Held, Share, Wholes};
use std::time::{Duration, Instant};

/// One rank of ZeRO or FSDP, with its parts on its device.
pub struct Parts<'a> {
    model: &'a Gpt,
    layout: &'a Layout,
    peers: Peers<'a>,
    /// In front of the memory that its calls are on.
    flow: Flow<'a>,
    /// Over those who have the same parts.
    sums: Sums<'a>,
    pass: Pass<'a>,
    held: Held,
    optimizer: Optimizer,
    clip: Option<Clip<'a>>,
    losses: Vec<f64>,
    formula_bytes: u64,
    memory: Memory,
}

impl<'a> Parts<'a> {
    /// Bytes of its device that each of so many ranks takes.
    pub(super) fn bytes(layout: &Layout, share: Share, passes: Passes, ranks: usize) -> usize {
        let mut room = Room::default();
        let wholes = Wholes::singly(layout.units());
        Held::take(&mut room, layout, share, passes.inside, (0, ranks), wholes);
        Rooms::take(&mut room, layout.config(), passes);
        room.taken()
    }

    /// This rank's part, of what passes by all of them. `others` are those who divide the model,
    /// calls of those who divide the state, and all with other samples, of whom so many groups may
    /// have calls on devices.
    ///
    /// Errors: `Device` for what the driver says; those of calls that the group cannot do, and of
    /// `passing`.
    #[expect(clippy::too_many_arguments, reason = "what a run is made of")]
    pub(super) fn new(
        device: Device,
        model: &'a Gpt,
        others: (Option<DeviceDivision<'a>>, Calls<'a>, (Peers<'a>, u32)),
        (share, lanes): (Share, Lanes),
        optimizer: Optimizer,
        passes: Passes,
        thrift: &Thrift,
        mut passing: Passing<'_>,
    ) -> Result<Parts<'a>, Error> {
        let (layout, slots) = (model.layout(), lanes.slots());
        let (division, calls, (peers, groups)) = others;
        let parts = peers.parts.expect("those who divide the state");
        let place = (parts.rank(), parts.size());
        let bytes = Parts::bytes(layout, share, passes, parts.size());
        let memory = DeviceMemory::new(device.context(), bytes)?;
        let mut room = Room::at(memory.address());
        let wholes = Wholes::singly(layout.units());
        let held = Held::take(&mut room, layout, share, passes.inside, place, wholes);
        let activations = (bytes - room.taken()) as u64;
        let rooms = Rooms::take(&mut room, layout.config(), passes);
        let mut flow = Flow::new(calls, device.stream(), &held)?;
        let may = (groups, layout.config().experts > 0);
        let hosts = |group| Hosts::plain(model.kernels(), group, held.lens());
        let sums = Sums::open(peers.replicas, may, device.stream(), hosts)?;
        let longest = held.lens().map(|(_, len)| len).max().unwrap_or(0);
        let longest = if sums.bytes() > 0 { 4 * longest } else { 0 };
        let gpt = DeviceGpt::new(device, model, division, passes.heads, rooms.scratch, memory)?;
        let mut pass = Pass::new(gpt, model, rooms.tape, lanes, thrift, longest)?;
        if flow.calls().shares_process() {
            let first = |unit: usize, view: View| view.first(layout.unit(unit).len());
            let views =
                |unit| [held.params(unit), held.any_lane(unit)].map(|view| first(unit, view));
            pass.rehearse(layout.units(), views)?;
            flow.calls_mut().meet()?;
        }
        held.fill(0..layout.units(), &mut pass.wire, &mut passing)?;
        // The first gather is of what has just been sent.
        flow.renew()?;
        let memory = held.memory();
        let [pinned, arena] = pass.host_bytes();
        let calls = memory.calls + pinned + sums.bytes();
        let inside = divided_bytes(model, &pass.gpt, passes.keep, 0..layout.units(), &lanes)?;
        let clip = Clip::new(&optimizer, model, [peers.parts]);
        let norm = clip.as_ref().map_or(Ok(0), Clip::formula_bytes)?;
        let told = loss_bytes(peers.data, slots)? + norm;
        Ok(Parts {
            model,
            layout,
            peers,
            optimizer,
            clip,
            losses: vec![0.0; slots],
            formula_bytes: told + sums.formula_bytes()? + inside,
            memory: Memory { calls, activations, arena, ..memory },
            held,
            flow,
            sums,
            pass,
        })
    }

    fn forward(&mut self) -> Result<(), Error> {
        let Parts { layout, pass, held, flow, .. } = self;
        for unit in 0..layout.units() {
            let params = flow.params(held, unit)?.first(layout.unit(unit).len());
            pass.forward(unit, params)?;
            flow.used(held, unit)?;
            if unit + 1 < layout.units() {
                flow.ask(held, unit + 1)?;
            }
        }
        Ok(())
    }

    /// Backward of a slot: each gradient goes to the owners of its parts behind what is computed
    /// next, and the parameters below come before that.
    fn backward(&mut self, slot: usize) -> Result<(), Error> {
        let Parts { layout, pass, held, flow, sums, losses, .. } = self;
        let is_last = slot + 1 == losses.len();
        // What has come of a unit's gradients goes on to those who have the same parts.
        let mut settled = |unit: usize, wire: &mut Wire| match is_last {
            true => sums.sum(unit, held.grads(unit), wire),
            false => Ok(()),
        };
        for unit in (0..layout.units()).rev() {
            let len = layout.unit(unit).len();
            let params = flow.params(held, unit)?.first(len);
            let (lane, above) = flow.open(held, &pass.gpt.device, (unit, slot), is_last)?;
            above.map_or(Ok(()), |unit| settled(unit, &mut pass.wire))?;
            pass.backward(unit, params, lane.first(len))?;
            flow.used(held, unit)?;
            flow.close(held, &pass.gpt.device, (unit, slot), is_last)?;
            if unit > 0 {
                flow.ask(held, unit - 1)?;
            }
        }
        pass.end()?;
        while let Some(unit) = flow.settle(held, &pass.gpt.device)? {
            settled(unit, &mut pass.wire)?;
        }
        if is_last { sums.flush(&mut pass.wire) } else { Ok(()) }
    }

    /// Move this rank's parts against their gradients. How long this waited for other ranks.
    fn update(&mut self, lr: f32, spent: &mut Spent) -> Result<Duration, Error> {
        let Parts { layout, pass, held, flow, sums, optimizer, clip, .. } = self;
        let (mut waited, units) = (Duration::ZERO, 0..layout.units());
        let mut take = |unit, wire: &mut Wire| sums.take(unit, held.grads(unit), wire);
        if let Some(clip) = clip {
            for unit in units.clone().rev() {
                waited += take(unit, &mut pass.wire)?;
            }
            let counts = |tensor: usize| clip.counts(tensor);
            let grads = units.clone().flat_map(|unit| held.counted(layout, unit, counts));
            let mine = pass.gpt.squares(&mut pass.wire, grads)?;
            let (norm, asked) = clip.tell(optimizer, mine)?;
            (spent.norm, waited) = (Some(norm), waited + asked);
        }
        for unit in units.rev() {
            if clip.is_none() {
                waited += take(unit, &mut pass.wire)?;
            }
            held.update(&pass.gpt.device, layout, unit, (optimizer, lr))?;
            flow.share(held, unit)?;
        }
        flow.renew()?;
        Ok(waited)
    }

    fn step_or_fail(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let mut spent = Spent { loss_scale: 1.0, ..Spent::default() };
        let disk = self.pass.disk_use();
        for slot in 0..self.losses.len() {
            self.pass.enter(slot, batch)?;
            self.forward()?;
            self.pass.turn(slot, batch.scale())?;
            self.backward(slot)?;
        }
        let waited = self.update(lr, &mut spent)?;
        self.optimizer.steps += 1;
        self.pass.updated()?;
        self.pass.losses(&mut self.losses)?;
        self.pass.add_times(&mut spent)?;
        spent.optimizer = self.pass.update_time()?.saturating_sub(waited);
        let begun = Instant::now();
        let sum = gather_losses(self.peers.data, &self.losses)?;
        spent.loss = sum * f64::from(batch.scale());
        spent.exposed = waited + begun.elapsed() + self.pass.gpt.take_waited();
        spent.disk = self.pass.disk_use().since(disk);
        Ok(spent)
    }

    fn look(&mut self, tokens: &[u32], targets: &[u32], losses: &mut [f32]) -> Result<(), Error> {
        self.pass.send([tokens, targets])?;
        self.forward()?;
        self.pass.take_losses(losses)
    }

    /// Hand over this rank's part of every tensor, unit by unit, as the ranks with other samples
    /// have it together.
    fn tell_part(&mut self, has_moments: bool, take: &mut Take<'_>) -> Result<(), Error> {
        let group = self.peers.parts.expect("those who divide the state");
        self.held.tell(group, &mut self.pass.wire, has_moments, take)
    }
}

impl<'a> Parts<'a> {
    /// Calls of the devices.
    fn calls(&self) -> impl Iterator<Item = &Calls<'a>> {
        let others = self.sums.calls().into_iter().chain(self.pass.gpt.calls());
        std::iter::once(self.flow.calls()).chain(others)
    }

    /// The others hear of it where this rank goes no further.
    fn seen<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        outcome.inspect_err(|error| self.calls().for_each(|calls| calls.abort(error)))
    }
}

impl Strategy for Parts<'_> {
    fn close(&mut self) -> Result<(), Error> {
        Calls::close_all(self.calls())
    }

    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let outcome = self.step_or_fail(batch, lr);
        self.seen(outcome)
    }

    fn gather(&mut self) -> Result<State, Error> {
        let mut state = State { steps: self.optimizer.steps, ..State::room(self.layout) };
        self.tell_part(true, &mut |array, first, values| {
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
        self.tell_part(has_moments, take)
    }

    fn steps(&self) -> usize {
        self.optimizer.steps
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn sent_bytes(&self) -> u64 {
        let sent = self.peers.sent_bytes() + self.model.sent_bytes();
        sent - self.calls().map(Calls::meeting_bytes).sum::<u64>()
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
        let device = self.pass.gpt.describe();
        let calls = self.flow.calls().describe();
        let copies = match (self.peers.copies(), self.sums.calls()) {
            (1, _) => String::new(),
            (copies, Some(calls)) => format!(", and of {copies} copies {}", calls.describe()),
            (copies, None) => format!(", and of {copies} copies by the hosts"),
        };
        Some(format!(
            "{device}, which has this rank's parts of the state too, gradients summed \
             {calls}{copies}"
        ))
    }
}
