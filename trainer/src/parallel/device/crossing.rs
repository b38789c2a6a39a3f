//! Parameters that the host has, which go to the device before a unit is computed, and gradients
//! that come back behind it, while the device computes the units around it.
//!
//! The device has room for the parameters of all units, which then cross once a step, or of two.

use super::pass::Pass;
use super::{longest, over};
use crate::device::{DeviceDivision, DeviceGpt, Passes, Rooms};
use crate::error::Error;
use crate::kernels::cuda::{Device, ProductFormat, Room, View};
use crate::layout::Layout;
use crate::model::Gpt;
use crate::parallel::{Batch, Lanes, Spent, Thrift};
use brigade_cuda::{DeviceMemory, Event};

/// One rank's passes, of which nothing but activations stays on its device.
pub(crate) struct Crossing<'a> {
    layout: &'a Layout,
    pub(super) pass: Pass<'a>,
    slots: Vec<Slot>,
    /// Gradients on the device, in turn, in what they cross in: f32, or 16 bits beside it.
    grads: [Gradient; 2],
    bytes: u64,
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
    fn take(room: &mut Room, longest: usize, inside: ProductFormat) -> Gradient {
        let full = room.take(longest, 4);
        let crossing = if inside.size() == 4 { full } else { room.take(longest, inside.size()) };
        Gradient { full, crossing }
    }
}

impl<'a> Crossing<'a> {
    /// With the first of these passes, or the last where the budget asks for it.
    ///
    /// Errors: `Setting` if the budget does not hold a pass and two units, `Device` for what the
    /// driver says.
    pub(super) fn new(
        device: Device,
        model: &'a Gpt,
        division: Option<DeviceDivision<'a>>,
        lanes: Lanes,
        thrift: &Thrift,
        (budget, passes): (Option<usize>, &[Passes]),
    ) -> Result<Crossing<'a>, Error> {
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
        let way = way.ok_or_else(|| {
            over(budget, bytes_of((false, last)), "a pass needs", (keep, layout.tiles() > 0))
        })?;
        let bytes = bytes_of(way);
        let memory = DeviceMemory::new(device.context(), bytes)?;
        let (views, grads, rooms) = plan(way, &mut Room::at(memory.address()));
        let slot = |view| Ok(Slot { view, holds: None, used: Event::new(device.context())? });
        let slots = views.into_iter().map(slot).collect::<Result<Vec<_>, Error>>()?;
        let gpt = DeviceGpt::new(device, model, division, plain.heads, rooms.scratch, memory)?;
        let down_bytes = grads[0].crossing.bytes();
        let mut pass = Pass::new(gpt, model, rooms.tape, lanes, thrift, down_bytes)?;
        let first = |unit: usize, view: View| view.first(layout.unit(unit).len());
        pass.begin(layout.units(), |unit| {
            let params = slots[unit % slots.len()].view;
            [params, grads[unit % 2].full].map(|view| first(unit, view))
        })?;
        Ok(Crossing { layout, pass, slots, grads, bytes: bytes as u64 })
    }

    /// The samples of this rank's lane in `slot` go to the device.
    pub(crate) fn enter(&mut self, slot: usize, batch: &Batch<'_>) -> Result<(), Error> {
        self.pass.enter(slot, batch)
    }

    /// Between forward and backward of a slot: what its loss is multiplied by for its gradient.
    pub(crate) fn turn(&mut self, slot: usize, scale: f32) -> Result<(), Error> {
        self.pass.turn(slot, scale)
    }

    /// Wait for all that was computed: the losses of all slots, and how long the device took.
    pub(crate) fn losses(&mut self, losses: &mut [f64], spent: &mut Spent) -> Result<(), Error> {
        self.pass.losses(losses)?;
        self.pass.add_times(spent)
    }

    /// Forward of a unit, whose parameters are asked for unless they are there since the last
    /// update.
    pub(crate) fn forward<'p>(
        &mut self,
        unit: usize,
        params: impl FnOnce() -> Result<&'p [f32], Error>,
    ) -> Result<(), Error> {
        let (slot, view) = self.params(unit, params)?;
        self.pass.forward(unit, view)?;
        self.used(slot)
    }

    /// Backward of a unit, likewise. Its gradient is on its way down then, in the room of that of
    /// the unit above the one above, which is taken.
    pub(crate) fn backward<'p>(
        &mut self,
        unit: usize,
        params: impl FnOnce() -> Result<&'p [f32], Error>,
    ) -> Result<(), Error> {
        let (slot, view) = self.params(unit, params)?;
        let grads = self.grads[unit % 2];
        let full = grads.full.first(view.len());
        let crossing = grads.crossing.first(view.len());
        self.pass.backward(unit, view, full)?;
        self.used(slot)?;
        if crossing != full {
            self.pass.gpt.device.to_inside(crossing, full)?;
        }
        self.pass.wire.fetch(crossing)?;
        if unit == 0 { self.pass.end() } else { Ok(()) }
    }

    /// The gradient that has been on its way for longest, waited for.
    pub(crate) fn take(&mut self, to: &mut [f32]) -> Result<(), Error> {
        self.pass.wire.take(to, self.grads[0].crossing.size())
    }

    /// The parameters are others from now on.
    pub(crate) fn renew(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.holds = None);
    }

    /// Bytes of the device, pinned, and where what goes into blocks is or passes through.
    pub(crate) fn bytes(&self) -> [u64; 3] {
        let [pinned, inputs] = self.pass.host_bytes();
        [self.bytes, pinned, inputs]
    }

    /// One line.
    pub(crate) fn describe(&self) -> String {
        let (units, all) = (self.slots.len(), self.layout.units());
        let device = self.pass.gpt.describe();
        format!("{device}, parameters of {units} of {all} units at a time")
    }

    /// A unit's parameters, on the device.
    fn params<'p>(
        &mut self,
        unit: usize,
        params: impl FnOnce() -> Result<&'p [f32], Error>,
    ) -> Result<(usize, View), Error> {
        let Crossing { layout, pass, slots, .. } = self;
        let at = unit % slots.len();
        let Slot { view, holds, used } = &mut slots[at];
        let view = view.first(layout.unit(unit).len());
        if *holds != Some(unit) {
            pass.wire.send(view, params()?, used)?;
            *holds = Some(unit);
        }
        Ok((at, view))
    }

    /// What was given to the device so far uses the slot's parameters.
    fn used(&self, slot: usize) -> Result<(), Error> {
        Ok(self.pass.gpt.device.stream().record(&self.slots[slot].used)?)
    }
}

/// Room for parameters: of every unit, or of any two.
fn views(room: &mut Room, layout: &Layout, is_held: bool, inside: ProductFormat) -> Vec<View> {
    let size = inside.size();
    match is_held {
        true => (0..layout.units()).map(|unit| room.take(layout.unit(unit).len(), size)).collect(),
        false => {
            let longest = longest(layout, 0..layout.units());
            (0..2).map(|_| room.take(longest, size)).collect()
        }
    }
}
