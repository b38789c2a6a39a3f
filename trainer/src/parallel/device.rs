//! Training with a device as what computes.
//!
//! | way | who has parameters, gradients and moments | who updates |
//! |---|---|---|
//! | `Resident` | the device, as do all ranks of DDP | the device |
//! | `Parts` | the device, in parts: ZeRO and FSDP | the device |
//! | `DeviceStages` | of a stage: the device, or devices in parts, or the host | who has it |
//! | `Streamed` | the host, as `Shards` holds them; units cross when needed | the host |
//!
//! The first two are what a run gets that asks for plain AdamW, and fits; the last is for all
//! others, `--offload` and `--ordered` among them, for models larger than `--device-budget`, and
//! for parts that travel as less than devices make of them, or on devices that do not reach each
//! other, or where ranks in several groups share a process, or some of them a device. Pipelines
//! have the third, by the same rules.

mod crossing;
mod held;
mod parts;
mod pass;
mod resident;
mod stages;
mod streamed;
mod sums;

pub(super) use crossing::Crossing;
pub use parts::Parts;
use parts::Share;
pub use resident::Resident;
pub use streamed::Streamed;

use super::formula::call_bytes;
use super::pipeline::{Home, Needs, Pipeline, Plan};
use super::source::Passing;
use super::tensor::{Group, Split};
use super::travel::PackedBy;
use super::{Groups, Lanes, Peers, Sharing, Stage, Strategy, Thrift};
use crate::device::{Calls, DeviceDivision, DeviceGpt, DeviceUse, GridRooms, Passes};
use crate::error::Error;
use crate::kernels::cuda::{self, Device};
use crate::layout::{Config, Layout, joined};
use crate::model::Gpt;
use crate::optim::{Optimizer, Rule};
use crate::precision::Precision;
use crate::report::two_sizes;
use crate::state::State;
use crate::tape::Keep;
use brigade_comm::{Communicator, Op};
use stages::{DeviceStages, Site};
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::sync::OnceLock;
use sums::{Hosts, Sums};

/// This rank's part of a run that a device computes.
///
/// Errors: `Setting` where the least that a pass needs is over the budget; `Device` for what the
/// driver says.
#[expect(clippy::too_many_arguments, reason = "what a run is made of")]
pub fn on_device<'a>(
    usage: DeviceUse,
    model: &'a Gpt,
    peers: Peers<'a>,
    lanes: Lanes,
    sharing: Sharing,
    optimizer: Optimizer,
    thrift: &Thrift,
    state: &State,
) -> Result<Box<dyn Strategy + 'a>, Error> {
    let group = peers.data;
    let (device, state) = (Device::open(usage.index, usage.inside)?, &*model.part(state));
    let is_plain = optimizer.rule() == Rule::Adamw
        && !(sharing.is_ordered && group.is_some())
        && thrift.precision != Precision::F16
        && thrift.offload.is_none();
    let (layout, budget) = (model.layout(), usage.budget);
    let passes = passes(usage.inside, model, &lanes, thrift.keep);
    let fitting =
        |bytes: &dyn Fn(Passes) -> usize| fitting(&passes, budget, bytes).filter(|_| is_plain);
    let slots = lanes.slots();
    let untiled = Layout::new(*layout.config());
    let passing = || Passing::open(&thrift.source, state, (layout, &untiled), group);
    let is_in_parts = sharing.stage > Stage::Ddp && group.is_some();
    let has_gates = layout.config().experts > 0;
    let dividers = model.dividers().map(Group::comm);
    let others = [peers.parts, peers.replicas].into_iter().flatten();
    let groups = groups_at_once(model, others, None, &device)?;
    let (by, stage) = (sharing.travel.packed_by(sharing.is_ordered), sharing.stage);
    let is_packed = by == PackedBy::Devices;
    if let Some(parts) = peers.parts.filter(|_| is_in_parts && by != PackedBy::Hosts) {
        let share = Share { stage, slots, is_packed };
        let bytes = |passes| Parts::bytes(layout, share, passes, parts.size());
        if let Some(passes) = fitting(&bytes)
            && let calls = Calls::new(parts, groups, device.stream(), has_gates)?
            && let Some(calls) = if_all_have(calls, [group, dividers])?
        {
            let others = (divide(model, groups, &device, passes)?, calls, (peers, groups));
            let (share, from) = ((share, lanes), passing()?);
            let held = Parts::new(device, model, others, share, optimizer, passes, thrift, from)?;
            return Ok(Box::new(held));
        }
    }
    let bytes = |passes| Resident::bytes(layout, slots, is_packed && group.is_some(), passes);
    if let Some(passes) = fitting(&bytes).filter(|_| !is_in_parts) {
        let hosts = |group| Hosts::travelling(model.kernels(), group, sharing, layout);
        let at_once = if by == PackedBy::Hosts { 0 } else { groups };
        let sums = Sums::open(group, (at_once, has_gates), device.stream(), hosts)?;
        let division = divide(model, groups, &device, passes)?;
        let share = (group, lanes, sums, is_packed);
        let from = passing()?;
        let held = Resident::new(device, model, division, share, optimizer, passes, thrift, from)?;
        return Ok(Box::new(held));
    }
    let division = divide(model, groups, &device, passes[0])?;
    let (share, room) = ((peers, lanes, sharing), (budget, &passes[..]));
    let streamed = Streamed::new(device, model, division, share, optimizer, thrift, state, room)?;
    Ok(Box::new(streamed))
}

