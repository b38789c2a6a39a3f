//! Pipelines: ranks have different units of the model, and micro-batches go through them one behind
//! the other.
//!
//! A schedule says what each rank does in which order (`action`, `schedule`). It is made by
//! `generate` or read from a file, checked by `shape`, completed by `lower`, carried out in no time
//! by `dry` and counted up by `needs`, all of which have never seen a tensor. `run` carries it out,
//! with messages over `wires` and computations by the stages' `home`: the host's are in `stages`
//! and `pass`. `draw` shows what became of it.

mod action;
mod ask;
mod draw;
mod dry;
mod generate;
mod home;
mod lower;
mod needs;
mod pass;
mod places;
mod run;
mod schedule;
mod shape;
mod stages;
mod vee;
mod wires;

pub use action::{Action, Kind};
pub use draw::draw;
pub use dry::{Span, Timeline};
pub use generate::{Order, generate};
pub(crate) use home::Home;
pub use lower::lower;
pub use needs::{Needs, StageNeeds, require_order};
pub use places::Places;
pub use run::{Stages, run};
pub use schedule::{Cell, Fault, Schedule};
pub use shape::Shape;
pub use wires::Wires;

use super::clip::Clip;
use super::formula::call_bytes;
use super::{Batch, Groups, Lanes, Memory, Sharing, Spent, Strategy, Thrift};
use super::{gather_losses, loss_bytes};
use crate::error::Error;
use crate::model::Gpt;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::state::State;
use brigade_comm::{Call, Communicator, Dtype};
use brigade_schedule::Collective;
use stages::{Chunks, Site};
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

/// A schedule that can be carried out: checked, with its messages, and known to come to an end.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What each rank does.
    pub schedule: Schedule,
    /// What it is about.
    pub shape: Shape,
}

impl Plan {
    /// Complete and check `schedule`.
    ///
    /// Errors: what is wrong with it, and where.
    pub fn new(schedule: &Schedule) -> Result<Plan, Fault> {
        Plan::of_shape(schedule, Shape::of(schedule)?)
    }

    /// The same of a schedule whose shape is known.
    pub(crate) fn of_shape(schedule: &Schedule, shape: Shape) -> Result<Plan, Fault> {
        let schedule = lower(schedule, &shape)?;
        Timeline::predict(&schedule, &shape, |_| 0.0)?;
        Ok(Plan { schedule, shape })
    }

    /// Everything that `rank` does.
    pub fn row(&self, rank: usize) -> Vec<Action> {
        self.schedule.actions(rank).map(|(_, action)| action).collect()
    }
}

/// The units of a stage: as many blocks in each as it goes, with the embedding in front of the
/// first and the head behind the last; or, with fewer blocks than stages, as many units.
///
/// Errors: `Setting` for more stages than units.
pub fn stage_units(layers: usize, stages: usize, stage: usize) -> Result<Range<usize>, Error> {
    let units = layers + 2;
    if stages > units {
        let need = stages - 2;
        let problem = format!("{layers} blocks make no {stages} stages; --layers {need} do");
        return Err(Error::setting("layers", problem));
    }
    let edge = |stage: usize| match stage {
        0 => 0,
        _ if stage == stages => units,
        _ if layers >= stages => 1 + stage * layers / stages,
        _ => stage * units / stages,
    };
    Ok(edge(stage)..edge(stage + 1))
}

/// One rank of a pipeline, or of several side by side.
pub struct Pipeline<'a> {
    model: &'a Gpt,
    groups: &'a Groups,
    plan: Plan,
    row: Vec<Action>,
    /// Its stages.
    mine: Vec<usize>,
    home: Box<dyn Home + 'a>,
    wires: Wires,
    optimizer: Optimizer,
    clip: Option<Clip<'a>>,
    formula_bytes: u64,
    /// When what was computed in the last step, and when that began.
    spans: Vec<Span>,
    begun: SystemTime,
}

