//! A whole run: all cases, one after another, and where their numbers go.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use brigade_comm::{Communicator, LendingStats, Settings, at_once};
use brigade_offload::storage::write_whole;
use brigade_schedule::Algorithm;

use crate::args::{self, Args};
use crate::device::Place;
use crate::failure::{Failure, cannot_write, give_up};
use crate::kind::Case;
use crate::measure::{BUDGET, Bench, Method, samples_before};
use crate::record::Record;
use crate::reference::SEED;
use crate::sys::{Cpu, processor};
use crate::{plot, size, table};

/// What asks for buffers in memory of devices.
pub(crate) const DEVICES: &str = "cuda";

/// How a run ended, on every rank alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing wrong was found, or nothing was checked.
    Passed,
    /// So many elements were wrong.
    Wrong(u64),
}

/// The settings of the environment with the flags on top.
pub fn settings(args: &Args) -> Result<Settings, Failure> {
    let mut settings = Settings::from_env().map_err(Failure::before)?;
    if let Some(transport) = &args.sweep.transport {
        settings.transport.clone_from(transport);
    }
    if settings.transport != DEVICES && settings.transport.split(',').any(|it| it.trim() == DEVICES)
    {
        let problem = format!(
            "{DEVICES} stands alone, and not in {:?}: it says where buffers lie, and their ranks \
             find the best way by themselves; {}",
            settings.transport,
            args::accepted()
        );
        return Err(Failure::Usage(problem));
    }
    if args.graph && settings.transport != DEVICES {
        let problem = "--graph captures calls on devices: add --transport cuda, or leave it out";
        return Err(Failure::Usage(problem.into()));
    }
    if args.keep_open && settings.transport != DEVICES {
        let problem =
            "--keep-open is for buffers on devices: add --transport cuda, or leave it out";
        return Err(Failure::Usage(problem.into()));
    }
    settings.ordered |= args.ordered;
    settings.algorithm = args.algorithm.or(settings.algorithm);
    Ok(settings)
}

/// Whether ranks that this command starts by itself are threads: those that share memory, or
/// devices.
pub fn are_threads(settings: &Settings) -> bool {
    ["loopback", DEVICES].contains(&settings.transport.as_str())
}

/// The settings for ranks to come together with. Those whose bytes go over devices need another
/// transport to arrange that.
pub fn world_settings(args: &Args, is_one_process: bool) -> Result<Settings, Failure> {
    let mut settings = settings(args)?;
    if settings.transport == DEVICES {
        settings.transport = if is_one_process { "loopback" } else { "auto" }.into();
    }
    Ok(settings)
}

/// Run as one rank of a world whose ranks are processes. Only rank 0 writes.
pub fn run_rank(args: &Args, comm: &Communicator) -> Result<Verdict, Failure> {
    run(args, comm, Cpu::Process)
}

/// Run all ranks as threads of this process.
pub fn run_threads(args: &Args) -> Result<Verdict, Failure> {
    let (ranks, settings) = (args.sweep.ranks as usize, world_settings(args, true)?);
    let world = Communicator::local_world(ranks, &settings).map_err(Failure::before)?;
    in_threads(world, |comm| run(args, comm, Cpu::Thread))
}

/// Do something as all ranks of a world in this process.
pub fn in_threads(
    world: Vec<Communicator>,
    body: impl Fn(&Communicator) -> Result<Verdict, Failure> + Sync,
) -> Result<Verdict, Failure> {
    let results = at_once(world, |comm| body(&comm))?;
    // The ranks agree on a verdict; an error of any is an error of all, in the words of the one
    // that tells it.
    let all = results.into_iter().reduce(|first, next| match first {
        Err(told) if told.is_told_elsewhere() => next.and(Err(told)),
        first => first.and(next),
    });
    all.expect("at least one rank")
}

fn run(args: &Args, comm: &Communicator, cpu: Cpu) -> Result<Verdict, Failure> {
    measure(args, comm, cpu).map_err(|failure| give_up(comm, failure))
}

