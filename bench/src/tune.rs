//! Which algorithm is the fastest at which size: every one is timed in a communicator of its own,
//! all of them in turn, several times over.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use brigade_comm::{Communicator, Rule, Settings, Tuning};
use brigade_schedule::{Algorithm, Collective};

use crate::args::{Args, Sweep};
use crate::kind::{Case, Kind};
use crate::measure::{Bench, Method, Place};
use crate::session::{Failure, Verdict, cannot_write};
use crate::sys::{Cpu, processor};
use crate::{size, table};

/// What is tuned unless some are named.
const KINDS: [Kind; 8] = [
    Kind::AllReduce,
    Kind::ReduceScatter,
    Kind::AllGather,
    Kind::Broadcast,
    Kind::Reduce,
    Kind::AllToAll,
    Kind::Gather,
    Kind::Scatter,
];
/// What is chosen without rules stays where nothing is faster by this part: clocks are no better.
const WORTH: f64 = 0.03;

/// Find the fastest algorithm for every size, and write rules that communicators choose by.
#[derive(clap::Args, Clone, Debug)]
#[command(
    mut_arg("ranks", |arg| arg.value_parser(clap::value_parser!(u32).range(2..=4096))),
    mut_arg("min_bytes", |arg| arg.default_value("64")),
    mut_arg("transport", |arg| arg.help("What carries the bytes, as for `brigade bench`")),
    after_help = "\
Each algorithm is timed as `brigade bench` does it, out of place, in turn with the others. The
rules are a text that can be read and mended; with

  BRIGADE_TUNING=FILE

communicators of as many ranks choose by them. All ranks must have the same rules. They hold for
the machines and the transport that they were measured on: tune again where those change. The last
one of a collective is also for calls longer than -e.

Without a launcher's environment this command starts the ranks itself; under a launcher (brigade
run, torchrun, mpirun, srun) it is one rank of the world that the launcher made.

Examples:
  brigade tune -n 4 --output cluster.tuning
  brigade tune all-reduce,all-gather -n 8 --transport tcp -b 1K -e 1M
  mpirun -n 16 brigade tune --output cluster.tuning"
)]
pub struct TuneArgs {
    /// What to tune; without it, all that can be.
    #[arg(value_enum, value_name = "COLLECTIVE", value_delimiter = ',', help = kinds_help(),
          hide_possible_values = true)]
    pub kinds: Vec<Kind>,
    /// Among how many ranks, at which sizes, over what.
    #[command(flatten)]
    pub sweep: Sweep,
    /// How often all algorithms are timed in turn; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Calls of each algorithm at each size, rather than as many as fit in 40 ms
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub iters: Option<u32>,
    /// Write the rules to FILE
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

impl TuneArgs {
    /// The flags of a bench that times the same.
    ///
    /// # Errors
    ///
    /// A sentence for what cannot be tuned.
    pub fn as_bench(&self) -> Result<Args, String> {
        if let Some(strange) = self.kinds.iter().find(|kind| !KINDS.contains(kind)) {
            let (strange, names) = (strange.name(), tuned());
            return Err(format!("{strange} has nothing to choose; these have: {names}"));
        }
        if self.sweep.transport.as_deref() == Some("cuda") {
            return Err("rules are for memory of the host; leave --transport cuda out".into());
        }
        // Each once, however often it is named.
        let is_named = |kind: &Kind| self.kinds.is_empty() || self.kinds.contains(kind);
        Ok(Args {
            kinds: KINDS.into_iter().filter(is_named).collect(),
            sweep: self.sweep.clone(),
            iters: self.iters,
            warmup: 1,
            ..Args::default()
        })
    }

    /// Find out whether rules can be written, before the work. What the file says stays until there
    /// are others.
    ///
    /// # Errors
    ///
    /// The file, and what the system says.
    pub fn try_output(&self) -> Result<(), Failure> {
        let open = |path| File::options().create(true).append(true).open(path).map(drop);
        self.output
            .iter()
            .try_for_each(|path| open(path).map_err(cannot_write(&path.display().to_string())))
    }
}

fn tuned() -> String {
    KINDS.map(Kind::name).join(", ")
}

fn kinds_help() -> String {
    format!("What to tune, separated by commas [default: all of these]:\n{}", tuned())
}

