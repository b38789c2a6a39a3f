//! What a rank's stages are made with, and what of it goes where.

use super::hosted::Hosted;
use super::kept::Kept;
use super::rooms::{Keeper, Part, StateRooms};
use crate::device::{Calls, DeviceInputs, DeviceUse, Passes};
use crate::error::Error;
use crate::kernels::cuda::Device;
use crate::model::Gpt;
use crate::offload::Scope;
use crate::optim::Rule;
use crate::parallel::device::parts::Share;
use crate::parallel::device::{fitting, over, passes};
use crate::parallel::tensor::Group;
use crate::parallel::{Groups, Lanes, Shards, Sharing, Stage, Thrift};
use crate::state::State;
use brigade_comm::{Communicator, Op};
use brigade_cuda::Stream;
use std::ops::Range;

/// What the stages of a rank are made with.
pub(in super::super) struct Site<'a, 's> {
    pub(in super::super) usage: DeviceUse,
    pub(in super::super) model: &'a Gpt,
    pub(in super::super) groups: &'a Groups,
    pub(in super::super) lanes: Lanes,
    pub(in super::super) sharing: Sharing,
    pub(in super::super) rule: Rule,
    pub(in super::super) thrift: &'s Thrift,
    /// Of this rank's part of every tensor, the same on every rank with that part, or absent.
    pub(in super::super) state: &'s State,
}

impl<'a> Site<'a, '_> {
    /// Whether devices may have the state in parts, if they reach each other.
    fn may_divide(&self) -> bool {
        self.sharing.stage > Stage::Ddp && self.groups.dp.is_some() && self.is_plain()
    }

    /// Whether a device can keep a stage's state, if it has room.
    fn is_plain(&self) -> bool {
        let is_plain = self.thrift.offload.is_none() && self.rule == Rule::Adamw;
        is_plain && !self.adds_in_order()
    }

    /// Who may keep the state, the fastest first; where devices `reach` each other, in parts, too.
    fn keepers(&self, reach: bool) -> Vec<Keeper> {
        let Sharing { stage, .. } = self.sharing;
        let device = match &self.groups.dp {
            _ if !self.is_plain() => None,
            Some(dp) if stage > Stage::Ddp => reach.then(|| {
                let share = Share { stage, slots: self.lanes.slots(), is_packed: false };
                Keeper::Devices(share, (dp.rank(), dp.size()))
            }),
            _ => Some(Keeper::Device),
        };
        device.into_iter().chain([Keeper::Host]).collect()
    }

    /// All groups that this rank is in.
    fn axes(&self) -> impl Iterator<Item = &Communicator> {
        let Groups { pp, dp, .. } = self.groups;
        [pp.as_ref(), dp.as_ref(), self.model.dividers().map(Group::comm)].into_iter().flatten()
    }

    /// Whether gradients of all micro-batches of all ranks are added in one order.
    pub(super) fn adds_in_order(&self) -> bool {
        self.sharing.is_ordered && self.groups.dp.is_some()
    }

    /// Keep the state of one of so many stages where there is room for it.
    pub(super) fn keep(
        &self,
        (at, stages): (usize, usize),
        device: &Device,
        rooms: StateRooms,
    ) -> Result<Kept<'a>, Error> {
        let views = match rooms {
            StateRooms::Here(held) => return Ok(Kept::Here(held)),
            StateRooms::Parts(units) => return Ok(Kept::Parts(units)),
            StateRooms::There(views) => views,
        };
        let Site { model, groups, sharing, thrift, .. } = self;
        let (layout, group) = (model.layout(), groups.dp.as_ref());
        let is_each = self.adds_in_order();
        let slots = if is_each { sharing.slots } else { 1 };
        let sharing = Sharing { slots, ..*sharing };
        let units = views.units();
        let mut shards = Shards::new(model.kernels(), group, sharing, layout, units, self.state);
        shards.begin(&thrift.source, layout, group)?;
        shards.narrow(thrift.precision);
        let offload = thrift.offload.as_ref().map(|it| it.part(at, stages));
        shards.suit(self.rule, offload.as_ref())?;
        offload.map_or(Ok(()), |offload| shards.offload(&offload))?;
        let hosted = Hosted::new(views, shards, is_each, layout, device)?;
        Ok(Kept::There(Box::new(hosted)))
    }

    /// Where what goes into the blocks of one of so many stages is kept elsewhere: `len` numbers
    /// for each block of as many micro-batches as may be on their way.
    pub(super) fn inputs(
        &self,
        (at, stages): (usize, usize),
        units: Range<usize>,
        device: &Device,
        [slots, len]: [usize; 2],
    ) -> Result<Option<DeviceInputs>, Error> {
        let Some(offload) = &self.thrift.inputs else { return Ok(None) };
        let (layers, stays) = (self.model.layout().config().layers, DeviceInputs::STAYS);
        let scope = Scope { layers, units, slots, len, stays };
        DeviceInputs::new(device.stream(), &offload.part(at, stages), scope).map(Some)
    }
}

