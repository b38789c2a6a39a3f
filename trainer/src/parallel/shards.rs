//! Who holds what of a model's state among ranks that share its data: DDP and the stages of ZeRO
//! (Rajbhandari et al. 2020), of which the third is FSDP.
//!
//! | stage | parameters | gradients | moments | sent per rank and step |
//! |---|---|---|---|---|
//! | `Ddp` | whole | whole | whole | 2 (R − 1)/R · n |
//! | `Zero1` | whole | whole | part | the same |
//! | `Zero2` | whole | part | part | the same |
//! | `Fsdp` | part | part | part | 3 (R − 1)/R · n |
//!
//! A part is 1/R of every unit, cut without padding, so that each unit comes from all ranks at
//! once.
//! The numbers hold for one slot in fast mode; `gradients` tells what ordered mode costs.

mod moments;

use super::formula::call_bytes;
use super::gradients::{Cut, GradientSums, Reduction};
use crate::error::Error;
use crate::kernels::Kernels;
use crate::layout::Layout;
use crate::norms::Sums;
use crate::offload::{self, Disk};
use crate::optim::{Moments, Optimizer};
use crate::state::State;
use crate::trace::{self, Lane, Span};
use brigade_comm::{Call, Communicator, Dtype, Op, Owned};
use brigade_offload::memory::Arena;
use brigade_schedule::Collective;
use std::ops::Range;
use std::time::{Duration, Instant};

/// What ranks that share their data hold in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Nothing: every rank holds everything.
    #[default]
    Ddp,
    /// The optimizer's moments.
    Zero1,
    /// Also gradients.
    Zero2,
    /// Also parameters.
    Fsdp,
}

/// What of the data-parallel way to train a run may choose.
#[derive(Clone, Copy, Debug)]
pub struct Sharing {
    /// What is held in parts.
    pub stage: Stage,
    /// Whether lanes are added in order.
    pub is_ordered: bool,
    /// Lanes that each rank computes in a step.
    pub slots: usize,
}

struct Unit {
    /// Where it lies in the layout.
    range: Range<usize>,
    cut: Cut,
    /// All parameters; empty while they are sharded and nobody needs them.
    whole: Vec<f32>,
    /// This rank's, where they are sharded.
    part: Vec<f32>,
    /// An all-gather on its way.
    gather: Option<(Owned<f32>, Span)>,
    /// Of what this rank updates.
    moments: Moments,
}

/// Parameters, gradients and moments of some units on one rank.
pub struct Shards<'a> {
    group: Option<&'a Communicator>,
    sharing: Sharing,
    /// The first of the units in the model.
    first: usize,
    units: Vec<Unit>,
    /// Where the moments are, and parts of parameters, if not in memory.
    disk: Option<Disk>,
    /// Where the moments are in memory, if that has a budget.
    arena: Option<Arena>,
    /// Memory for whole units, where whole parameters are not kept.
    rooms: Vec<Vec<f32>>,
    /// Memory for parts that come from a file.
    parts: Vec<Vec<f32>>,
    sums: GradientSums<'a>,
    /// Of the whole layout.
    tensors: usize,
    /// Whether updates want their norms.
    has_norms: bool,
    waited: Duration,
}

