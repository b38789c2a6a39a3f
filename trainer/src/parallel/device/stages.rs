//! The stages of a pipeline's rank on its device, which computes them, and has and updates their
//! state, whole or in parts, or the host does. Everything is given to the device as the schedule
//! says, ahead of what it computes; the host waits for letters of other ranks and for what comes
//! down, and within a computation only where `waits_inside` says so.

mod clock;
mod divided;
mod hosted;
mod kept;
mod letters;
mod mail;
mod pass;
mod post;
mod rooms;
mod site;

use super::sums::{Hosts, Sums};
use super::{divide, divided_bytes, groups_at_once};
use crate::device::{Calls, DeviceDivision, DeviceGpt, DeviceInputs, Passes, Results, Text, Wire};
use crate::error::Error;
use crate::kernels::cuda::{Device, Room};
use crate::layout::Layout;
use crate::norms::ExactSum;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::pipeline::{Home, Needs, Places, Plan, Span, Stages};
use crate::parallel::source::Passing;
use crate::parallel::{Batch, Lanes, Memory};
use crate::state::State;
use brigade_comm::Op;
use brigade_comm::device::DeviceWindow;
use brigade_cuda::{Context, DeviceMemory, Stream};
use clock::Clock;
use divided::Divided;
use kept::{Common, Kept};
use letters::Letters;
use mail::Mail;
use pass::Pass;
use post::{Direct, Post, Through};
use rooms::{Chunk, Keeper, Part};
pub(super) use site::Site;
use site::choose;
use std::time::{Duration, Instant};

/// One rank's stages, at home on its device.
pub(super) struct DeviceStages<'a> {
    /// In front of the memory that its calls are on.
    common: Common<'a>,
    gpt: DeviceGpt<'a>,
    mail: Mail,
    clock: Clock,
    /// By stage; none where another rank has it.
    chunks: Vec<Option<Chunk<'a>>>,
    lanes: Lanes,
    /// Of a micro-batch.
    text: Text,
    results: Results,
    losses: Vec<f64>,
    /// Whether the host may wait within a computation, for other ranks, or for its device, which
    /// may itself wait for others: then what those may wait for leaves before. Where devices have
    /// calls within it, the host waits as soon as it is far enough ahead of one that waits. Where
    /// only what goes into blocks is waited for, it leaves when the device has the first unit to
    /// compute, for which that is there.
    waits_inside: bool,
    formula_bytes: u64,
    /// All of the device's.
    device_bytes: u64,
}

impl<'a> DeviceStages<'a> {
    /// The stages of `rank`. Collective over all ranks.
    ///
    /// Errors: `Setting` for more stages than units, and if the budget holds neither the stages'
    /// state nor their parameters beside their passes; `Device` for what the driver says; those of
    /// calls, and `Offload`.
    pub(super) fn new(
        site: &Site<'a, '_>,
        (plan, rank): (&Plan, usize),
        needs: &Needs,
    ) -> Result<DeviceStages<'a>, Error> {
        let Site { usage, model, groups, lanes, .. } = *site;
        let (layout, slots) = (model.layout(), lanes.slots());
        let mut part = Part::new(layout, (plan, rank), needs, slots)?;
        part.adds_in_order = site.adds_in_order();
        let device = Device::open(usage.index, usage.inside)?;
        let stream = device.stream();
        let at_once = groups_at_once(model, groups.dp.iter(), groups.pp.as_ref(), &device)?;
        let (passes, calls) = choose(site, &mut part, (at_once, stream))?;
        let (window, memory) = memory(site, &mut part, (device.context(), passes))?;
        let rooms = part.take(&mut Room::at(memory.address()), passes);