/// Those who divide a model, as these passes meet them. Their devices sum where so many groups
/// may. Collective.
fn divide<'a>(
    model: &'a Gpt,
    groups: u32,
    device: &Device,
    passes: Passes,
) -> Result<Option<DeviceDivision<'a>>, Error> {
    let (dividers, Some(split)) = (model.divider_groups(), passes.split) else { return Ok(None) };
    let Config { context, width, .. } = *model.layout().config();
    let all = passes.samples * context * width;
    let longest = longest(model.layout(), 0..model.layout().units());
    let most = match split {
        Split::Sequence => [all.max(longest), all],
        Split::Experts => [longest, 0],
        Split::Ring => [(2 * passes.rows * width).max(longest), 2 * passes.rows * width],
        Split::Heads => [all, 0],
        // A tile of the stream, and all of them.
        Split::Square | Split::Squares | Split::Cube => {
            [passes.samples * context * passes.heads.width, passes.rows * width]
        }
    };
    let most = [most, [GridRooms::longest(width, passes); 2]];
    DeviceDivision::open(dividers, split, groups, device.stream(), most).map(Some)
}

/// What those who divide a model make this rank's host send in a step through some units: their
/// losses, or all of it where the devices do not reach each other.
fn divided_bytes(
    model: &Gpt,
    gpt: &DeviceGpt<'_>,
    keep: Keep,
    units: Range<usize>,
    lanes: &Lanes,
) -> Result<u64, Error> {
    let Some(division) = &gpt.division else { return Ok(0) };
    let has_head = units.end == model.layout().units();
    let bytes = match division.loss_call() {
        _ if division.is_by_hosts() => model.formula_bytes(keep, units, lanes.samples())?,
        Some((group, call)) if has_head => call_bytes(group, &call)?,
        _ => 0,
    };
    Ok(lanes.slots() as u64 * bytes)
}

/// These calls, if all ranks of these groups have some: where some have the state on the device and
/// others with the host, they would meet in different calls. Collective over all of them.
fn if_all_have<'a>(
    calls: Option<Calls<'a>>,
    groups: [Option<&Communicator>; 2],
) -> Result<Option<Calls<'a>>, Error> {
    let mut lacking = [u64::from(calls.is_none())];
    groups.into_iter().flatten().try_for_each(|it| it.all_reduce(&mut lacking, Op::Max))?;
    match calls {
        Some(calls) if lacking != [0] => calls.close().map(|()| None),
        calls => Ok(calls),
    }
}

/// How many groups of a rank may have calls on its device at once: those that divide this model
/// and these `more`, if each rank has a process of its own, and a device too, or all ranks have one
/// device, on which no call waits. Elsewhere those that wait on devices would take room that
/// another group's need, or hold up its threads, so several groups have none. `others` may be on
/// those devices, too, without calls. Collective over all ranks that are in such groups.
fn groups_at_once<'g>(
    model: &'g Gpt,
    more: impl Iterator<Item = &'g Communicator>,
    others: Option<&Communicator>,
    device: &Device,
) -> Result<u32, Error> {
    let more: Vec<&Communicator> = more.collect();
    let dividers = model.divider_groups().iter().filter(|group| group.size() > 1).count();
    let count = (dividers + more.len()) as u32;
    if count == 0 || (count == 1 && others.is_none()) {
        return Ok(count);
    }
    let mut all: Vec<u8> = device.context().device().uuid.to_vec();
    all.extend(process());
    // Of those who divide the model the first group has all.
    for group in model.dividers().map(Group::comm).into_iter().chain(more).chain(others) {
        let mine = std::mem::take(&mut all);
        all = vec![0; group.size() * mine.len()];
        group.all_gather(&mine, &mut all)?;
    }
    let ranks = all.as_chunks::<24>().0;
    let different = |part: Range<usize>| {
        let parts: HashSet<&[u8]> = ranks.iter().map(|rank| &rank[part.clone()]).collect();
        parts.len()
    };
    let (devices, processes) = (different(0..16), different(16..24));
    let may = processes == ranks.len() && (devices == ranks.len() || devices == 1);
    Ok(if may { count } else { 0 })
}

/// A number of this process: those that the system gives are others' in other containers, too.
fn process() -> [u8; 8] {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    NUMBER.get_or_init(|| RandomState::new().build_hasher().finish()).to_le_bytes()
}