impl<'a> Pipeline<'a> {
    /// This rank's part, which the host computes, from `state`, which is the same on every rank.
    /// Collective.
    ///
    /// Errors: `Setting` for more stages than units and for budgets that are too small; those of
    /// calls that a group cannot do, and `Offload` for what a device says.
    #[expect(clippy::too_many_arguments, reason = "what a run may choose")]
    pub fn new(
        model: &'a Gpt,
        groups: &'a Groups,
        lanes: Lanes,
        sharing: Sharing,
        optimizer: Optimizer,
        thrift: &Thrift,
        state: &State,
        plan: Plan,
    ) -> Result<Pipeline<'a>, Error> {
        let (group, rule, state) = (groups.dp.as_ref(), optimizer.rule(), model.part(state));
        let site = Site { model, group, lanes, sharing, rule, thrift, state: &state };
        let home = |plan: &Plan, rank: usize, needs: &Needs| -> Result<Box<dyn Home + 'a>, Error> {
            Ok(Box::new(Chunks::new(&site, plan, rank, needs)?))
        };
        Pipeline::with_home(model, groups, sharing, optimizer, plan, home)
    }

    /// This rank's part, where its stages are at the home that is made for them. Collective.
    pub(crate) fn with_home(
        model: &'a Gpt,
        groups: &'a Groups,
        sharing: Sharing,
        optimizer: Optimizer,
        plan: Plan,
        home: impl FnOnce(&Plan, usize, &Needs) -> Result<Box<dyn Home + 'a>, Error>,
    ) -> Result<Pipeline<'a>, Error> {
        let Plan { schedule, shape } = &plan;
        let rank = groups.pp.as_ref().map_or(0, Communicator::rank);
        let needs = Needs::of(schedule, shape, rank);
        let home = home(&plan, rank, &needs)?;
        let letter = home.letter();
        let wires = Wires::open(groups.pp.as_ref(), schedule, shape, needs.letters, letter)?;
        let row = plan.row(rank);
        let parts = [groups.dp.as_ref().filter(|_| sharing.has_parts()), groups.pp.as_ref()];
        let clip = Clip::new(&optimizer, model, parts);
        let norm = clip.as_ref().map_or(Ok(0), Clip::formula_bytes)?;
        let is_mine = |stage: &usize| shape.rank_of[*stage] == rank;
        let mut pipeline = Pipeline {
            spans: Vec::with_capacity(row.len() + shape.stages()),
            begun: SystemTime::UNIX_EPOCH,
            mine: (0..shape.stages()).filter(is_mine).collect(),
            formula_bytes: (needs.sends * letter * size_of::<f32>()) as u64,
            model,
            groups,
            row,
            home,
            wires,
            optimizer,
            clip,
            plan,
        };
        pipeline.formula_bytes += pipeline.loss_formula()? + pipeline.home.formula_bytes() + norm;
        Ok(pipeline)
    }

    /// The rank of the pipeline that has the last stage, and so computes the loss.
    fn last(&self) -> usize {
        *self.plan.shape.rank_of.last().expect("a schedule has stages")
    }

    fn is_last(&self) -> bool {
        self.groups.pp.as_ref().is_none_or(|group| group.rank() == self.last())
    }

    /// The mean over the batch, the same bits on every rank.
    fn loss(&self, batch: &Batch<'_>) -> Result<f64, Error> {
        let mut sum = [0.0];
        if self.is_last() {
            sum[0] = gather_losses(self.groups.dp.as_ref(), self.home.losses())?;
        }
        if let Some(group) = &self.groups.pp {
            group.broadcast(&mut sum, self.last())?;
        }
        Ok(sum[0] * f64::from(batch.scale()))
    }

    fn loss_formula(&self) -> Result<u64, Error> {
        let root = self.last() as u32;
        let call = Call::moving(Collective::Broadcast { root }, Dtype::F64, 1);
        let told = self.groups.pp.as_ref().map_or(Ok(0), |group| call_bytes(group, &call))?;
        let slots = self.home.losses().len();
        let gathered = if self.is_last() { loss_bytes(self.groups.dp.as_ref(), slots)? } else { 0 };
        Ok(told + gathered)
    }

    /// When each rank did what in the last step, one pipeline after the other. Collective.
    fn measured(&self) -> Result<Timeline, Error> {
        let from = self.begun.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let rows = self.plan.schedule.rows.iter();
        let most = rows.map(|row| 2 * row.len()).max().unwrap_or(0) + self.plan.shape.stages();
        let mut all = vec![from.as_secs_f64()];
        for Span { action: Action { stage, kind, micro }, begin, end } in &self.spans {
            all.extend([*stage as f64, kind.code() as f64, *micro as f64, *begin, *end]);
        }
        let len = 1 + 5 * most;
        all.resize(len, f64::NAN);
        for group in [&self.groups.pp, &self.groups.dp].into_iter().flatten() {
            let mine = std::mem::take(&mut all);
            all = vec![0.0; group.size() * mine.len()];
            group.all_gather(&mine, &mut all)?;
        }
        let first = all.iter().step_by(len).fold(f64::INFINITY, |first, at| first.min(*at));
        let row = |row: &[f64]| {
            let spans = row[1..].as_chunks::<5>().0.iter();
            let spans = spans.map_while(|&[stage, kind, micro, begin, end]| {
                let kind = Kind::of_code(kind as usize).filter(|_| !kind.is_nan())?;
                let action = Action { stage: stage as usize, kind, micro: micro as usize };
                let late = row[0] - first;
                Some(Span { action, begin: late + begin, end: late + end })
            });
            spans.collect()
        };
        Ok(Timeline { rows: all.chunks_exact(len).map(row).collect() })
    }
}

