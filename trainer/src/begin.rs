//! From settings to a run that may take its first step: text, model, state, strategy, a table.

use crate::args::Args;
use crate::checkpoint::{self, Course, Header, Written, departure};
use crate::data::Corpus;
use crate::error::Error;
use crate::kernels::Cpu;
use crate::layout::Layout;
use crate::model::Gpt;
use crate::offload::{DiskUse, Kept, Offload, Origin};
use crate::optim::Optimizer;
use crate::parallel::device::{on_device, pipeline_on_device};
use crate::parallel::pipeline::Pipeline;
use crate::parallel::tensor::Split;
use crate::parallel::{
    Axis, DataParallel, Groups, Memory, Sharing, Source, Strategy, Thrift, Way, Ways,
};
use crate::precision::LossScale;
use crate::records::Records;
use crate::report::{Report, grouped, size};
use crate::run::Run;
use crate::state::State;
use crate::tape::Keep;
use brigade_comm::{Communicator, Settings};
use serde::Serialize;
use std::io::Write;

/// Refuse to go on from what is missing, damaged, or of another run: for who starts ranks, the
/// first of which will read it.
///
/// Errors: `File` or `Offload` if it cannot be read, `Checkpoint` if it is damaged or of another
/// model, `Setting` if it is of other settings.
pub fn check_resumed(args: &Args) -> Result<(), Error> {
    resumed(args).map(drop)
}

/// The state that a run starts from, the same on every rank, or where each rank's part of it comes
/// from; and the settings of the run that wrote it if that was another. Collective.
pub(crate) fn state(
    args: &Args,
    model: &Gpt,
    world: Option<&Communicator>,
    kept: Option<&Origin>,
) -> Result<(State, Source, Option<Written>), Error> {
    let is_first = world.is_none_or(|comm| comm.rank() == 0);
    if let Some(origin) = kept {
        // Every rank will read its own part.
        let Kept { header, .. } = Kept::open(origin)?;
        header.require(model.layout().config(), origin.first())?;
        let Header { step, course, loss_scale, .. } = header;
        require_rule(args, &course)?;
        require_steps(args, step)?;
        let state = State { steps: step, scale: loss_scale, ..State::absent() };
        let written = Written { course, is_checked: true };
        return Ok((state, Source::Kept(origin.clone()), Some(written)));
    }
    let has_parts = starts_in_parts(args, world.map_or(1, Communicator::size))?;
    let Some(path) = &args.resume else {
        if has_parts {
            return Ok((State::absent(), Source::Seed(args.seed), None));
        }
        let mut state = State::new(model.initial(args.seed));
        // Everyone starts from rank 0's weights.
        world.map_or(Ok(()), |comm| comm.broadcast(&mut state.params, 0))?;
        return Ok((state, Source::Given, None));
    };
    let (mut state, mut resumed, mut is_file) = (State::absent(), None, false);
    if is_first {
        // Nobody else needs to have the file, or to know that it is one.
        is_file = has_parts && !args.is_pipeline() && !path.is_dir();
        let (found, written) = match is_file {
            true => {
                let header = checkpoint::header(path, model.layout());
                let (Header { step, course, loss_scale, .. }, is_checked) =
                    header.map_err(|error| error.of_flag("--resume"))?;
                let state = State { steps: step, scale: loss_scale, ..State::absent() };
                (state, Written { course, is_checked })
            }
            false => {
                checkpoint::load(path, model.layout()).map_err(|error| error.of_flag("--resume"))?
            }
        };
        require_rule(args, &written.course)?;
        (state, resumed) = (found, Some(written));
    }
    if let Some(comm) = world {
        is_file = share_start(comm, is_file, &mut state, model.layout())?;
    }
    require_steps(args, state.steps)?;
    let source = if is_file { Source::File(path.clone(), state.steps) } else { Source::Given };
    Ok((state, source, resumed))
}

/// Where a run would go on from, in words, or why it cannot: for who only plans one.
pub(crate) fn resumed(args: &Args) -> Result<Option<String>, Error> {
    let Some(path) = &args.resume else { return Ok(None) };
    let header = checkpoint::header(path, &Layout::new(args.config()));
    let (Header { step, course, .. }, is_checked) =
        header.map_err(|error| error.of_flag("--resume"))?;
    require_rule(args, &course)?;
    require_steps(args, step)?;
    Ok(Some(departed(args, &text(args)?, step, &Written { course, is_checked })))
}

