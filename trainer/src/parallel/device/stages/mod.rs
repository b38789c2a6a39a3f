//! The stages of a pipeline's rank on its device, which has their state, computes them and updates
//! them. Everything is given to the device as the schedule says, ahead of what it computes; the
//! host waits only for letters of other ranks.

mod clock;
mod mail;
mod pass;
mod rooms;

use super::sums::Sums;
use super::{are_apart, divide, divided_bytes, fitting, over, passes};
use crate::device::{Calls, DeviceDivision, DeviceGpt, DeviceUse, Results, Wire};
use crate::error::Error;
use crate::kernels::cuda::{Device, Room};
use crate::layout::Layout;
use crate::model::Gpt;
use crate::optim::Optimizer;
use crate::parallel::pipeline::{Home, Needs, Plan, Span, Stages};
use crate::parallel::source::Passing;
use crate::parallel::{Batch, Groups, Lanes, Memory, Thrift};
use crate::state::State;
use brigade_cuda::DeviceMemory;
use clock::Clock;
use mail::Mail;
use pass::Pass;
use rooms::{Chunk, Part};
use std::time::Duration;

/// One rank's stages, at home on its device.
pub(super) struct DeviceStages<'a> {
    layout: &'a Layout,
    /// In front of the memory that its calls are on.
    sums: Sums<'a>,
    gpt: DeviceGpt<'a>,
    /// For state, text, and gradients that the hosts sum.
    wire: Wire,
    mail: Mail,
    clock: Clock,
    /// By stage; none where another rank has it.
    chunks: Vec<Option<Chunk>>,
    lanes: Lanes,
    /// [samples of a micro-batch × context], and the byte after each.
    tokens: Vec<u32>,
    targets: Vec<u32>,
    results: Results,
    losses: Vec<f64>,
    formula_bytes: u64,
    /// All of the device's.
    device_bytes: u64,
}

impl<'a> DeviceStages<'a> {
    /// The stages of `rank`, from `state`, which is the same on every rank, or a source of it.
    /// Collective over all ranks.
    ///
    /// Errors: `Setting` for more stages than units, and if the budget does not hold the stages'
    /// state and passes; `Device` for what the driver says; those of calls.
    #[expect(clippy::too_many_arguments, reason = "what a run is made of")]
    pub(super) fn new(
        usage: DeviceUse,
        model: &'a Gpt,
        groups: &'a Groups,
        lanes: Lanes,
        thrift: &Thrift,
        state: &State,
        (plan, rank): (&Plan, usize),
        needs: &Needs,
    ) -> Result<DeviceStages<'a>, Error> {
        let (layout, slots, group) = (model.layout(), lanes.slots(), groups.dp.as_ref());
        let state = &*model.part(state);
        let part = Part::new(layout, (plan, rank), needs, slots)?;
        let device = Device::open(usage.index, usage.inside)?;
        let ways = passes(usage.inside, layout, &lanes, thrift.keep);
        let passes = fitting(&ways, usage.budget, &|way| part.bytes(way)).ok_or_else(|| {
            let least = ways.iter().map(|way| part.bytes(*way)).min().unwrap_or(0);
            over(usage.budget, least, "a rank's stages need", thrift.keep)
        })?;
        let memory = DeviceMemory::new(device.context(), part.bytes(passes))?;
        let rooms = part.take(&mut Room::at(memory.address()), passes);