impl Pipeline<'_> {
    fn step_or_fail(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let (from, disk) = (Instant::now(), self.home.disk_use());
        self.begun = SystemTime::now();
        let mut pass = self.home.pass(batch)?;
        run(&self.row, &mut *pass, &mut self.wires, from, &mut self.spans)?;
        drop(pass);
        let waited = std::mem::take(&mut self.wires.waited);
        let idle = self.home.measure(&mut self.spans)?;
        let mut spent = Spent { exposed: idle.unwrap_or(waited), ..Spent::default() };
        for Span { action, begin, end } in &self.spans {
            let time = Duration::from_secs_f64(end - begin);
            match action.kind {
                Kind::Forward => spent.forward += time,
                _ => spent.backward += time,
            }
        }
        let told = Instant::now();
        spent.loss = self.loss(batch)?;
        spent.exposed += told.elapsed();
        if let Some(clip) = &self.clip {
            let begun = Instant::now();
            let (mine, waited) = self.home.squares(&|tensor| clip.counts(tensor))?;
            let (norm, asked) = clip.tell(&mut self.optimizer, mine)?;
            spent.norm = Some(norm);
            spent.exposed += waited + asked;
            spent.optimizer += begun.elapsed().saturating_sub(waited + asked);
        }
        for stage in self.mine.iter().copied() {
            let begin = from.elapsed();
            let [ranks, files] = self.home.update(stage, &mut self.optimizer, lr)?;
            let end = from.elapsed();
            spent.optimizer += (end - begin).saturating_sub(ranks).saturating_sub(files);
            spent.exposed += ranks;
            let action = Action { stage, kind: Kind::ReduceGrad, micro: 0 };
            self.spans.push(Span { action, begin: begin.as_secs_f64(), end: end.as_secs_f64() });
        }
        self.optimizer.steps += 1;
        spent.disk = self.home.disk_use().since(disk);
        Ok(spent)
    }
}

impl Strategy for Pipeline<'_> {
    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let outcome = self.step_or_fail(batch, lr);
        outcome.inspect_err(|error| self.home.seen(error))
    }

    fn gather(&mut self) -> Result<State, Error> {
        let layout = self.model.layout();
        let mut state = State::room(layout);
        self.home.gather(&mut state)?;
        if let Some(group) = &self.groups.pp {
            let shape = &self.plan.shape;
            for (stage, rank) in shape.rank_of.iter().enumerate() {
                let units = stage_units(layout.config().layers, shape.stages(), stage)?;
                let range = layout.span(&units);
                for values in [&mut state.params, &mut state.mean, &mut state.square] {
                    group.broadcast(&mut values[range.clone()], *rank)?;
                }
            }
        }
        state.steps = self.optimizer.steps;
        self.model.assemble(state)
    }

    fn steps(&self) -> usize {
        self.optimizer.steps
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn sent_bytes(&self) -> u64 {
        let Groups { dp, pp, .. } = self.groups;
        let groups = [dp, pp].into_iter().flatten();
        let sent: u64 = groups.map(|group| group.stats().sent_bytes).sum();
        let inside = self.model.sent_bytes();
        sent + self.wires.sent_bytes() + inside - self.home.meeting_bytes()
    }

    fn memory(&self) -> Memory {
        let memory = self.home.memory();
        Memory { calls: memory.calls + self.wires.bytes(), ..memory }
    }

    fn disk_formula(&self) -> DiskUse {
        self.home.disk_formula()
    }

    fn device(&self) -> Option<String> {
        self.home.device()
    }

    fn close(&mut self) -> Result<(), Error> {
        self.home.close()
    }

    fn draw(&mut self) -> Result<Option<String>, Error> {
        let measured = self.measured()?;
        draw(&self.plan, &measured)
            .map(Some)
            .map_err(|fault| Error::setting("draw", fault.to_string()))
    }
}