impl<'a> Shards<'a> {
    /// This rank's part of `units`, at `state`, which is the same on every rank of the group.
    /// Without a group it is all one process's own.
    pub fn new(
        kernels: &'a dyn Kernels,
        group: Option<&'a Communicator>,
        sharing: Sharing,
        layout: &Layout,
        units: Range<usize>,
        state: &State,
    ) -> Shards<'a> {
        let (rank, ranks) = group.map_or((0, 1), |group| (group.rank(), group.size()));
        let Sharing { stage, is_ordered, slots } = sharing;
        let reduction = match (stage, is_ordered) {
            (Stage::Ddp, false) => Reduction::Whole,
            (Stage::Ddp, true) => Reduction::OrderedWhole,
            (Stage::Zero1, false) => Reduction::Parts,
            (_, false) => Reduction::PartsEachSlot,
            (_, true) => Reduction::Ordered,
        };
        let is_sharded = stage == Stage::Fsdp && group.is_some();
        let first = units.start;
        let units = units.map(|unit| {
            let range = layout.unit(unit);
            let cut = Cut::new(range.len(), rank, ranks);
            let shift = |part: Range<usize>| range.start + part.start..range.start + part.end;
            let part = shift(cut.part.clone());
            let updates = if stage == Stage::Ddp { range.clone() } else { part.clone() };
            let held = if state.is_absent() { 0..0 } else { updates.clone() };
            let (mean, square) = (&state.mean[held.clone()], &state.square[held]);
            let params = |range: Range<usize>| match state.is_absent() {
                true => vec![0.0; range.len()],
                false => state.params[range].to_vec(),
            };
            let (whole, part) = match is_sharded {
                true => (Vec::new(), params(part)),
                false => (params(range.clone()), Vec::new()),
            };
            let moments = Moments::new(layout, updates.clone(), mean, square);
            Unit { range, cut, whole, part, gather: None, moments }
        });
        let units: Vec<Unit> = units.collect();
        let cuts: Vec<Cut> = units.iter().map(|unit| unit.cut.clone()).collect();
        let longest = cuts.iter().map(Cut::len).max().unwrap_or(0);
        let rooms = if is_sharded { 2 } else { 0 };
        Shards {
            disk: None,
            arena: None,
            rooms: (0..rooms).map(|_| Vec::with_capacity(longest)).collect(),
            parts: Vec::new(),
            sums: GradientSums::new(kernels, group, reduction, slots, &cuts),
            tensors: layout.tensors().len(),
            has_norms: false,
            waited: Duration::ZERO,
            group,
            sharing,
            first,
            units,
        }
    }

    /// Have room for the parameters of all units at once.
    pub fn widen(&mut self) {
        if !self.rooms.is_empty() {
            let longest = self.units.iter().map(|unit| unit.cut.len()).max().unwrap_or(0);
            self.rooms.resize_with(self.units.len(), || Vec::with_capacity(longest));
        }
    }

    /// Have a unit's parameters on their way if they are not here and there is room for them.
    pub fn prefetch(&mut self, unit: usize) -> Result<(), Error> {
        let Some(at) = unit.checked_sub(self.first).filter(|at| *at < self.units.len()) else {
            return Ok(());
        };
        let unit = &mut self.units[at];
        if !unit.whole.is_empty() || unit.gather.is_some() {
            return Ok(());
        }
        let file = self.disk.as_mut().filter(|disk| disk.has_params());
        let Some(group) = self.group else {
            return file.expect("a process alone has whole parameters in memory").ahead(at);
        };
        let Some(mut room) = self.rooms.pop() else { return Ok(()) };
        room.resize(unit.cut.len(), 0.0);
        if let Some(file) = file {
            unit.part = self.parts.pop().expect("as many parts as rooms");
            file.fetch(at, &mut unit.part)?;
        }
        let call = unit.cut.call(Collective::AllGather);
        let span = trace::span(Lane::Calls, "gather parameters", self.first + at);
        unit.gather = Some((group.start_owned(call, std::mem::take(&mut unit.part), room)?, span));
        Ok(())
    }

    /// A unit's parameters, whole. They stay until `release`.
    pub fn fetch(&mut self, unit: usize) -> Result<&[f32], Error> {
        self.arrive(unit)?;
        Ok(&self.units[unit - self.first].whole)
    }

    /// A unit's parameters, and room for their gradient by this rank's lane in `slot`.
    pub fn open(&mut self, unit: usize, slot: usize) -> Result<(&[f32], &mut [f32]), Error> {
        self.arrive(unit)?;
        let at = unit - self.first;
        Ok((&self.units[at].whole, self.sums.open(at, slot)?))
    }

    /// Room for the gradient of a unit's parameters by this rank's lane in `slot`.
    pub fn open_gradient(&mut self, unit: usize, slot: usize) -> Result<&mut [f32], Error> {
        self.sums.open(unit - self.first, slot)
    }

    /// The gradient of the lane is in its room: have it on its way.
    pub fn close(&mut self, unit: usize, slot: usize) -> Result<(), Error> {
        self.sums.close(unit - self.first, slot)
    }

    /// Nobody needs the unit's parameters for now.
    pub fn release(&mut self, unit: usize) {
        let unit = &mut self.units[unit - self.first];
        let is_in_file = self.disk.as_ref().is_some_and(Disk::has_params);
        if is_in_file || (self.sharing.stage == Stage::Fsdp && self.group.is_some()) {
            self.rooms.push(std::mem::take(&mut unit.whole));
        }
    }

    /// After the last slot: move the parameters against the sum of all lanes' gradients. Where they
    /// are whole but updated in parts, each unit goes to everyone while the next is updated.
    pub fn update(&mut self, optimizer: &mut Optimizer, lr: f32) -> Result<(), Error> {
        for at in (0..self.units.len()).rev() {
            self.sums.complete(at)?;
        }
        if optimizer.rule().has_norms() {
            self.measure(optimizer)?;
        }
        let (group, stage, first) = (self.group, self.sharing.stage, self.first);
        let Shards { units, sums, disk, .. } = &mut *self;
        offload::pass(disk.as_mut(), optimizer, lr, |pass| {
            for (at, unit) in units.iter_mut().enumerate().rev() {
                let grads = sums.sum(at)?;
                let Unit { cut, whole, part, gather, moments, .. } = unit;
                let (Some(group), true) = (group, stage > Stage::Ddp) else {
                    pass.update(at, whole, moments, grads)?;
                    continue;
                };
                if stage == Stage::Fsdp {
                    pass.update(at, part, moments, grads)?;
                    continue;
                }
                pass.update(at, &mut whole[cut.part.clone()], moments, grads)?;
                let call = cut.call(Collective::AllGather);
                let span = trace::span(Lane::Calls, "gather parameters", first + at);
                *gather = Some((group.start_owned_in_place(call, std::mem::take(whole))?, span));
            }
            Ok(())
        })?;
        for at in 0..self.units.len() {
            if self.units[at].gather.is_some() {
                self.arrive(self.first + at)?;
            }
        }
        Ok(())
    }

    /// Put the ranks' parts together, on every rank of the group. Each writes the ranges of its
    /// units in `state`.
    pub fn gather(&mut self, state: &mut State) -> Result<(), Error> {
        for at in 0..self.units.len() {
            self.prefetch(self.first + at)?;
            self.arrive(self.first + at)?;
            let Unit { range, cut, whole, moments, .. } = &self.units[at];
            state.params[range.clone()].copy_from_slice(whole);
            let count = moments.count();
            let moments = [(&moments.mean, &mut state.mean), (&moments.square, &mut state.square)];
            for (number, (mine, all)) in moments.into_iter().enumerate().take(count) {
                let read;
                let mine: &[f32] = match &mut self.disk {
                    Some(disk) => {
                        read = disk.moment(at, number)?;
                        &read
                    }
                    None => mine,
                };
                let all = &mut all[range.clone()];
                match self.group.filter(|_| self.sharing.stage > Stage::Ddp) {
                    Some(group) => group.all_gather_v(mine, all, &cut.counts)?,
                    None => all.copy_from_slice(mine),
                }
            }
            self.release(self.first + at);
        }
        self.disk.as_mut().map_or(Ok(()), Disk::restart)
    }

    /// How long anybody had to wait for calls since this was asked last.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited) + std::mem::take(&mut self.sums.waited)
    }

    /// Bytes that one step makes this rank send, if units go through forward in order, backward in
    /// reverse, and the last is kept from one to the other.
    pub fn formula_bytes(&self) -> Result<u64, Error> {
        self.formula_bytes_with(|at| self.fetches(at))
    }

    /// Bytes that one step makes this rank send, if parameters that are held in parts are gathered
    /// so many `times`, by unit.
    pub fn formula_bytes_with(&self, times: impl Fn(usize) -> u64) -> Result<u64, Error> {
        let mut bytes = self.sums.formula_bytes()?;
        let Some(group) = self.group else { return Ok(bytes) };
        if self.has_norms && self.sharing.stage > Stage::Ddp {
            let numbers = Sums::numbers(self.tensors);
            let call = Call::new(Collective::AllReduce, Dtype::U64, Op::Sum, numbers);
            bytes += call_bytes(group, &call)?;
        }
        for (at, Unit { cut, .. }) in self.units.iter().enumerate() {
            let times = match self.sharing.stage {
                Stage::Ddp => 0,
                Stage::Zero1 | Stage::Zero2 => 1,
                Stage::Fsdp => times(at),
            };
            bytes += times * call_bytes(group, &cut.call(Collective::AllGather))?;
        }
        Ok(bytes)
    }

    /// Bytes of parameters, gradients, moments, memory for calls, and of an arena. Ask when nothing
    /// is on its way: before the first step or after one.
    pub fn bytes(&self) -> [u64; 5] {
        let of =
            |len: &dyn Fn(&Unit) -> usize| 4 * self.units.iter().map(len).sum::<usize>() as u64;
        let (sums, rooms) = self.sums.bytes();
        let rooms_too = self.rooms.iter().chain(&self.parts);
        let params: u64 = rooms_too.map(|room| 4 * room.capacity() as u64).sum();
        let moments = match &self.arena {
            Some(_) => 0,
            None => of(&|unit| unit.moments.mean.len() + unit.moments.square.len()),
        };
        let disk = self.disk.as_ref().map_or(0, Disk::arena_bytes);
        let arena = self.arena.as_ref().map_or(disk, |arena| arena.capacity() as u64);
        [of(&|unit| unit.whole.len() + unit.part.len()), sums, moments, rooms + params, arena]
    }

    /// How often a step needs a unit's parameters that are not kept.
    fn fetches(&self, at: usize) -> u64 {
        let slots = self.sharing.slots as u64;
        match at {
            at if at + 1 == self.units.len() => slots,
            0 => slots + 1,
            _ => 2 * slots,
        }
    }

    /// Have a unit's parameters here.
    fn arrive(&mut self, unit: usize) -> Result<(), Error> {
        self.prefetch(unit)?;
        let at = unit - self.first;
        let Unit { whole, part, gather, .. } = &mut self.units[at];
        let file = self.disk.as_mut().filter(|disk| disk.has_params());
        let Some((call, _span)) = gather.take() else {
            if let (true, None, Some(file)) = (whole.is_empty(), self.group, file) {
                *whole = self.rooms.pop().expect("another unit was not released");
                return file.fetch(at, whole);
            }
            assert!(!whole.is_empty(), "unit {unit} has no room: another was not released");
            return Ok(());
        };
        let _waiting = trace::span(Lane::Waiting, "for parameters", unit);
        let from = Instant::now();
        let (input, output) = call.wait()?;
        self.waited += from.elapsed();
        *whole = output;
        match file {
            Some(_) => self.parts.push(input),
            // In place there is no input, and no part either.
            None => *part = input,
        }
        Ok(())
    }
}