/// How passes are made, and who keeps the state; the calls of the devices, of which so many groups
/// may have some beside this stream, if it is they, in parts. Collective over all ranks.
pub(super) fn choose<'a>(
    site: &Site<'a, '_>,
    part: &mut Part<'_>,
    (at_once, stream): (u32, &Stream),
) -> Result<(Passes, Option<Calls<'a>>), Error> {
    if let Some(dp) = site.groups.dp.as_ref().filter(|_| site.may_divide()) {
        let passes = choose_among(site, part, &site.keepers(true))?;
        let wants = matches!(part.keeper, Keeper::Devices(..));
        let has_gates = site.model.layout().config().experts > 0;
        let calls = if wants { Calls::new(dp, at_once, stream, has_gates)? } else { None };
        let mut lacking = [u64::from(wants && calls.is_none())];
        site.axes().try_for_each(|axis| axis.all_reduce(&mut lacking, Op::Max))?;
        if lacking == [0] {
            return Ok((passes, calls));
        }
        calls.map_or(Ok(()), |calls| calls.close())?;
    }
    Ok((choose_among(site, part, &site.keepers(false))?, None))
}

/// The first of these that has room. Where one rank has room for none, all are refused, so that the
/// first can tell. Letters have places on the device where no rank is worse off for it.
fn choose_among(
    site: &Site<'_, '_>,
    part: &mut Part<'_>,
    keepers: &[Keeper],
) -> Result<Passes, Error> {
    let Site { usage, model, groups, lanes, thrift, .. } = site;
    let ways = passes(usage.inside, model, lanes, thrift.keep);
    let fit = |part: &mut Part<'_>, is_direct: bool| {
        part.is_direct = is_direct;
        keepers.iter().find_map(|keeper| {
            part.keeper = *keeper;
            fitting(&ways, usage.budget, &|way| part.all_bytes(way))
        })
    };
    if let Some(pp) = &groups.pp {
        let [by_hosts, direct] = [false, true].map(|is_direct| {
            let way = fit(part, is_direct);
            (way.map(|way| way.has_tiles), part.keeper)
        });
        let mut objections = [u64::from(direct != by_hosts || direct.0.is_none())];
        pp.all_reduce(&mut objections, Op::Max)?;
        part.is_direct = objections == [0];
    }
    let way = fit(part, part.is_direct);
    let keeper = part.keeper;
    let every = keepers.iter().flat_map(|keeper| ways.iter().map(|way| (*keeper, *way)));
    let bytes = |(keeper, way)| {
        part.keeper = keeper;
        part.all_bytes(way)
    };
    let least = every.map(bytes).min().unwrap_or(0);
    part.keeper = keeper;
    let mut most = [if way.is_some() { 0 } else { least as u64 }];
    site.axes().try_for_each(|axis| axis.all_reduce(&mut most, Op::Max))?;
    way.filter(|_| most == [0]).ok_or_else(|| {
        over(usage.budget, most[0] as usize, "a rank's stages need", (thrift.keep, false))
    })
}