        let letter = part.letter(passes);
        let division = divide(model, at_once, &device, passes)?;
        let divided = match (calls, rooms.divided, &groups.dp) {
            (Some(calls), Some(held), Some(dp)) => Some(Divided::new(held, calls, dp, &device)?),
            _ => None,
        };
        // Where the host keeps the state its own calls sum.
        let group = groups.dp.as_ref().filter(|_| part.keeper == Keeper::Device);
        let has_gates = layout.config().experts > 0;
        let hosts = |group| Hosts::plain(model.kernels(), group, part.lens());
        let sums = Sums::open(group, (at_once, has_gates), stream, hosts)?;
        let longest = part.lens().map(|(_, len)| len).max().unwrap_or(0);
        let longest = if sums.bytes() > 0 { 4 * longest } else { 0 };
        let common = Common { layout, sums, divided, wire: Wire::new(stream, longest)? };
        let computes = plan.row(rank).iter().filter(|action| action.kind.computes()).count();
        let keep = |at: usize, state| {
            let place = (at, part.stages.len());
            let (stage, units) = &part.stages[at];
            let live = needs.stages[*stage].live;
            let inputs = site.inputs(place, units.clone(), &device, [live, letter])?;
            Ok((site.keep(place, &device, state)?, inputs))
        };
        let (samples, time) = (lanes.samples(), layout.config().context);
        let mut stages = DeviceStages {
            waits_inside: division.is_some()
                || common.calls().next().is_some()
                || (part.keeper == Keeper::Host && groups.dp.is_some())
                || has_gates,
            formula_bytes: common.sums.formula_bytes()?,
            mail: mail(stream, (plan, rank), window, rooms.letters, letter)?,
            clock: Clock::new(stream, computes)?,
            results: Results::new(device.context(), slots)?,
            chunks: part.chunks(rooms.stages, device.context(), keep)?,
            device_bytes: part.all_bytes(passes) as u64,
            gpt: DeviceGpt::new(device, model, division, passes.heads, rooms.scratch, memory)?,
            text: Text::new(model.extent(samples, time), samples, time),
            losses: vec![0.0; slots],
            common,
            lanes,
        };
        stages.begin()?;
        stages.fill(site)?;
        Ok(stages)
    }

    /// Before the first pass: compute once what a step does, for the sake of the code alone, where
    /// calls of the devices ask for it (`Calls::shares_process`).
    fn begin(&mut self) -> Result<(), Error> {
        let DeviceStages { common, gpt, chunks, .. } = self;
        let divides = gpt.division.as_ref().is_some_and(DeviceDivision::shares_process);
        if !divides && !common.calls().any(Calls::shares_process) {
            return Ok(());
        }
        gpt.hush(true);
        for Chunk { kept, free, .. } in chunks.iter_mut().flatten() {
            let tape = &mut free[0].tape;
            // Any text will do whose tokens there are.
            gpt.device.clear(tape.text)?;
            let views = |unit| kept.views(common, unit);
            kept.units().try_for_each(|unit| gpt.forward(tape, unit, views(unit)[0]))?;
            if kept.units().end == common.layout.units() {
                gpt.loss(tape, 1.0)?;
            }
            kept.units().rev().try_for_each(|unit| {
                let [params, grads] = views(unit);
                gpt.backward(tape, unit, params, grads)
            })?;
        }
        gpt.hush(false);
        common.sums.meet()?;
        common.divided.as_mut().map_or(Ok(()), Divided::meet)?;
        gpt.division.as_mut().map_or(Ok(()), DeviceDivision::meet)
    }

    /// Behind that: have what this rank starts from, and tell what a step sends.
    fn fill(&mut self, site: &Site<'a, '_>) -> Result<(), Error> {
        let DeviceStages { common, gpt, chunks, lanes, formula_bytes, .. } = self;
        let Site { model, groups, thrift, state, .. } = site;
        let (layout, untiled) = (common.layout, Layout::new(*common.layout.config()));
        let data = groups.dp.as_ref();
        let mut passing = Passing::open(&thrift.source, state, (layout, &untiled), data)?;
        for Chunk { kept, .. } in chunks.iter().flatten() {
            kept.fill(common, &mut passing)?;
            *formula_bytes += kept.formula_bytes()?
                + divided_bytes(model, gpt, thrift.keep, kept.units(), lanes)?;
        }
        Ok(())
    }

    /// Calls of the devices.
    fn calls(&self) -> impl Iterator<Item = &Calls<'a>> {
        self.common.calls().chain(self.gpt.calls())
    }
}