fn measure(args: &Args, comm: &Communicator, cpu: Cpu) -> Result<Verdict, Failure> {
    let cases = args.cases(comm.size()).map_err(Failure::Usage)?;
    let place = match settings(args)?.transport.as_str() {
        DEVICES if args.graph => Place::Graph,
        DEVICES if args.keep_open => Place::Kept,
        DEVICES => Place::Device,
        _ => Place::Host,
    };
    let Args { iters: calls, warmup, in_a_row, touch, check, .. } = *args;
    if touch && place != Place::Host {
        let why = "--touch is for buffers of the host: leave it out, or choose another transport";
        return Err(Failure::Usage(why.to_owned()));
    }
    let method = Method { calls, budget: BUDGET, warmup, in_a_row, touch, check, cpu, place };
    let mut bench = Bench::new(comm, method, &cases).map_err(Failure::before)?;
    let mut report = (comm.rank() == 0).then(|| Report::new(args));
    let mut wrong = 0;
    for table in cases.chunk_by(|one, next| one.kind == next.kind) {
        if let Some(report) = &mut report {
            report.begin(args, comm, &bench, place, &table[0])?;
        }
        let mut beside = None;
        for case in table {
            let records = bench.measure(case)?;
            beside = bench.beside_copies(&records[0])?;
            wrong += records.iter().filter_map(|record| record.wrong).sum::<u64>();
            if let Some(report) = &mut report {
                report.add(records)?;
            }
        }
        if let Some(report) = &mut report {
            report.end(beside)?;
        }
    }
    if let Some(report) = report {
        report.finish(&comm.lending())?;
    }
    Ok(if wrong == 0 { Verdict::Passed } else { Verdict::Wrong(wrong) })
}

/// Where the numbers go.
struct Report {
    title: String,
    table: Box<dyn Write>,
    json: Option<Target>,
    plot: Option<PathBuf>,
    /// Of the table that was begun last.
    records: Vec<Record>,
}

/// A stream, or a file that is made with its first line: until then what has its name stays.
pub(crate) struct Target {
    path: PathBuf,
    out: Option<Box<dyn Write>>,
}

impl Target {
    /// Where the table goes, and the lines of JSON where they are wanted: only one of the two has
    /// standard output.
    pub(crate) fn open(json: Option<&Path>) -> (Box<dyn Write>, Option<Self>) {
        match json.map(Path::to_owned) {
            None => (Box::new(io::stdout()), None),
            Some(path) if path == Path::new("-") => {
                let (path, out) = ("standard output".into(), Some(Box::new(io::stdout()) as _));
                (Box::new(io::stderr()), Some(Self { path, out }))
            }
            Some(path) => (Box::new(io::stdout()), Some(Self { path, out: None })),
        }
    }

    /// Write one object, so that whoever reads along has it at once.
    pub(crate) fn line(&mut self, object: serde_json::Result<String>) -> Result<(), Failure> {
        let Self { path, out } = self;
        let out = match out {
            Some(out) => out,
            None => out.insert(Box::new(BufWriter::new(create(path)?))),
        };
        let written = object.map_err(io::Error::from).and_then(|line| writeln!(out, "{line}"));
        written.and_then(|()| out.flush()).map_err(cannot_write(&path.display().to_string()))
    }
}

impl Report {
    fn new(args: &Args) -> Self {
        let (table, json) = Target::open(args.json.as_deref());
        let (title, records) = (String::new(), Vec::new());
        Self { title, table, json, plot: args.plot.clone(), records }
    }

    /// Write the head of a collective's table.
    fn begin(
        &mut self,
        args: &Args,
        comm: &Communicator,
        bench: &Bench<'_>,
        place: Place,
        first: &Case,
    ) -> Result<(), Failure> {
        let ranks = size::ranks(comm.size());
        self.title = format!("{} on {ranks} over {}", first.kind.name(), bench.transport());
        self.records.clear();
        let used = bench.algorithm_for(first)?;
        let choice = choice(comm.settings(), first, used, place);
        table::write_head(&mut self.table, &facts(args, comm, &self.title, &choice))
            .map_err(cannot_write("the table"))
    }

    /// Write one line, as soon as it is known.
    fn add(&mut self, records: Vec<Record>) -> Result<(), Failure> {
        table::write_row(&mut self.table, &records).map_err(cannot_write("the table"))?;
        if let Some(target) = &mut self.json {
            records.iter().try_for_each(|record| target.line(record.json()))?;
        }
        self.records.extend(records);
        Ok(())
    }