/// Whether ranks get their own parts: where all of a tensor is some rank's.
fn starts_in_parts(args: &Args, ranks: usize) -> Result<bool, Error> {
    let is_whole = args.mesh(ranks).length(Axis::Tp) == 1;
    let has_servers = Ways::of(&args.strategy)?.pace.is_some();
    Ok(is_whole && !has_servers)
}

/// Which step a checkpoint brought, and in what this run departs from the one that wrote it.
fn departed(args: &Args, text: &Corpus, step: usize, written: &Written) -> String {
    departure(step, written, &Args::former_course(), &args.course(text))
}

/// Refuse moments of another rule.
fn require_rule(args: &Args, course: &Course) -> Result<(), Error> {
    match course.get("--optimizer").filter(|then| **then != args.optimizer.name()) {
        None => Ok(()),
        Some(then) => {
            let problem = format!("the checkpoint has the moments of {then}: go on with that");
            Err(Error::setting("optimizer", problem))
        }
    }
}

/// Refuse to go on after the end.
fn require_steps(args: &Args, steps: usize) -> Result<(), Error> {
    if args.last_step() > steps {
        return Ok(());
    }
    let problem = format!("the checkpoint has {steps} behind it: ask for more");
    Err(Error::setting("steps", problem))
}

/// The communicators of this rank's groups. Collective.
pub(crate) fn groups(args: &Args, world: Option<&Communicator>) -> Result<Groups, Error> {
    let Some(world) = world else { return Ok(Groups::default()) };
    args.mesh(world.size()).split(world)
}

/// What this rank has of the model. Collective over those who divide it, whose communicator it
/// takes.
pub(crate) fn part(
    args: &Args,
    world: Option<&Communicator>,
    groups: &mut Groups,
) -> Result<Gpt, Error> {
    let Some(tp) = groups.tp.take() else {
        return match args.tile {
            Some(tiles) => Gpt::tiled(args.config(), Cpu, tiles),
            None => Gpt::new(args.config(), Cpu),
        };
    };
    let (rank, ranks) = world.map_or((0, 1), |comm| (comm.rank(), comm.size()));
    let inside = Ways::of(&args.strategy)?.inside.unwrap_or(Split::Heads);
    let samples = args.share_of(rank, ranks)?.samples();
    let tp = if inside == Split::Experts && args.ordered { in_order(&tp)? } else { tp };
    Gpt::divided(args.config(), Cpu, inside.divide(tp, &args.config(), samples)?)
}

/// The same ranks, whose sums are in their order.
fn in_order(ranks: &Communicator) -> Result<Communicator, Error> {
    let settings = Settings { ordered: true, ..ranks.settings().clone() };
    let same = ranks.split_with(Some(0), ranks.rank() as i32, settings)?;
    Ok(same.expect("every rank is of that colour"))
}