/// The window that the pipeline's ranks have for each other's letters, if their devices reach each
/// other and have room for it; and memory for all else.
fn memory(
    site: &Site<'_, '_>,
    part: &mut Part<'_>,
    (context, passes): (&Context, Passes),
) -> Result<(Option<DeviceWindow>, DeviceMemory), Error> {
    if let Some(pp) = site.groups.pp.as_ref().filter(|_| part.is_direct)
        && let Some(window) = pp.device_window(context, part.window_bytes(passes))?
    {
        let memory = DeviceMemory::new(context, part.bytes(passes));
        let mut lacking = [u64::from(memory.is_err())];
        pp.all_reduce(&mut lacking, Op::Max)?;
        if let Ok(memory) = memory
            && lacking == [0]
        {
            return Ok((Some(window), memory));
        }
        window.close()?;
    }
    part.is_direct = false;
    Ok((None, DeviceMemory::new(context, part.bytes(passes))?))
}

/// The mail of a rank, beside this stream.
fn mail(
    compute: &Stream,
    (plan, rank): (&Plan, usize),
    window: Option<DeviceWindow>,
    letters: Letters,
    letter: usize,
) -> Result<Mail, Error> {
    let Plan { schedule, shape } = plan;
    let post = match window {
        Some(window) => {
            let place = (rank, shape, Places::of(schedule, shape));
            Post::Devices(Direct::new(compute, window, place, &letters)?)
        }
        None => Post::Hosts(Through::new(compute, &letters, letter)?),
    };
    Ok(Mail::new(shape, post, letters.local))
}