/// Tune as one rank of a world. Only rank 0 writes. Collective.
///
/// # Errors
///
/// Those of calls, and of writing.
pub fn tune_rank(args: &TuneArgs, comm: &Communicator) -> Result<Verdict, Failure> {
    let result = tune(args, comm);
    if let Err(failure @ Failure::Write { .. }) = &result {
        // Only rank 0 writes; the others shall not wait for it.
        comm.abort(&failure.to_string());
    }
    result
}

fn tune(args: &TuneArgs, comm: &Communicator) -> Result<Verdict, Failure> {
    let cases = args.as_bench().and_then(|bench| bench.cases(comm.size()));
    let cases = cases.map_err(Failure::Usage)?;
    // Processor time is not asked for.
    let (cpu, place) = (Cpu::Thread, Place::Host);
    let method = Method { calls: args.iters, warmup: 1, in_a_row: 1, check: false, cpu, place };
    let mut report = (comm.rank() == 0).then(|| Report::new(args, comm)).transpose()?;
    for cases in cases.chunk_by(|one, next| one.kind == next.kind) {
        let timed = time_all(comm, args.rounds, method, cases)?;
        if let Some(report) = &mut report {
            report.add(cases[0].kind, &timed)?;
        }
    }
    report.map_or(Ok(()), |report| report.finish(args))?;
    Ok(Verdict::Passed)
}

/// One size: what each algorithm took, in microseconds, and which is taken without rules.
struct Timed {
    bytes: u64,
    usual: Algorithm,
    us: Vec<(Algorithm, f64)>,
}

/// All algorithms at all sizes of one collective. Every rank finds the same.
fn time_all(
    comm: &Communicator,
    rounds: u32,
    method: Method,
    cases: &[Case],
) -> Result<Vec<Timed>, Failure> {
    let ranks = comm.size() as u32;
    let collective = cases[0].kind.collective(0).expect("what is tuned is a collective");
    // What is ordered goes by no rules.
    let settings =
        Settings { algorithm: None, tuning: None, ordered: false, ..comm.settings().clone() };
    let with = |algorithm| -> Result<Communicator, Failure> {
        let settings = Settings { algorithm, ..settings.clone() };
        Ok(comm.split_with(Some(0), 0, settings)?.expect("every rank is of this colour"))
    };
    let algorithms = Algorithm::all_for(collective, ranks);
    let mut us = vec![vec![Vec::new(); algorithms.len()]; cases.len()];
    for _ in 0..rounds {
        for (place, algorithm) in algorithms.iter().enumerate() {
            let own = with(Some(*algorithm))?;
            let mut bench = Bench::new(&own, method, cases)?;
            for (of_case, case) in us.iter_mut().zip(cases) {
                of_case[place].push(bench.out_of_place(case)?.us(50));
            }
        }
    }
    let plain = with(None)?;
    let timed = cases.iter().zip(us).map(|(case, us)| {
        let call = case.call(comm.size(), comm.rank()).expect("a collective is a call");
        let us = algorithms.iter().copied().zip(us.into_iter().map(median)).collect();
        Ok(Timed { bytes: bytes(case, comm), usual: plain.algorithm_for(&call)?, us })
    });
    timed.collect()
}

fn bytes(case: &Case, comm: &Communicator) -> u64 {
    case.sizes(comm.size()).total as u64
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Timed {
    fn of(&self, algorithm: Algorithm) -> f64 {
        let found = self.us.iter().find(|(known, _)| *known == algorithm);
        found.map_or(f64::INFINITY, |(_, us)| *us)
    }

    /// The algorithm to take: the fastest, or the usual one where that is nearly as fast.
    fn choice(&self) -> Algorithm {
        let fastest = self.us.iter().min_by(|one, two| one.1.total_cmp(&two.1));
        let (fastest, us) = *fastest.expect("there is one algorithm at least");
        if self.of(self.usual) <= us * (1.0 + WORTH) { self.usual } else { fastest }
    }
}

/// The rules for one collective: sizes in between go with the nearer one.
fn rules(collective: Collective, ranks: u32, timed: &[Timed]) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for (at, one) in timed.iter().enumerate() {
        let middle = |next: &Timed| ((one.bytes as f64) * (next.bytes as f64)).sqrt() as u64;
        let up_to = timed.get(at + 1).map_or(u64::MAX, middle);
        let rule = Rule { collective, ranks, up_to, algorithm: one.choice() };
        match rules.last_mut().filter(|last| last.algorithm == rule.algorithm) {
            Some(last) => last.up_to = up_to,
            None => rules.push(rule),
        }
    }
    rules
}

/// What rank 0 prints and keeps.
struct Report {
    head: Vec<String>,
    ranks: u32,
    rules: Vec<Rule>,
    has_begun: bool,
}