/// How the ranks train, from a state that is the same on all of them, or a source of its parts.
pub(crate) fn strategy<'a>(
    args: &Args,
    model: &'a Gpt,
    world: Option<&'a Communicator>,
    groups: &'a Groups,
    state: &State,
    source: Source,
) -> Result<Box<dyn Strategy + 'a>, Error> {
    let (rank, ranks) = world.map_or((0, 1), |comm| (comm.rank(), comm.size()));
    let lanes = args.share_of(rank, ranks)?;
    let Ways { data: stage, pace, .. } = Ways::of(&args.strategy)?;
    let sharing =
        Sharing { stage, is_ordered: args.ordered, slots: lanes.slots(), travel: args.travel() };
    let mut optimizer = Optimizer::new(args.hyper, args.threads(ranks), state.steps)?;
    // Moments are a number of updates old in every precision.
    optimizer.skipped = state.scale.map_or(0, LossScale::skipped);
    let optimizer = optimizer.by(args.optimizer).clipping(args.clip);
    let keep = match (args.recompute, &args.offload_activations) {
        (_, Some(_)) => Keep::LastInput,
        (true, None) => Keep::Inputs,
        (false, None) => Keep::All,
    };
    let from = if let Source::Kept(origin) = &source { Some(origin.clone()) } else { None };
    let offload = args.offload(rank, ranks).map(|offload| Offload { from, ..offload });
    let (precision, inputs) = (args.precision, args.inputs(rank, ranks));
    let thrift = Thrift { keep, precision, offload, inputs, source };
    let computes = pace.is_none_or(|pace| pace.computes(args, (rank, ranks)));
    let device = args.device.usage(rank, thrift.precision);
    let device = device.map(|usage| usage.with_budget(world, computes)).transpose()?;
    let usage = device.as_ref().map(|(usage, _)| *usage);
    if let (Some(pace), Some(group)) = (pace, &groups.dp) {
        let means = (&thrift, usage);
        return pace.strategy(args, model, group, lanes, optimizer, means, state);
    }
    if let Some(plan) = args.pipeline(ranks)? {
        if let Some(usage) = usage {
            let (way, by) = (sharing, optimizer);
            return pipeline_on_device(usage, model, groups, lanes, way, by, &thrift, state, plan);
        }
        let pipeline =
            Pipeline::new(model, groups, lanes, sharing, optimizer, &thrift, state, plan)?;
        return Ok(Box::new(pipeline));
    }
    let peers = groups.peers(args.travel.secondary);
    if let Some(usage) = usage {
        return on_device(usage, model, peers, lanes, sharing, optimizer, &thrift, state);
    }
    let data = DataParallel::new(model, peers, lanes, sharing, optimizer, &thrift, state)?;
    Ok(Box::new(data))
}

/// The text of a run.
///
/// Errors: it cannot be read, or is too short.
pub(crate) fn text(args: &Args) -> Result<Corpus, Error> {
    let corpus = Corpus::open(args.text.as_deref()).map_err(|error| error.of_flag("--text"))?;
    corpus.require(args.context).map(|()| corpus)
}

/// The files that a run writes to.
///
/// Errors: those of files that cannot be written where rank 0 is to write.
pub(crate) fn open(args: &Args, world: Option<&Communicator>) -> Result<Records, Error> {
    let is_first = world.is_none_or(|comm| comm.rank() == 0);
    if let Some(path) = args.checkpoint.as_ref().filter(|_| is_first) {
        checkpoint::probe(path, &Layout::new(args.config()))?;
    }
    if let Some(path) = args.resume.as_ref().filter(|path| is_first && !path.is_dir()) {
        // It stays if somebody writes it, or if the folder is only to be read.
        let _ = brigade_offload::storage::clear(path);
    }
    Records::open(args, is_first)
}

