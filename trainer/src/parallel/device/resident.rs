//! All of the state on the device, which updates it too. Among ranks, DDP: each unit's gradient is
//! summed over the ranks once it is there, while the units below are still computed: by the devices
//! themselves, or, where those do not reach each other, through pinned memory by the hosts.

use super::pass::Pass;
use super::runs;
use super::wire::Calls;
use crate::device::{DeviceGpt, Passes, Rooms};
use crate::error::Error;
use crate::kernels::cuda::{Device, Inside, Room, View};
use crate::layout::Layout;
use crate::model::Gpt;
use crate::optim::Optimizer;
use crate::parallel::formula::call_bytes;
use crate::parallel::source::Passing;
use crate::parallel::{Batch, Lanes, Memory, Spent, Strategy, Take, gather_losses, loss_bytes};
use crate::state::State;
use crate::trace::{self, Lane};
use brigade_comm::{Call, Communicator, Dtype, Op, Owned};
use brigade_cuda::DeviceMemory;
use brigade_schedule::Collective;
use std::time::{Duration, Instant};

/// One rank of DDP, or a process alone, with everything on its device.
pub struct Resident<'a> {
    layout: &'a Layout,
    group: Option<&'a Communicator>,
    /// Where devices sum gradients. In front of the memory that they are in.
    calls: Option<Calls<'a>>,
    pass: Pass,
    held: Held,
    optimizer: Optimizer,
    /// Gradients of units on the host, where hosts do; else empty.
    sums: Vec<Vec<f32>>,
    losses: Vec<f64>,
    formula_bytes: u64,
    memory: Memory,
}

/// The state, by its place on the device.
struct Held {
    /// [parameters] in f32, and what products read of them: themselves where that is f32 too.
    params: View,
    inside: View,
    /// [parameters] each.
    grads: View,
    mean: View,
    square: View,
    /// A lane's gradient of the longest unit, where there is more than one lane.
    lane: View,
}

impl Held {
    fn take(room: &mut Room, layout: &Layout, slots: usize, inside: Inside) -> Held {
        let longest = (0..layout.units()).map(|unit| layout.unit(unit).len()).max().unwrap_or(0);
        let len = layout.len();
        let params = room.take(len, 4);
        Held {
            params,
            inside: if inside.size() == 4 { params } else { room.take(len, inside.size()) },
            grads: room.take(len, 4),
            mean: room.take(len, 4),
            square: room.take(len, 4),
            lane: room.take(if slots > 1 { longest } else { 0 }, 4),
        }
    }
}

impl<'a> Resident<'a> {
    /// Bytes of the device that it takes.
    pub(super) fn bytes(layout: &Layout, slots: usize, passes: Passes) -> usize {
        let mut room = Room::default();
        Held::take(&mut room, layout, slots, passes.inside);
        Rooms::take(&mut room, layout.config(), passes);
        room.taken()
    }

