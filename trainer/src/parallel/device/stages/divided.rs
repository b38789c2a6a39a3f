//! The state of a rank's stages in parts on the devices of all ranks that have the same stages, as
//! `Parts` holds that of a whole model. Parameters that are kept in parts are whole from where the
//! schedule says so until it lets go of them.

use crate::device::{Calls, Wire};
use crate::error::Error;
use crate::kernels::cuda::{Device, View};
use crate::layout::Layout;
use crate::optim::Optimizer;
use crate::parallel::Memory;
use crate::parallel::device::parts::{Flow, Held};
use crate::parallel::source::Passing;
use crate::state::State;
use brigade_comm::Communicator;
use std::ops::Range;

/// That of all stages of a rank, whose calls share a stream.
pub(super) struct Divided<'a> {
    held: Held,
    flow: Flow<'a>,
    /// Those who divide it.
    group: &'a Communicator,
}

impl<'a> Divided<'a> {
    /// Beside what this device computes.
    pub(super) fn new(
        held: Held,
        calls: Calls<'a>,
        group: &'a Communicator,
        device: &Device,
    ) -> Result<Divided<'a>, Error> {
        Ok(Divided { flow: Flow::new(calls, device.stream(), &held)?, held, group })
    }

    pub(super) fn calls(&self) -> &Calls<'a> {
        self.flow.calls()
    }

    /// Behind a rehearsal: see `Calls::shares_process`.
    pub(super) fn meet(&mut self) -> Result<(), Error> {
        self.flow.calls_mut().meet()
    }

    /// What starts here of these units, one stage's.
    pub(super) fn fill(
        &self,
        units: Range<usize>,
        wire: &mut Wire,
        passing: &mut Passing<'_>,
    ) -> Result<(), Error> {
        self.held.fill(units, wire, passing)
    }

    /// All stages are filled or updated: whatever is computed or gathered next is of that.
    pub(super) fn renew(&mut self) -> Result<(), Error> {
        self.flow.renew()
    }

    /// Behind the last micro-batch: what is computed next sees what became of all gradients, and
    /// touches nothing that a call is still on.
    pub(super) fn settle(&mut self, device: &Device) -> Result<(), Error> {
        while self.flow.settle(&self.held, device)?.is_some() {}
        self.flow.renew()
    }

    /// A unit's parameters and room for its gradient, whatever is there.
    pub(super) fn views(&self, layout: &Layout, unit: usize) -> [View; 2] {
        [self.held.params(unit), self.held.any_lane(unit)].map(|view| of_unit(layout, unit, view))
    }

    /// Have the parameters of a stage on their way, of which this is a unit, until they are `used`.
    pub(super) fn ask(&mut self, unit: usize) -> Result<(), Error> {
        self.flow.ask(&self.held, unit)
    }

    pub(super) fn used(&mut self, unit: usize) -> Result<(), Error> {
        self.flow.used(&self.held, unit)
    }

    /// A unit's parameters, as products read them.
    pub(super) fn params(&mut self, layout: &Layout, unit: usize) -> Result<View, Error> {
        Ok(of_unit(layout, unit, self.flow.params(&self.held, unit)?))
    }

    /// Where backward leaves a unit's gradient, of the micro-batch behind so many, which is the
    /// last or is not.
    pub(super) fn lane(
        &mut self,
        layout: &Layout,
        unit: usize,
        (done, is_last): (usize, bool),
        device: &Device,
    ) -> Result<View, Error> {
        let (lane, _) = self.flow.open(&self.held, device, (unit, done), is_last)?;
        Ok(of_unit(layout, unit, lane))
    }

    /// It is there.
    pub(super) fn close(
        &mut self,
        unit: usize,
        (done, is_last): (usize, bool),
        device: &Device,
    ) -> Result<(), Error> {
        self.flow.close(&self.held, device, (unit, done), is_last)?;
        // Where hosts meet, they shall have given their devices something to compute first.
        if self.calls().meets() { Ok(()) } else { self.flow.flush(&self.held) }
    }

    /// Behind that: this rank's parts of the gradients of a stage, of the tensors that are counted.
    pub(super) fn counted(
        &self,
        units: Range<usize>,
        layout: &Layout,
        counts: impl Fn(usize) -> bool + Copy,
    ) -> impl Iterator<Item = View> {
        units.flat_map(move |unit| self.held.counted(layout, unit, counts))
    }

    /// Behind that: move this rank's parts of a stage against their gradients.
    pub(super) fn update(
        &mut self,
        units: Range<usize>,
        layout: &Layout,
        how: (&Optimizer, f32),
        device: &Device,
    ) -> Result<(), Error> {
        for unit in units.rev() {
            self.held.update(device, layout, unit, how)?;
            self.flow.share(&self.held, unit)?;
        }
        Ok(device.stream().synchronize()?)
    }

    /// The state of all stages goes to its place. Collective over those who divide it.
    pub(super) fn gather(&mut self, wire: &mut Wire, state: &mut State) -> Result<(), Error> {
        self.flow.renew()?;
        self.held.tell(self.group, wire, true, &mut |array, first, values| {
            state.put(array, first, values);
            Ok(())
        })
    }

    /// Bytes by kind, of the device.
    pub(super) fn memory(&self) -> Memory {
        self.held.memory()
    }
}

/// A unit's numbers, without what is left over in its last part.
fn of_unit(layout: &Layout, unit: usize, parts: View) -> View {
    parts.first(layout.unit(unit).len())
}