    /// Write what stands under a table.
    fn end(&mut self, beside: Option<String>) -> Result<(), Failure> {
        table::write_tail(&mut self.table, &self.records)
            .and_then(|()| beside.map_or(Ok(()), |line| writeln!(self.table, "# {line}")))
            .map_err(cannot_write("the table"))
    }

    fn finish(mut self, lending: &LendingStats) -> Result<(), Failure> {
        table::write_lending(&mut self.table, lending).map_err(cannot_write("the table"))?;
        if let Some(path) = &self.plot {
            let svg = plot::draw(&self.title, &self.records);
            write_whole(path, svg).map_err(cannot_write(&path.display().to_string()))?;
        }
        Ok(())
    }
}

/// How it was decided what calls go by: an algorithm, kernels of their own, or schedules in those.
fn choice(settings: &Settings, first: &Case, used: Option<Algorithm>, place: Place) -> String {
    let on_devices = match place {
        Place::Host => None,
        Place::Device | Place::Kept => Some("kernels on devices"),
        Place::Graph => Some("replays of graphs on devices"),
    };
    let by_whom = match settings.algorithm {
        _ if settings.ordered && first.kind.folds() => String::from("ordered"),
        // One that cannot do the collective is not used for it.
        Some(wish) if used == Some(wish) => wish.to_string(),
        _ if on_devices.is_some() => String::from("chosen by size"),
        _ if settings.tuning.is_some() => String::from("chosen by rules, size and nodes"),
        _ => String::from("chosen by size and nodes"),
    };
    match (on_devices, used) {
        (None, _) => by_whom,
        (Some(what), None) => what.to_owned(),
        (Some(what), Some(_)) => format!("{by_whom}, in {what}"),
    }
}

/// What a table must say to be worth keeping.
fn facts(args: &Args, comm: &Communicator, title: &str, choice: &str) -> Vec<String> {
    let cores = match std::thread::available_parallelism().map_or(0, |cores| cores.get()) {
        1 => String::from("1 core"),
        cores => format!("{cores} cores"),
    };
    let calls = match args.iters {
        Some(calls) => calls.to_string(),
        None => String::from("as many as fit 40 ms"),
    };
    vec![
        format!("brigade {}: {title}", env!("CARGO_PKG_VERSION")),
        format!("machine: {}; {}, rank 0 on {cores}", processor(), size::ranks(comm.size())),
        format!(
            "algorithm: {choice}; calls: {calls} after {} of warm-up; seed {SEED}",
            samples_before(args.warmup, args.iters)
        ),
        format!("time: {}, the slowest rank's; GB = 1e9 bytes", times(args)),
    ]
}

/// What a table's times are of.
fn times(args: &Args) -> String {
    let calls = match args.in_a_row {
        1 => String::from("median of calls, each waited for"),
        calls => format!("each of {calls} calls in a row, median"),
    };
    let touched = if args.touch { ", with writing its input and reading its output" } else { "" };
    calls + touched
}

/// Create a file, or say which one cannot be written.
pub(crate) fn create(path: &Path) -> Result<File, Failure> {
    File::create(path).map_err(cannot_write(&path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;
    use brigade_comm::{Dtype, Op};

    #[test]
    fn a_head_says_what_the_rows_below_it_say() {
        let case =
            Case { kind: Kind::AllReduce, dtype: Dtype::F32, op: Op::Sum, root: 0, block_elems: 2 };
        let plain = Settings::default();
        let wish = Settings { algorithm: Some(Algorithm::Ring), ..Settings::default() };
        let (ring, halving) = (Some(Algorithm::Ring), Some(Algorithm::Halving));
        for (settings, used, place, said) in [
            (&plain, ring, Place::Host, "chosen by size and nodes"),
            (&wish, ring, Place::Host, "ring"),
            (&wish, halving, Place::Host, "chosen by size and nodes"),
            // Kernels that need no schedule, and those that go by one.
            (&plain, None, Place::Device, "kernels on devices"),
            (&plain, ring, Place::Device, "chosen by size, in kernels on devices"),
            (&wish, ring, Place::Graph, "ring, in replays of graphs on devices"),
        ] {
            assert_eq!(choice(settings, &case, used, place), said, "{used:?} {place:?}");
        }
    }
}