/// How passes can be made, best first: attention in tiles is for what would not fit otherwise.
fn passes(inside: cuda::ProductFormat, model: &Gpt, lanes: &Lanes, keep: Keep) -> Vec<Passes> {
    let split = model.split();
    let extent = model.extent(lanes.samples(), model.layout().config().context);
    let (samples, rows, heads) = (extent.samples, extent.rows.len(), extent.heads);
    let has_tiled_layers = model.layout().tiles() > 0;
    let has_tiles = false;
    let plain = Passes { samples, keep, inside, split, rows, heads, has_tiles, has_tiled_layers };
    // Of scores in a ring there are those of a chunk at a time.
    let tiles = Device::has_tiles(heads) && split != Some(Split::Ring);
    let tiles = tiles.then_some(Passes { has_tiles: true, ..plain });
    std::iter::once(plain).chain(tiles).collect()
}

/// The passes of a rank that computes what others hold.
///
/// Errors: as `on_device`.
pub(super) fn crossing_on_device<'a>(
    usage: DeviceUse,
    model: &'a Gpt,
    lanes: Lanes,
    thrift: &Thrift,
) -> Result<Crossing<'a>, Error> {
    let device = Device::open(usage.index, usage.inside)?;
    let passes = passes(usage.inside, model, &lanes, thrift.keep);
    Crossing::new(device, model, None, lanes, thrift, (usage.budget, &passes))
}

/// This rank's part of a pipeline whose stages are on devices. Collective.
///
/// Errors: as `on_device`.
#[expect(clippy::too_many_arguments, reason = "what a run is made of")]
pub fn pipeline_on_device<'a>(
    usage: DeviceUse,
    model: &'a Gpt,
    groups: &'a Groups,
    lanes: Lanes,
    sharing: Sharing,
    optimizer: Optimizer,
    thrift: &Thrift,
    state: &State,
    plan: Plan,
) -> Result<Box<dyn Strategy + 'a>, Error> {
    let (rule, state) = (optimizer.rule(), &*model.part(state));
    let site = Site { usage, model, groups, lanes, sharing, rule, thrift, state };
    let home = |plan: &Plan, rank: usize, needs: &Needs| -> Result<Box<dyn Home + 'a>, Error> {
        Ok(Box::new(DeviceStages::new(&site, (plan, rank), needs)?))
    };
    Ok(Box::new(Pipeline::with_home(model, groups, sharing, optimizer, plan, home)?))
}

/// Numbers of the longest of these units' parameters.
fn longest(layout: &Layout, units: Range<usize>) -> usize {
    units.map(|unit| layout.unit(unit).len()).max().unwrap_or(0)
}

/// Which parameters of a range decay, and which do not: neighbours that do alike are updated as
/// one.
fn runs(layout: &Layout, range: Range<usize>) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    for tensor in layout.tensors() {
        let here = tensor.range.start.max(range.start)..tensor.range.end.min(range.end);
        match runs.last_mut() {
            _ if here.is_empty() => (),
            Some((run, decays)) if *decays == tensor.decays() => run.end = here.end,
            _ => runs.push((here, tensor.decays())),
        }
    }
    runs
}

/// The parts of a range whose tensors are counted.
fn counted(
    layout: &Layout,
    range: Range<usize>,
    counts: impl Fn(usize) -> bool,
) -> impl Iterator<Item = Range<usize>> {
    let tensors = layout.tensors().iter().enumerate().filter(|(at, _)| counts(*at));
    let parts = tensors
        .map(|(_, tensor)| tensor.range.start.max(range.start)..tensor.range.end.min(range.end));
    joined(parts).into_iter()
}

/// The first of these that a budget holds.
fn fitting(
    passes: &[Passes],
    budget: Option<usize>,
    bytes: &dyn Fn(Passes) -> usize,
) -> Option<Passes> {
    let fits = |passes: &&Passes| budget.is_none_or(|budget| bytes(**passes) <= budget);
    passes.iter().find(fits).copied()
}

/// Refuse what is over the budget, with what would be enough; `what` needs it. `is_tiled`: whether
/// units are tiles, with which nothing is computed twice.
fn over(budget: Option<usize>, needed: usize, what: &str, (keep, is_tiled): (Keep, bool)) -> Error {
    let budget = budget.unwrap_or(usize::MAX);
    let hint = match keep {
        _ if is_tiled => "a smaller --batch, or more --accumulate, needs less",
        Keep::All => "--recompute, a smaller --batch or more --accumulate needs less",
        Keep::Inputs => {
            "--offload-activations cpu, a smaller --batch or more --accumulate needs less"
        }
        Keep::LastInput => "a smaller --batch, or more --accumulate, needs less",
    };
    let [needed, budget] = two_sizes([needed, budget].map(|bytes| bytes as u64));
    let whose = "as given, or else its part of what is free";
    let problem = format!("{what} {needed}, and a rank has {budget} ({whose}): {hint}");
    Error::setting("device-budget", problem)
}
