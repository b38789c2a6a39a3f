//! One rank's passes: text to the device, losses back, and when which part of a step was done.

use crate::device::{DeviceDivision, DeviceGpt, DeviceInputs, DeviceTape, Results, Text, Wire};
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::layout::Config;
use crate::model::Gpt;
use crate::offload::{DiskUse, Scope};
use crate::parallel::{Batch, Lanes, Spent, Thrift};
use brigade_cuda::Event;
use std::time::Duration;

/// What every way to train on a device has.
pub(super) struct Pass<'a> {
    pub(super) gpt: DeviceGpt<'a>,
    tape: DeviceTape,
    pub(super) wire: Wire,
    pub(super) lanes: Lanes,
    results: Results,
    /// The last use of tokens and targets.
    read: Event,
    /// Of the last slot: begun, forward done, backward done; and updated, if the device does so.
    marks: [Event; 4],
    text: Text,
    /// Where what goes into blocks is kept elsewhere; and whether it is, in this pass.
    inputs: Option<DeviceInputs>,
    has_backward: bool,
}

impl<'a> Pass<'a> {
    /// Of this model; what goes into blocks is kept as `thrift` says, and `down_bytes` is the most
    /// that comes down as one.
    pub(super) fn new(
        gpt: DeviceGpt<'a>,
        model: &Gpt,
        tape: DeviceTape,
        lanes: Lanes,
        thrift: &Thrift,
        down_bytes: usize,
    ) -> Result<Pass<'a>, Error> {
        let context = gpt.device.context().clone();
        let mark = || Event::timed(&context);
        let Config { context: time, layers, .. } = *model.layout().config();
        let (samples, len) = (lanes.samples(), gpt.scratch.residual.len());
        let (units, stays) = (0..model.layout().units(), DeviceInputs::STAYS);
        let scope = Scope { layers, units, slots: 1, len, stays };
        let keep = |offload| DeviceInputs::new(gpt.device.stream(), offload, scope);
        Ok(Pass {
            wire: Wire::new(gpt.device.stream(), down_bytes)?.of(gpt.device.inside()),
            results: Results::new(&context, lanes.slots())?,
            read: Event::new(&context)?,
            marks: [mark()?, mark()?, mark()?, mark()?],
            text: Text::new(model.extent(samples, time), samples, time),
            inputs: thrift.inputs.as_ref().map(keep).transpose()?,
            has_backward: false,
            gpt,
            tape,
            lanes,
        })
    }

    /// The samples of this rank's lane in `slot` go to the device.
    pub(super) fn enter(&mut self, slot: usize, batch: &Batch<'_>) -> Result<(), Error> {
        let (corpus, context) = (batch.corpus, batch.context);
        let windows = self.lanes.range(slot);
        let windows = windows.map(|index| corpus.sample(batch.seed, batch.step, index, context));
        self.text.fill(windows);
        self.has_backward = true;
        self.wire.send_text(self.tape.text, &self.text, &self.read)?;
        self.mark(0)
    }

    pub(super) fn forward(&mut self, unit: usize, params: View) -> Result<(), Error> {
        let Pass { gpt, tape, inputs, has_backward, .. } = self;
        let inputs = inputs.as_mut().filter(|_| *has_backward);
        inputs.map_or(Ok(()), |inputs| inputs.leave(0, unit, tape))?;
        gpt.forward(tape, unit, params)
    }

    pub(super) fn backward(&mut self, unit: usize, params: View, grads: View) -> Result<(), Error> {
        let Pass { gpt, tape, inputs, has_backward, .. } = self;
        let Some(inputs) = inputs.as_mut().filter(|_| *has_backward) else {
            return gpt.backward(tape, unit, params, grads);
        };
        inputs.come_back(0, unit)?;
        gpt.backward(tape, unit, params, grads)?;
        inputs.come_next(0, unit, tape)
    }

    /// What files of what goes into blocks have cost so far.
    pub(super) fn disk_use(&self) -> DiskUse {
        self.inputs.as_ref().map_or(DiskUse::default(), |inputs| inputs.disk()[0])
    }

    /// What they cost in a step, by formula.
    pub(super) fn disk_formula(&self) -> DiskUse {
        let slot = self.inputs.as_ref().map_or(DiskUse::default(), |inputs| inputs.disk()[1]);
        slot.times(self.lanes.slots() as u32)
    }

    /// Bytes of the host's memory: pinned, and where what goes into blocks is or passes through.
    pub(super) fn host_bytes(&self) -> [u64; 2] {
        let [pinned, arena] = self.inputs.as_ref().map_or([0, 0], DeviceInputs::bytes);
        [self.wire.bytes() + self.gpt.pinned_bytes() + pinned, arena]
    }

    /// After the forward of the last unit.
    pub(super) fn turn(&mut self, slot: usize, scale: f32) -> Result<(), Error> {
        self.gpt.loss(&self.tape, scale)?;
        let stream = self.gpt.device.stream().clone();
        self.results.fetch(&stream, slot, self.gpt.scratch.loss)?;
        self.mark(1)
    }

    /// After the backward of the first unit.
    pub(super) fn end(&mut self) -> Result<(), Error> {
        self.gpt.device.stream().record(&self.read)?;
        self.mark(2)
    }

    /// After the update, where the device makes it.
    pub(super) fn updated(&self) -> Result<(), Error> {
        self.mark(3)
    }

    /// How long that took since the last backward, after the losses.
    pub(super) fn update_time(&self) -> Result<Duration, Error> {
        Ok(self.marks[3].since(&self.marks[2])?)
    }

    /// Wait for all that was computed, and have the losses of all slots.
    pub(super) fn losses(&mut self, losses: &mut [f64]) -> Result<(), Error> {
        self.results.take(self.gpt.device.stream(), losses)?;
        self.gpt.division.as_mut().map_or(Ok(()), |division| division.sum_losses(losses))
    }

    /// How long the device took for the last slot, after the losses: the slots before took as long.
    pub(super) fn add_times(&self, spent: &mut Spent) -> Result<(), Error> {
        let slots = self.lanes.slots() as u32;
        spent.forward += slots * self.marks[1].since(&self.marks[0])?;
        spent.backward += slots * self.marks[2].since(&self.marks[1])?;
        Ok(())
    }

    /// Compute all that a slot computes, of whatever lies there, for the sake of the code alone:
    /// see `Calls::shares_process`.
    pub(super) fn rehearse(
        &mut self,
        units: usize,
        views: impl Fn(usize) -> [View; 2],
    ) -> Result<(), Error> {
        self.gpt.hush(true);
        // Any text will do whose tokens there are.
        self.gpt.device.clear(self.tape.text)?;
        (0..units).try_for_each(|unit| self.forward(unit, views(unit)[0]))?;
        self.gpt.loss(&self.tape, 1.0)?;
        (0..units).rev().try_for_each(|unit| {
            let [params, grads] = views(unit);
            self.backward(unit, params, grads)
        })?;
        self.gpt.hush(false);
        Ok(())
    }

    /// Before the first pass of a model that ranks divide.
    pub(super) fn begin(
        &mut self,
        units: usize,
        views: impl Fn(usize) -> [View; 2],
    ) -> Result<(), Error> {
        if !self.gpt.division.as_ref().is_some_and(DeviceDivision::shares_process) {
            return Ok(());
        }
        self.rehearse(units, views)?;
        self.gpt.division.as_mut().map_or(Ok(()), DeviceDivision::meet)
    }

    /// Some text goes to the device, to be looked at only. It is no longer than a lane.
    pub(super) fn send(&mut self, text: [&[u32]; 2]) -> Result<(), Error> {
        self.text.put(text);
        self.has_backward = false;
        self.wire.send_text(self.tape.text, &self.text, &self.read)
    }

    /// After its forward: the loss of each of its tokens.
    pub(super) fn take_losses(&mut self, losses: &mut [f32]) -> Result<(), Error> {
        self.gpt.loss(&self.tape, 0.0)?;
        self.gpt.device.stream().record(&self.read)?;
        let Pass { gpt, wire, text, .. } = self;
        let (Some(rows), Some(division)) = (text.parts(), &gpt.division) else {
            return wire.read(gpt.scratch.losses.first(losses.len()), losses);
        };
        let mut mine = vec![0.0; rows.len()];
        wire.read(gpt.scratch.losses, &mut mine)?;
        losses.fill(0.0);
        for (&row, mine) in rows.iter().zip(mine) {
            // What stands behind the text is no loss of it.
            if let Some(loss) = losses.get_mut(row as usize) {
                *loss = mine;
            }
        }
        division.unite(losses)
    }

    fn mark(&self, at: usize) -> Result<(), Error> {
        Ok(self.gpt.device.stream().record(&self.marks[at])?)
    }
}

impl Drop for Pass<'_> {
    /// What an error or the end of a run has left in the streams is done before its memory goes: a
    /// driver that frees some may wait for that, and need not.
    fn drop(&mut self) {
        // A stream that fails has nothing on its way any more.
        let _ = self.gpt.settle();
        let _ = self.wire.settle();
        let _ = self.inputs.as_ref().map(DeviceInputs::settle);
    }
}