    /// Of all ranks the same, of what passes by them.
    ///
    /// Errors: `Device` for what the driver says; those of calls that the group cannot do, and of
    /// `passing`.
    pub(super) fn new(
        device: Device,
        model: &'a Gpt,
        group: Option<&'a Communicator>,
        lanes: Lanes,
        optimizer: Optimizer,
        passes: Passes,
        passing: Passing<'_>,
    ) -> Result<Resident<'a>, Error> {
        let layout = model.layout();
        let bytes = Resident::bytes(layout, lanes.slots(), passes);
        let memory = DeviceMemory::new(device.context(), bytes)?;
        let mut room = Room::at(memory.address());
        let held = Held::take(&mut room, layout, lanes.slots(), passes.inside);
        let kept = room.taken();
        let rooms = Rooms::take(&mut room, layout.config(), passes);
        let lens = (0..layout.units()).map(|unit| layout.unit(unit).len());
        let mut formula_bytes = loss_bytes(group, lanes.slots())?;
        let mut calls = match group {
            Some(group) => Calls::new(group, device.stream())?,
            None => None,
        };
        let by_hosts = group.filter(|_| calls.is_none());
        for len in lens.clone() {
            formula_bytes += by_hosts.map_or(Ok(0), |group| call_bytes(group, &all_reduce(len)))?;
        }
        let longest = if by_hosts.is_some() { 4 * lens.clone().max().unwrap_or(0) } else { 0 };
        let slots = lanes.slots();
        let activations = (bytes - kept) as u64;
        let gpt = DeviceGpt::new(device, layout, passes.keep, rooms, memory);
        let mut pass = Pass::new(gpt, lanes, layout.config().context, longest)?;
        if let Some(calls) = &mut calls {
            let views = |unit| [held.inside, held.grads].map(|view| view.part(layout.unit(unit)));
            calls.begin(|| pass.rehearse(layout.units(), views))?;
        }
        fill(&mut pass, &held, layout, passing)?;
        let sums: Vec<Vec<f32>> = match by_hosts {
            Some(_) => lens.map(|len| vec![0.0; len]).collect(),
            None => Vec::new(),
        };
        let bytes_of = |view: View| view.bytes() as u64;
        let copy = if held.inside == held.params { 0 } else { bytes_of(held.inside) };
        let memory = Memory {
            params: bytes_of(held.params) + copy,
            grads: bytes_of(held.grads) + bytes_of(held.lane),
            moments: bytes_of(held.mean) + bytes_of(held.square),
            calls: 4 * sums.iter().map(Vec::len).sum::<usize>() as u64 + pass.wire.bytes(),
            activations,
            arena: 0,
        };
        let losses = vec![0.0; slots];
        Ok(Resident {
            layout,
            group,
            pass,
            held,
            optimizer,
            calls,
            sums,
            losses,
            formula_bytes,
            memory,
        })
    }

    fn forward(pass: &mut Pass, layout: &Layout, inside: View) -> Result<(), Error> {
        (0..layout.units())
            .try_for_each(|unit| pass.gpt.forward(unit, inside.part(layout.unit(unit))))
    }

    /// Backward of a slot. After the last one, gradients are on their way to the other ranks, by
    /// the calls that come back, or are the sum already.
    fn backward(&mut self, slot: usize) -> Result<Vec<Owned<f32>>, Error> {
        let is_shared = self.group.is_some() && slot + 1 == self.pass.lanes.slots();
        let mut calls = Vec::new();
        for unit in (0..self.layout.units()).rev() {
            let Resident { layout, pass, held, .. } = self;
            let range = layout.unit(unit);
            let whole = held.grads.part(range.clone());
            let grads = if slot == 0 { whole } else { held.lane.first(range.len()) };
            pass.gpt.backward(unit, held.inside.part(range), grads)?;
            if slot > 0 {
                pass.gpt.device.add(whole, grads)?;
            }
            if let Some(there) = self.calls.as_mut().filter(|_| is_shared) {
                there.sum(all_reduce(whole.len()), whole)?;
            } else if is_shared {
                if self.pass.wire.is_full() {
                    self.share(&mut calls)?;
                }
                self.pass.wire.fetch(whole)?;
            }
        }
        self.pass.end()?;
        if let Some(there) = self.calls.as_mut().filter(|_| is_shared) {
            there.deliver()?;
            return Ok(calls);
        }
        while is_shared && calls.len() < self.layout.units() {
            self.share(&mut calls)?;
        }
        Ok(calls)
    }

    /// The next gradient that comes down goes to the other ranks; the last unit's comes first.
    fn share(&mut self, calls: &mut Vec<Owned<f32>>) -> Result<(), Error> {
        let group = self.group.expect("there are other ranks");
        let unit = self.layout.units() - 1 - calls.len();
        let mut sum = std::mem::take(&mut self.sums[unit]);
        self.pass.wire.take(&mut sum, 4)?;
        calls.push(group.start_owned_in_place(all_reduce(sum.len()), sum)?);
        Ok(())
    }

    /// Move the parameters of a unit against their gradients.
    fn update(&self, unit: usize, lr: f32) -> Result<(), Error> {
        let Held { params, inside, grads, mean, square, .. } = self.held;
        for (range, decays) in runs(self.layout, self.layout.unit(unit)) {
            let step = self.optimizer.adamw_step(lr, decays);
            let arrays = [params, mean, square, grads].map(|view| view.part(range.clone()));
            let narrow = (inside != params).then(|| inside.part(range));
            self.pass.gpt.device.adamw(&step, arrays, narrow)?;
        }
        Ok(())
    }

    fn step_or_fail(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let mut spent = Spent { loss_scale: 1.0, ..Spent::default() };
        let mut calls = Vec::new();
        for slot in 0..self.losses.len() {
            self.pass.begin(slot, batch)?;
            Resident::forward(&mut self.pass, self.layout, self.held.inside)?;
            self.pass.turn(slot, batch.scale())?;
            calls = self.backward(slot)?;
        }
        let from = Instant::now();
        let mut waited = Duration::ZERO;
        let units = (0..self.layout.units()).rev();
        for (unit, call) in units.clone().zip(calls) {
            let (waiting, begun) =
                (trace::span(Lane::Waiting, "for gradients", unit), Instant::now());
            let (_, sum) = call.wait()?;
            drop(waiting);
            waited += begun.elapsed();
            let to = self.held.grads.part(self.layout.unit(unit));
            self.pass.put(to, &sum)?;
            self.sums[unit] = sum;
            self.update(unit, lr)?;
        }
        if self.sums.is_empty() {
            units.into_iter().try_for_each(|unit| self.update(unit, lr))?;
        }
        self.optimizer.steps += 1;
        self.pass.losses(&mut self.losses)?;
        self.pass.add_times(&mut spent)?;
        let begun = Instant::now();
        let sum = gather_losses(self.group, &self.losses)?;
        spent.loss = sum * f64::from(batch.scale());
        spent.exposed = waited + begun.elapsed();
        spent.optimizer = from.elapsed().saturating_sub(spent.exposed);
        Ok(spent)
    }
}