        let (stream, letter) = (device.stream(), part.letter(passes));
        let others: Vec<_> = [&groups.pp, &groups.dp].into_iter().flatten().collect();
        let division = divide(model, &others, &device, passes)?;
        let is_alone = division.is_none() && are_apart(&others, &device)?;
        let sums = Sums::open(group, is_alone, stream, part.lens())?;
        let longest = if sums.bytes() > 0 { 4 * part.lens().max().unwrap_or(0) } else { 0 };
        let computes = plan.row(rank).iter().filter(|action| action.kind.computes()).count();
        let tokens = vec![0; lanes.samples() * layout.config().context];
        let mut stages = DeviceStages {
            formula_bytes: sums.formula_bytes(part.lens())?,
            wire: Wire::new(stream, longest)?,
            mail: Mail::new(stream, &plan.shape, rooms.letters, letter)?,
            clock: Clock::new(stream, computes)?,
            results: Results::new(device.context(), slots)?,
            chunks: part.chunks(rooms.stages, device.context())?,
            device_bytes: memory.bytes() as u64,
            gpt: DeviceGpt::new(device, layout, division, rooms.scratch, memory),
            losses: vec![0.0; slots],
            targets: tokens.clone(),
            layout,
            sums,
            lanes,
            tokens,
        };
        stages.begin()?;
        let untiled = Layout::new(*layout.config());
        let mut passing = Passing::open(&thrift.source, state, (layout, &untiled), group)?;
        for Chunk { held, .. } in stages.chunks.iter().flatten() {
            held.fill(&mut stages.wire, layout, &mut passing)?;
            let units = held.units.clone();
            stages.formula_bytes +=
                divided_bytes(model, &stages.gpt, thrift.keep, units, &stages.lanes)?;
        }
        Ok(stages)
    }

    /// Before the first pass: compute once what a step does, for the sake of the code alone, where
    /// calls of the devices ask for it (`Calls::shares_process`).
    fn begin(&mut self) -> Result<(), Error> {
        let DeviceStages { layout, sums, gpt, chunks, .. } = self;
        let divides = gpt.division.as_ref().is_some_and(DeviceDivision::shares_process);
        if !divides && !sums.shares_process() {
            return Ok(());
        }
        gpt.hush(true);
        for Chunk { held, free, .. } in chunks.iter_mut().flatten() {
            let tape = &mut free[0].tape;
            // Any text will do whose tokens there are.
            gpt.device.clear(tape.text)?;
            for unit in held.units.clone() {
                gpt.forward(tape, unit, held.params(layout, unit))?;
            }
            if held.units.end == layout.units() {
                gpt.loss(tape, 1.0)?;
            }
            for unit in held.units.clone().rev() {
                let grads = held.grads(layout, unit);
                gpt.backward(tape, unit, held.params(layout, unit), grads)?;
            }
        }
        gpt.hush(false);
        sums.meet()?;
        gpt.division.as_mut().map_or(Ok(()), DeviceDivision::meet)
    }

    /// Calls of the devices, of which a run has those of one group at most.
    fn calls(&self) -> Option<&Calls<'a>> {
        self.sums.calls().or(self.gpt.calls())
    }
}

impl Home for DeviceStages<'_> {
    fn letter(&self) -> usize {
        self.gpt.scratch.residual.len()
    }

    fn pass<'s>(&'s mut self, batch: &'s Batch<'s>) -> Result<Box<dyn Stages + 's>, Error> {
        self.clock.start()?;
        Ok(Box::new(Pass { stages: self, batch }))
    }

    fn measure(&mut self, spans: &mut [Span]) -> Result<Option<Duration>, Error> {
        let stream = self.gpt.device.stream();
        match self.chunks.last().expect("a schedule has stages") {
            Some(_) => self.results.take(stream, &mut self.losses)?,
            None => stream.synchronize()?,
        }
        self.clock.read(spans).map(Some)
    }

    fn losses(&self) -> &[f64] {
        &self.losses
    }

    fn update(
        &mut self,
        stage: usize,
        optimizer: &mut Optimizer,
        lr: f32,
    ) -> Result<[Duration; 2], Error> {
        let DeviceStages { layout, sums, gpt, wire, chunks, .. } = self;
        let Chunk { held, done, .. } = chunks[stage].as_mut().expect("a stage of this rank");
        let mut waited = Duration::ZERO;
        sums.flush(wire)?;
        for unit in held.units.clone().rev() {
            waited += sums.take(unit, held.grads(layout, unit), wire)?;
            held.update(&gpt.device, layout, unit, (optimizer, lr))?;
        }
        gpt.device.stream().synchronize()?;
        *done = 0;
        Ok([waited, Duration::ZERO])
    }

    fn gather(&mut self, state: &mut State) -> Result<(), Error> {
        let DeviceStages { layout, wire, chunks, .. } = self;
        chunks.iter().flatten().try_for_each(|chunk| {
            chunk.held.tell(wire, layout, true, &mut |array, first, values| {
                state.put(array, first, values);
                Ok(())
            })
        })
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn meeting_bytes(&self) -> u64 {
        self.calls().map_or(0, Calls::meeting_bytes)
    }

    fn memory(&self) -> Memory {
        let held = self.chunks.iter().flatten().map(|chunk| chunk.held.memory());
        let state = held.fold(Memory::default(), Memory::plus);
        let pinned = self.wire.bytes() + self.mail.bytes() + self.gpt.pinned_bytes();
        let calls = self.sums.bytes() + pinned;
        Memory { calls, activations: self.device_bytes - state.total(), ..state }
    }

    fn device(&self) -> Option<String> {
        let sums = self.sums.describe();
        Some(format!("{}, which has its stages' state too{sums}", self.gpt.describe()))
    }

    fn close(&mut self) -> Result<(), Error> {
        self.calls().map_or(Ok(()), Calls::close)
    }

    fn seen(&self, error: &Error) {
        if let Some(calls) = self.calls() {
            calls.abort(error);
        }
    }
}

impl Drop for DeviceStages<'_> {
    /// What an error or the end of a run has left in the streams is done before its memory goes.
    fn drop(&mut self) {
        // A stream that fails has nothing on its way any more.
        let _ = self.gpt.settle();
        let _ = self.wire.settle();
        let _ = self.mail.settle();
    }
}