impl Report {
    fn new(args: &TuneArgs, comm: &Communicator) -> Result<Self, Failure> {
        args.try_output()?;
        let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
        let (among, over) = (size::ranks(comm.size()), crate::measure::transport(comm));
        let machine = format!("machine: {}, {cores} cores", processor());
        let head = vec![
            format!("brigade {}: algorithms on {among} over {over}", env!("CARGO_PKG_VERSION")),
            machine,
            format!("time: median of {} rounds, all algorithms in turn, out of place", args.rounds),
        ];
        Ok(Self { head, ranks: comm.size() as u32, rules: Vec::new(), has_begun: false })
    }

    /// Print what was found of one collective.
    fn add(&mut self, kind: Kind, timed: &[Timed]) -> Result<(), Failure> {
        let collective = kind.collective(0).expect("what is tuned is a collective");
        self.rules.extend(rules(collective, self.ranks, timed));
        let mut text = String::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.head.iter().for_each(|line| text.push_str(&format!("# {line}\n")));
        }
        let heads = ["without rules", "(us)", "fastest", "(us)", "ratio"];
        let [usual, us, fastest, fastest_us, ratio] = heads;
        text.push_str(&format!(
            "#\n# {}\n# {:>8} {usual:>16} {us:>9} {fastest:>16} {fastest_us:>9} {ratio:>6}\n",
            kind.name(),
            "size"
        ));
        for one in timed {
            let (usual, choice) = (one.of(one.usual), one.choice());
            let best = one.of(choice);
            text.push_str(&format!(
                "{:>10} {:>16} {:>9} {:>16} {:>9} {:>6.2}\n",
                one.bytes,
                one.usual.to_string(),
                table::us(usual),
                choice.to_string(),
                table::us(best),
                usual / best
            ));
        }
        print(&text)
    }

    /// Keep the rules where they were asked for.
    fn finish(self, args: &TuneArgs) -> Result<(), Failure> {
        let Some(path) = &args.output else {
            return print("#\n# nothing is kept: --output FILE writes rules for BRIGADE_TUNING\n");
        };
        let mut text = String::new();
        self.head.iter().for_each(|line| text.push_str(&format!("# {line}\n")));
        text.push_str(&format!("{}\n", Tuning::HEADS));
        self.rules.iter().for_each(|rule| text.push_str(&format!("{rule}\n")));
        let name = path.display().to_string();
        fs::write(path, text).map_err(cannot_write(&name))?;
        let count = self.rules.len();
        print(&format!("#\n# {count} rules in {name}; BRIGADE_TUNING={name} takes them\n"))
    }
}

/// Write to standard output, which may be a pipe that nobody reads any more.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(cannot_write("the table"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn timed(bytes: u64, ring: f64, doubling: f64) -> Timed {
        let us = vec![(Algorithm::Ring, ring), (Algorithm::Doubling, doubling)];
        Timed { bytes, usual: Algorithm::Ring, us }
    }

    #[test]
    fn what_is_hardly_faster_changes_nothing_and_neighbours_are_one_rule() {
        let all = [
            timed(100, 5.0, 1.0),
            timed(400, 5.0, 4.0),
            timed(1600, 10.0, 9.9),
            timed(6400, 20.0, 90.0),
        ];
        let rules = rules(Collective::AllReduce, 3, &all);
        let found: Vec<_> = rules.iter().map(|rule| (rule.up_to, rule.algorithm)).collect();
        assert_eq!(found, [(800, Algorithm::Doubling), (u64::MAX, Algorithm::Ring)]);
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: TuneArgs,
    }

    #[test]
    fn only_what_has_a_choice_is_tuned() {
        let told = |line: &str| Command::try_parse_from(line.split(' ')).map(|told| told.args);
        let of = |line| told(line).expect("flags").as_bench();
        let all = of("tune -n 4 -e 4K").expect("all kinds").cases(4).expect("cases");
        assert_eq!(all.len(), KINDS.len() * 4, "from 64 bytes on");
        let refused = of("tune barrier").expect_err("a barrier");
        assert!(refused.starts_with("barrier has nothing to choose"), "{refused}");
        assert!(told("tune -n 1").is_err());
        // A file with two lists of rules for one collective would be refused.
        let kinds = of("tune gather,all-reduce,gather,gather").expect("two kinds").kinds;
        assert_eq!(kinds, [Kind::AllReduce, Kind::Gather]);
    }
}
