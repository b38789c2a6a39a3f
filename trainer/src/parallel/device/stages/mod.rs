//! The stages of a pipeline's rank on its device, which has their state, computes them and updates
//! them. Everything is given to the device as the schedule says, ahead of what it computes; the
//! host waits only for letters of other ranks.

mod clock;
mod mail;
mod pass;
mod rooms;

use super::sums::Sums;
use super::wire::Calls;
use super::{fitting, over, passes};
use crate::device::{DeviceGpt, DeviceUse, Results, Wire};
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
use std::ops::Range;
use std::time::Duration;

/// One rank's stages, at home on its device.
pub(super) struct DeviceStages<'a> {
    layout: &'a Layout,
    /// In front of the memory that its calls are on.
    sums: Sums<'a>,
    gpt: DeviceGpt,
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
        let sums = Sums::open(group, are_apart(groups, &device)?, stream, part.lens())?;
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
            gpt: DeviceGpt::new(device, layout, rooms.scratch, memory),
            losses: vec![0.0; slots],
            targets: tokens.clone(),
            layout,
            sums,
            lanes,
            tokens,
        };
        stages.rehearse()?;
        let untiled = Layout::new(*layout.config());
        let mut passing = Passing::open(&thrift.source, state, (layout, &untiled), group)?;
        for chunk in stages.chunks.iter().flatten() {
            chunk.held.fill(&mut stages.wire, layout, &mut passing)?;
        }
        Ok(stages)
    }

    /// Compute once what a step does, for the sake of the code alone: see `Calls::begin`.
    fn rehearse(&mut self) -> Result<(), Error> {
        let DeviceStages { layout, sums, gpt, chunks, .. } = self;
        sums.begin(|| {
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
            Ok(())
        })
    }
}

/// Whether no two ranks of all pipelines share a device or a process. Where they do, calls that
/// wait on devices would take room there that another group's need, or hold up its threads.
/// Collective.
fn are_apart(groups: &Groups, device: &Device) -> Result<bool, Error> {
    let mut all: Vec<u8> = device.context().device().uuid.to_vec();
    all.extend(std::process::id().to_le_bytes());
    for group in [&groups.pp, &groups.dp].into_iter().flatten() {
        let mine = std::mem::take(&mut all);
        all = vec![0; group.size() * mine.len()];
        group.all_gather(&mine, &mut all)?;
    }
    let ranks = all.as_chunks::<20>().0;
    let are_distinct = |part: Range<usize>| {
        let mut parts: Vec<&[u8]> = ranks.iter().map(|rank| &rank[part.clone()]).collect();
        parts.sort_unstable();
        parts.windows(2).all(|pair| pair[0] != pair[1])
    };
    Ok(are_distinct(0..16) && are_distinct(16..20))
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
        self.sums.meeting_bytes()
    }

    fn memory(&self) -> Memory {
        let held = self.chunks.iter().flatten().map(|chunk| chunk.held.memory());
        let state = held.fold(Memory::default(), Memory::plus);
        let calls = self.sums.bytes() + self.wire.bytes() + self.mail.bytes();
        Memory { calls, activations: self.device_bytes - state.total(), ..state }
    }

    fn device(&self) -> Option<String> {
        let sums = self.sums.calls().map_or("", Calls::describe);
        let comma = if sums.is_empty() { "" } else { ", " };
        Some(format!("{}, which has its stages' state too{comma}{sums}", self.gpt.describe()))
    }

    fn close(&mut self) -> Result<(), Error> {
        self.sums.calls().map_or(Ok(()), Calls::close)
    }
}

impl Drop for DeviceStages<'_> {
    /// What an error or the end of a run has left in the streams is done before its memory goes.
    fn drop(&mut self) {
        // A stream that fails has nothing on its way any more.
        let _ = self.gpt.device.stream().synchronize();
        let _ = self.wire.settle();
        let _ = self.mail.settle();
    }
}