/// The whole state goes to the device, and what products read, unit by unit.
fn fill(
    pass: &mut Pass,
    held: &Held,
    layout: &Layout,
    mut passing: Passing<'_>,
) -> Result<(), Error> {
    let Held { params, inside, mean, square, .. } = *held;
    for range in (0..layout.units()).map(|unit| layout.unit(unit)) {
        pass.put(mean.part(range.clone()), passing.unit("mean", &range)?)?;
        pass.put(square.part(range.clone()), passing.unit("square", &range)?)?;
        let numbers = passing.unit("params", &range)?;
        pass.put(params.part(range.clone()), numbers)?;
        if inside != params {
            pass.put(inside.part(range), numbers)?;
        }
    }
    Ok(())
}

impl Strategy for Resident<'_> {
    fn close(&mut self) -> Result<(), Error> {
        self.calls.as_ref().map_or(Ok(()), Calls::close)
    }

    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let outcome = self.step_or_fail(batch, lr);
        match &self.calls {
            Some(calls) => calls.seen(outcome),
            None => outcome,
        }
    }

    fn gather(&mut self) -> Result<State, Error> {
        let mut state = State::room(self.layout);
        self.tell(true, &mut |array, first, values| {
            state.put(array, first, values);
            Ok(())
        })?;
        state.steps = self.optimizer.steps;
        Ok(state)
    }

    fn tell(&mut self, has_moments: bool, take: &mut Take<'_>) -> Result<(), Error> {
        let mut room = Vec::new();
        let Held { params, mean, square, .. } = self.held;
        let arrays = [("params", params), ("mean", mean), ("square", square)];
        for range in (0..self.layout.units()).map(|unit| self.layout.unit(unit)) {
            room.resize(range.len(), 0.0);
            for (array, view) in &arrays[..if has_moments { 3 } else { 1 }] {
                self.pass.wire.read(view.part(range.clone()), &mut room)?;
                take(array, range.start, &room)?;
            }
        }
        Ok(())
    }

    fn steps(&self) -> usize {
        self.optimizer.steps
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn sent_bytes(&self) -> u64 {
        let meetings = self.calls.as_ref().map_or(0, Calls::meeting_bytes);
        self.group.map_or(0, |group| group.stats().sent_bytes) - meetings
    }

    fn memory(&self) -> Memory {
        self.memory
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
        let (layout, inside) = (self.layout, self.held.inside);
        self.pass.send([tokens, targets])?;
        Resident::forward(&mut self.pass, layout, inside)?;
        self.pass.take_losses(losses)
    }

    fn device(&self) -> Option<String> {
        let sums =
            self.calls.as_ref().map_or(String::new(), |calls| format!(", {}", calls.describe()));
        Some(format!("{}, which has the state too{sums}", self.pass.gpt.describe()))
    }
}

fn all_reduce(len: usize) -> Call {
    Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, len)
}
