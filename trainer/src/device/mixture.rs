//! A mixture of experts in place of a block's perceptron, as `moe` has it, computed by a device.
//!
//! The gate's choices come down to the host, which decides where each row goes, as it must know how
//! many rows each expert multiplies. Rows stay on the device, unless ranks divide the experts: then
//! they go from device to device, or, where these have no messages, through the hosts. How many
//! come to a rank is for gates to decide, so they are in memory of the device's pool, which grows
//! with them.

mod answer;

use super::division::DeviceDivision;
use super::passes::Passes;
use super::wire::Wire;
use crate::error::Error;
use crate::kernels::cuda::{Device, ProductFormat, Room, Routes, View};
use crate::layout::Config;
use crate::model::Gpt;
use crate::moe::{Mixture, Travel};
use crate::parallel::tensor::Group;
use brigade_cuda::{DeviceMemory, Stream};
use std::ops::Range;
use std::time::Duration;

/// What is there once for all mixtures of a model.
pub(crate) struct DeviceMixture<'a> {
    model: &'a Gpt,
    group: Option<&'a Group>,
    shape: Mixture,
    wire: Wire,
    /// Where rows travel: what experts make of them, as long as inputs, and, as long as `hidden`,
    /// gradients.
    beside: Option<(DeviceMemory, [View; 2])>,
}

/// What forward of one mixture keeps for backward. n: rows of the stream, k: choices of each, r:
/// rows that came to this rank's experts, c = width.
pub(crate) struct MixtureRooms {
    /// [n × experts] f32
    probs: View,
    routes: Routes,
    /// [n·k × c] inside: what experts answered, in the order of sending; and what is sent.
    answers: View,
    /// For rows that stay, or for those that came.
    stay: RowRooms,
    came: Option<(DeviceMemory, RowRooms)>,
    travel: Travel,
}

/// Of rows that came, expert by expert, inside.
#[derive(Clone, Copy)]
struct RowRooms {
    /// [r × c]; in backward their gradient takes the place of an expert's rows.
    inputs: View,
    /// [r × 4c], before and after GELU.
    hidden: View,
    active: View,
}

/// What backward of a mixture needs, once.
#[derive(Clone, Copy)]
pub(crate) struct MixtureScratch {
    /// [n·k] f32
    dshares: View,
    /// [n × experts] inside
    dscores: View,
}

impl MixtureRooms {
    pub(super) fn take(room: &mut Room, config: &Config, passes: Passes) -> Option<MixtureRooms> {
        let Config { experts, top, width, .. } = *config;
        let (rows, narrow) = (passes.rows, passes.inside.size());
        let stay = if passes.split.is_some() { 0 } else { rows * top * width };
        (experts > 0).then(|| MixtureRooms {
            routes: Routes {
                chosen: room.take(rows * top, 4),
                shares: room.take(rows * top, 4),
                places: room.take(rows * top, 4),
                choices: room.take(rows * top, 4),
                top,
            },
            probs: room.take(rows * experts, 4),
            answers: room.take(rows * top * width, narrow),
            stay: RowRooms::take(room, stay, passes.inside),
            came: None,
            travel: Travel::default(),
        })
    }

    fn rows(&self) -> RowRooms {
        self.came.as_ref().map_or(self.stay, |(_, rooms)| *rooms)
    }

    /// Have room for `len` = r·c numbers, and some more.
    fn fit(&mut self, len: usize, device: &Device) -> Result<(), Error> {
        if len > self.rows().inputs.len() {
            // What was kept before is another step's: it makes room.
            self.came = None;
            let take = |room: &mut Room| RowRooms::take(room, len + len / 4, device.inside());
            self.came = Some(pooled(device, take)?);
        }
        Ok(())
    }
}

impl RowRooms {
    fn take(room: &mut Room, len: usize, inside: ProductFormat) -> RowRooms {
        let [inputs, hidden, active] =
            [len, 4 * len, 4 * len].map(|len| room.take(len, inside.size()));
        RowRooms { inputs, hidden, active }
    }
}

impl MixtureScratch {
    pub(super) fn take(room: &mut Room, config: &Config, passes: Passes) -> MixtureScratch {
        let Config { experts, top, .. } = *config;
        let (rows, narrow) = (if experts > 0 { passes.rows } else { 0 }, passes.inside.size());
        MixtureScratch {
            dshares: room.take(rows * top, 4),
            dscores: room.take(rows * experts, narrow),
        }
    }
}