impl<'a> Run<'a> {
    /// Everything around a strategy.
    pub(crate) fn new(
        args: &'a Args,
        model: &'a Gpt,
        world: Option<&'a Communicator>,
        strategy: Box<dyn Strategy + 'a>,
        resumed: Option<Written>,
        out: &'a mut (dyn Write + Send),
        (corpus, records): (Corpus, Records),
    ) -> Run<'a> {
        let is_first = world.is_none_or(|comm| comm.rank() == 0);
        let (first, last) = (strategy.steps() + 1, args.last_step());
        let report = Report::new(out, is_first, args.quiet, args.print_every, (first, last));
        let (peak_bytes, start_bytes, disk) = (0, 0, DiskUse::default());
        Run {
            args,
            model,
            world,
            is_first,
            corpus,
            strategy,
            scale: None,
            peak_bytes,
            start_bytes,
            disk,
            disk_formula: disk,
            resumed,
            report,
            records,
        }
    }

    /// Settings, before the first step.
    pub(crate) fn announce(&mut self) -> Result<(), Error> {
        #[derive(Serialize)]
        struct Start<'a> {
            world: usize,
            parameters: usize,
            settings: &'a Args,
        }
        let rows = self.rows();
        self.report.table(&rows)?;
        let world = self.world.map_or(1, Communicator::size);
        let parameters = self.model.layout().len();
        self.records.start(&Start { world, parameters, settings: self.args })
    }

    /// The table of settings.
    fn rows(&self) -> Vec<(&'static str, String)> {
        let Args { batch, context, lr, seed, steps, .. } = *self.args;
        let ranks = self.world.map_or(1, Communicator::size);
        let share = self.args.share_of(0, ranks);
        let share = share.map_or(batch, |lanes| lanes.samples() * lanes.slots());
        let parameters = grouped(self.model.layout().len() as u64);
        let threads = match self.model.kernels().threads() {
            1 => "1 thread".to_string(),
            threads => format!("{threads} threads"),
        };
        let (first, last) = (self.strategy.steps() + 1, self.args.last_step());
        let text_bytes = grouped(self.corpus.given_bytes());
        let mut rows = vec![
            ("text", format!("{}, {text_bytes} bytes", self.corpus.name())),
            ("model", format!("{parameters} parameters, {}", self.model.layout().config())),
            ("memory", memory_row(self.strategy.memory())),
            ("batch", format!("{batch} samples of {context} bytes, {share} a rank")),
            ("ranks", format!("{ranks}, each with {threads}")),
            ("optimizer", self.args.optimizer()),
            ("precision", self.args.precision.name()),
            ("learning rate", format!("up to {lr}, seed {seed}")),
            ("steps", format!("{first} to {last} of {steps}")),
        ];
        let thrift = self.args.thrift();
        if !thrift.is_empty() {
            rows.push(("thrift", thrift));
        }
        if let Some(device) = self.strategy.device() {
            rows.push(("device", device));
        }
        if let Some(offload) = self.args.offload(0, ranks) {
            rows.push(("offload", offload.to_string()));
        }
        if let Some(comm) = self.world {
            let wires: Vec<String> = comm.transports().into_iter().map(|(name, _)| name).collect();
            let mode = match self.args.ordered {
                true => format!(" --ordered --lanes {}", self.args.lanes),
                false => String::new(),
            };
            let ways = self.args.strategy.iter().map(|way| Way::name(*way)).collect::<Vec<_>>();
            let (ways, wires) = (ways.join(","), wires.join(" and "));
            let less = self.args.travel.flags();
            let mesh = self.args.mesh.as_ref().map_or(String::new(), |mesh| format!(" on {mesh}"));
            rows.push(("strategy", format!("{ways}{mode}{less}{mesh} over {wires}")));
            let sent = grouped(self.strategy.formula_bytes());
            rows.push(("formula", format!("rank 0 sends {sent} bytes a step")));
        }
        if let Some(written) = &self.resumed {
            rows.push((
                "resumed",
                departed(self.args, &self.corpus, self.strategy.steps(), written),
            ));
        }
        rows
    }
}

/// What a rank holds, by kind.
fn memory_row(memory: Memory) -> String {
    let kinds = memory.kinds().into_iter().filter(|(_, bytes)| *bytes > 0);
    let kinds: Vec<_> = kinds.map(|(kind, bytes)| format!("{kind} {}", size(bytes))).collect();
    // Two lines where one would be too long for a terminal.
    let halves = kinds.chunks(3).map(|half| half.join(", ")).collect::<Vec<_>>();
    format!("{} a rank: {}", size(memory.total()), halves.join(",\n"))
}

/// Everyone goes on from rank 0's state: its step and scale, and its numbers, if they will not come
/// out of a file in parts. Whether they will is known to rank 0, and then to all.
fn share_start(
    comm: &Communicator,
    is_file: bool,
    state: &mut State,
    layout: &Layout,
) -> Result<bool, Error> {
    let [scale, since, skipped] = state.scale.map_or([0; 3], LossScale::numbers).map(u64::from);
    let mut told = [u64::from(is_file), state.steps as u64, scale, since, skipped];
    comm.broadcast(&mut told, 0)?;
    let [is_file, steps, scale @ ..] = told;
    if is_file == 0 {
        if comm.rank() > 0 {
            *state = State::room(layout);
        }
        for numbers in [&mut state.params, &mut state.mean, &mut state.square] {
            comm.broadcast(numbers, 0)?;
        }
    }
    state.steps = steps as usize;
    state.scale = LossScale::of_numbers(scale.map(|number| number as u32));
    Ok(is_file > 0)
}
