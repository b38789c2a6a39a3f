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

mod account;
mod begin;
mod fetch;
mod moments;
mod rooms;
mod tell;

use super::cut::Cut;
use super::lane_sums::LaneSums;
use super::sums::lane_sums;
use super::{Packing, Peers, Sharing, Stage};
use crate::error::Error;
use crate::kernels::Kernels;
use crate::layout::Layout;
use crate::offload::{self, Disk};
use crate::optim::{Moments, Optimizer};
use crate::precision::Precision;
use crate::state::State;
use crate::trace::{self, Lane, Span};
use brigade_comm::Communicator;
use brigade_offload::memory::Arena;
use fetch::{Gather, Near, gather_call};
use std::ops::Range;
use std::time::Duration;

struct Unit {
    /// Where it lies in the layout.
    range: Range<usize>,
    cut: Cut,
    /// All parameters; empty while they are sharded, or narrow, and nobody needs them.
    whole: Vec<f32>,
    /// This rank's, where they are sharded; where they are narrow, what this rank updates.
    part: Vec<f32>,
    /// All parameters in 16 bits, where they are narrow and not sharded.
    narrow: Vec<i16>,
    /// An all-gather on its way.
    gather: Option<(Gather, Span)>,
    /// Of what this rank updates.
    moments: Moments,
}

/// Parameters, gradients and moments of some units on one rank.
pub struct Shards<'a> {
    /// Those who divide the state.
    group: Option<&'a Communicator>,
    sharing: Sharing,
    precision: Precision,
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
    /// Memory for narrow parameters on their way, a part and the whole.
    halves: Vec<(Vec<i16>, Vec<i16>)>,
    /// Memory for packed parameters on their way, a part and the whole.
    packs: Vec<(Vec<u8>, Vec<u8>)>,
    /// A second copy of parameters among fewer ranks.
    near: Option<Near<'a>>,
    sums: Box<dyn LaneSums + 'a>,
    /// Of the whole layout.
    tensors: usize,
    /// Whether updates want their norms.
    has_norms: bool,
    /// Whether the sums of this step are as good as there.
    is_complete: bool,
    waited: Duration,
}

impl<'a> Shards<'a> {
    /// This rank's part of `units`, at `state`, which is the same on every rank of the group.
    /// Without peers it is all one process's own.
    pub fn new(
        kernels: &'a dyn Kernels,
        peers: impl Into<Peers<'a>>,
        mut sharing: Sharing,
        layout: &Layout,
        units: Range<usize>,
        state: &State,
    ) -> Shards<'a> {
        let peers = peers.into();
        let group = peers.parts;
        let (rank, ranks) = group.map_or((0, 1), |group| (group.rank(), group.size()));
        if group.is_none() {
            // Whoever is alone has its parameters here.
            sharing.travel.gather = Packing::F32;
        }
        let stage = sharing.stage;
        let is_sharded = stage == Stage::Fsdp && group.is_some();
        let (first, numbers) = (units.start, units.clone());
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
            let narrow = Vec::new();
            Unit { range, cut, whole, part, narrow, gather: None, moments }
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
            halves: Vec::new(),
            packs: fetch::packs(&cuts, sharing),
            near: peers.near.map(|group| Near::new(group, &cuts)),
            precision: Precision::F32,
            sums: lane_sums(kernels, peers, sharing, layout, numbers, &cuts),
            tensors: layout.tensors().len(),
            has_norms: false,
            is_complete: false,
            waited: Duration::ZERO,
            group,
            sharing,
            first,
            units,
        }
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

    /// After the last slot: what is left to be done for the sums of all units is on its way.
    fn complete(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.is_complete, true) {
            (0..self.units.len()).rev().try_for_each(|at| self.sums.complete(at))?;
        }
        Ok(())
    }

    /// After the last slot: move the parameters against the sum of all lanes' gradients. Where they
    /// are whole but updated in parts, each unit goes to everyone while the next is updated.
    ///
    /// False: a gradient has overflowed f16 somewhere, and nothing was moved anywhere.
    pub fn update(&mut self, optimizer: &mut Optimizer, lr: f32) -> Result<bool, Error> {
        self.complete()?;
        self.is_complete = false;
        if self.precision == Precision::F16 && self.has_overflow(optimizer)? {
            self.disk.as_mut().map_or(Ok(()), Disk::restart)?;
            // What is near is as good as before, but steps shall send what formulas say.
            self.forget_near();
            return Ok(false);
        }
        if optimizer.rule().has_norms() {
            self.measure(optimizer)?;
        }
        let (group, stage, first) = (self.group, self.sharing.stage, self.first);
        let Shards { units, sums, disk, precision, .. } = &mut *self;
        offload::pass(disk.as_mut(), optimizer, lr, |pass| {
            for (at, unit) in units.iter_mut().enumerate().rev() {
                let grads = sums.sum(at)?;
                let Unit { cut, whole, part, narrow, gather, moments, .. } = unit;
                let mine = if stage == Stage::Ddp { 0..cut.len() } else { cut.part.clone() };
                let copy = narrow.get_mut(mine.clone()).unwrap_or_default();
                let params = match (group, stage) {
                    _ if *precision != Precision::F32 => &mut part[..],
                    (Some(_), Stage::Fsdp) => part,
                    // Empty if it is in a file.
                    _ => whole.get_mut(mine).unwrap_or_default(),
                };
                pass.update(at, params, precision.narrowed(copy), moments, grads)?;
                let parts = (Stage::Zero1..=Stage::Zero2).contains(&stage);
                let Some(group) = group.filter(|_| parts) else { continue };
                let call = gather_call(cut, *precision);
                let span = trace::span(Lane::Calls, "gather parameters", first + at);
                let call = match precision {
                    Precision::F32 => {
                        Gather::Full(group.start_owned_in_place(call, std::mem::take(whole))?)
                    }
                    _ => Gather::Half(group.start_owned_in_place(call, std::mem::take(narrow))?),
                };
                *gather = Some((call, span));
            }
            Ok(())
        })?;
        (0..self.units.len()).try_for_each(|at| self.land(at))?;
        self.forget_near();
        Ok(true)
    }

    /// How long anybody had to wait for calls since this was asked last.
    pub fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited) + self.sums.take_waited()
    }
}