impl<'a> DeviceMixture<'a> {
    /// Of this model, beside this stream.
    pub(super) fn new(model: &'a Gpt, compute: &Stream) -> Result<DeviceMixture<'a>, Error> {
        let (group, shape) = model.mixture();
        if group.is_some() {
            // What one step gives back is for the next.
            compute.context().keep_pooled(u64::MAX)?;
        }
        Ok(DeviceMixture { model, group, shape, wire: Wire::new(compute, 0)?, beside: None })
    }

    /// From the gate's choices: where each row goes. Collective over those who divide experts.
    fn route(&mut self, kept: &mut MixtureRooms) -> Result<(), Error> {
        let DeviceMixture { model, group, shape, wire, .. } = self;
        let Routes { chosen, places, choices, .. } = kept.routes;
        let mut numbers = vec![0; chosen.len()];
        wire.read_whole(chosen, &mut numbers)?;
        let experts: Vec<usize> = numbers.iter().map(|&expert| expert as usize).collect();
        kept.travel.plan(*group, shape, &experts)?;
        model.add_routed(Travel::count_bytes(shape));
        for (to, from) in [(places, kept.travel.places()), (choices, kept.travel.choices())] {
            numbers.clear();
            numbers.extend(from.iter().map(|&at| at as u32));
            wire.put_whole(to, &numbers)?;
        }
        Ok(())
    }

    /// What has been sent comes to the experts, in their order, and will go back.
    fn out(
        &mut self,
        division: &mut Option<DeviceDivision<'_>>,
        travel: &Travel,
        [sent, to]: [View; 2],
    ) -> Result<(), Error> {
        let c = self.shape.width;
        if let Some(calls) = division.as_mut().and_then(DeviceDivision::messages) {
            let out = travel.sent().map(|(rank, rows)| (rank, lines(sent, &rows, c)));
            let into = travel.came().map(|(rank, rows)| (rank, lines(to, &rows, c)));
            return calls.trade(out, into);
        }
        self.model.add_routed(travel.row_bytes(&self.shape, self.model.rank()));
        let mut rows = vec![0.0; sent.len()];
        self.wire.read(sent, &mut rows)?;
        self.wire.put(to, &travel.out(self.group, rows, c)?)
    }

    /// What experts have made of it goes back to where it came from.
    fn back(
        &mut self,
        division: &mut Option<DeviceDivision<'_>>,
        travel: &Travel,
        [made, to]: [View; 2],
    ) -> Result<(), Error> {
        let c = self.shape.width;
        if let Some(calls) = division.as_mut().and_then(DeviceDivision::messages) {
            let out = travel.came().map(|(rank, rows)| (rank, lines(made, &rows, c)));
            let into = travel.sent().map(|(rank, rows)| (rank, lines(to, &rows, c)));
            return calls.trade(out, into);
        }
        let mut rows = vec![0.0; made.len()];
        self.wire.read(made, &mut rows)?;
        self.wire.put(to, &travel.back(self.group, rows, c)?)
    }

    /// Where experts leave what they make of `len` numbers, and gradients inside.
    fn beside(&mut self, len: usize, device: &Device) -> Result<[View; 2], Error> {
        if self.beside.as_ref().is_none_or(|(_, [made, _])| made.len() < len) {
            self.beside = None;
            let most = len + len / 4;
            let take = |room: &mut Room| {
                [most, 4 * most].map(|len| room.take(len, device.inside().size()))
            };
            self.beside = Some(pooled(device, take)?);
        }
        let (_, [made, wide]) = self.beside.as_ref().expect("just made");
        Ok([made.first(len), wide.first(4 * len)])
    }

    /// How long the host waited for other ranks since this was asked last.
    pub(super) fn take_waited(&self) -> Duration {
        self.model.take_waited()
    }

    /// Bytes of pinned memory.
    pub(super) fn bytes(&self) -> u64 {
        self.wire.bytes()
    }

    /// Wait for all that is on its way between host and device.
    pub(super) fn settle(&self) -> Result<(), Error> {
        self.wire.settle()
    }
}

/// Rooms in memory of the device's pool.
fn pooled<T>(device: &Device, take: impl Fn(&mut Room) -> T) -> Result<(DeviceMemory, T), Error> {
    let mut room = Room::default();
    take(&mut room);
    let memory = DeviceMemory::pooled(device.stream(), room.taken())?;
    let rooms = take(&mut Room::at(memory.address()));
    Ok((memory, rooms))
}

/// Some rows of what is `width` wide.
fn lines(view: View, rows: &Range<usize>, width: usize) -> View {
    view.part(rows.start * width..rows.end * width)
}