impl Home for DeviceStages<'_> {
    fn letter(&self) -> usize {
        self.mail.numbers()
    }

    fn pass<'s>(&'s mut self, batch: &'s Batch<'s>) -> Result<Box<dyn Stages + 's>, Error> {
        self.common.divided.as_mut().map_or(Ok(()), Divided::renew)?;
        self.clock.start()?;
        Ok(Box::new(Pass { stages: self, batch }))
    }

    fn measure(&mut self, spans: &mut [Span]) -> Result<Option<Duration>, Error> {
        let begun = Instant::now();
        let Common { divided, .. } = &mut self.common;
        divided.as_mut().map_or(Ok(()), |divided| divided.settle(&self.gpt.device))?;
        // Nothing is waited for where no hosts meet.
        let mut waited =
            if self.calls().any(Calls::meets) { begun.elapsed() } else { Duration::ZERO };
        let stream = self.gpt.device.stream();
        match self.chunks.last().expect("a schedule has stages") {
            Some(_) => {
                self.results.take(stream, &mut self.losses)?;
                let division = self.gpt.division.as_mut();
                division.map_or(Ok(()), |division| division.sum_losses(&mut self.losses))?;
            }
            None => stream.synchronize()?,
        }
        // What the host waited for ranks within computations the device did, too.
        waited += self.gpt.take_waited();
        for Chunk { kept, .. } in self.chunks.iter_mut().flatten() {
            waited += kept.take_waited()[0];
        }
        Ok(Some(waited + self.clock.read(spans)?))
    }

    fn losses(&self) -> &[f64] {
        &self.losses
    }

    fn squares(&mut self, counts: &dyn Fn(usize) -> bool) -> Result<(ExactSum, Duration), Error> {
        let DeviceStages { common, gpt, chunks, .. } = self;
        let all = (ExactSum::ZERO, Duration::ZERO);
        chunks.iter_mut().flatten().try_fold(all, |(sum, waited), Chunk { kept, .. }| {
            let (squares, more) = kept.squares(counts, common, gpt)?;
            Ok((sum.plus(squares), waited + more))
        })
    }

    fn update(
        &mut self,
        stage: usize,
        optimizer: &mut Optimizer,
        lr: f32,
    ) -> Result<[Duration; 2], Error> {
        let DeviceStages { common, gpt, chunks, .. } = self;
        let Chunk { kept, done, .. } = chunks[stage].as_mut().expect("a stage of this rank");
        *done = 0;
        kept.update((optimizer, lr), common, &gpt.device)
    }

    fn gather(&mut self, state: &mut State) -> Result<(), Error> {
        let Common { layout, divided, wire, .. } = &mut self.common;
        let mut chunks = self.chunks.iter_mut().flatten();
        chunks.try_for_each(|chunk| chunk.kept.gather(layout, wire, state))?;
        divided.as_mut().map_or(Ok(()), |divided| divided.gather(wire, state))
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn meeting_bytes(&self) -> u64 {
        self.calls().map(Calls::meeting_bytes).sum()
    }

    fn memory(&self) -> Memory {
        let Common { divided, wire, sums, .. } = &self.common;
        let mut memory = divided.as_ref().map_or(Memory::default(), Divided::memory);
        let mut activations = self.device_bytes - memory.total();
        for Chunk { kept, inputs, .. } in self.chunks.iter().flatten() {
            let of = kept.memory();
            memory = memory.plus(of);
            activations -= if let Kept::Here(_) = kept { of.total() } else { 0 };
            let [pinned, arena] = inputs.as_ref().map_or([0, 0], DeviceInputs::bytes);
            memory.calls += pinned;
            memory.arena += arena;
        }
        let pinned = wire.bytes() + self.mail.bytes() + self.gpt.pinned_bytes();
        let calls = memory.calls + sums.bytes() + pinned;
        Memory { calls, activations, ..memory }
    }

    fn disk_use(&self) -> DiskUse {
        let chunks = self.chunks.iter().flatten();
        chunks.fold(DiskUse::default(), |sum, chunk| sum.plus(chunk.disk(1)[0]))
    }

    fn disk_formula(&self) -> DiskUse {
        let (chunks, slots) = (self.chunks.iter().flatten(), self.lanes.slots());
        chunks.fold(DiskUse::default(), |sum, chunk| sum.plus(chunk.disk(slots)[1]))
    }

    fn device(&self) -> Option<String> {
        let sums = self.common.sums.describe();
        let is_here = |chunk: &Chunk<'_>| matches!(chunk.kept, Kept::Here(_));
        let state = match &self.common.divided {
            Some(divided) => {
                let by = divided.calls().describe();
                format!(
                    "which has this rank's parts of its stages' state too, gradients summed {by}"
                )
            }
            None if self.chunks.iter().flatten().all(is_here) => {
                "which has its stages' state too".to_string()
            }
            None => "which has its stages' parameters too".to_string(),
        };
        Some(format!("{}, {state}{sums}{}", self.gpt.describe(), self.mail.describe()))
    }

    fn close(&mut self) -> Result<(), Error> {
        let ended = Calls::close_all(self.calls());
        // The pipeline's other ranks wait for this one.
        self.mail.close()?;
        ended
    }

    fn seen(&self, error: &Error) {
        self.calls().for_each(|calls| calls.abort(error));
    }
}

impl Drop for DeviceStages<'_> {
    /// What an error or the end of a run has left in the streams is done before its memory goes.
    fn drop(&mut self) {
        // A stream that fails has nothing on its way any more.
        let _ = self.gpt.settle();
        let _ = self.common.wire.settle();
        let _ = self.mail.settle();
        for Chunk { kept, inputs, .. } in self.chunks.iter().flatten() {
            let _ = kept.settle();
            let _ = inputs.as_ref().map(DeviceInputs::settle);
        }
    }
}
