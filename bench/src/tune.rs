//! Which algorithm is the fastest at which size: every one is timed in a communicator of its own,
//! all of them in turn, several times over.

mod pace;
mod report;
mod rounds;

use std::path::PathBuf;

use brigade_comm::Communicator;
use brigade_schedule::Algorithm;
use clap::ValueEnum;

use crate::args::{Args, Sweep};
use crate::failure::{Failure, give_up};
use crate::kind::{Case, Kind};
use crate::measure::{Bench, Method, going_by};
use crate::progress::Progress;
use crate::session::Verdict;
use pace::Pace;
use report::Report;
use rounds::{Timed, enough};

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
the machines and the transport that they were measured on: tune again where those change. Each
size has what is nearer to it than to the next; calls longer than that go as without rules, so
tune up to what you call (-e).

How long it takes is told after the first round. FILE is written after each collective, with the
rules found until then, in place of any that it had: whoever interrupts the command has those.

What is chosen without rules stays, unless another algorithm is known to be faster: by 3 % in the
medians, and in so many rounds (column `won`) as a coin would win less than once in a hundred times,
which is all of 7 to 10, 10 of 11, 16 of 20. Of those that are, the fastest is taken. Where none is,
but one seems so, `?` stands behind it, and it gets no rule: on a busy machine that may be
everywhere. More --rounds or a quieter machine would tell. `ratio` is how many times as long the
choice without rules took as the fastest.

Without a launcher's environment this command starts the ranks itself; under a launcher (brigade
run, torchrun, mpirun, srun) it is one rank of the world that the launcher made.

Examples:
  brigade tune -n 4 --output cluster.tuning
  brigade tune all-reduce,all-gather -n 8 --transport tcp -b 1K -e 1M
  mpirun -n 16 brigade tune --output cluster.tuning"
)]
pub struct TuneArgs {
    /// What to tune; without it, all that can be.
    #[arg(value_name = "COLLECTIVE", value_delimiter = ',', value_parser = parse_kind,
          help = kinds_help())]
    pub kinds: Vec<Kind>,
    /// Among how many ranks, at which sizes, over what.
    #[command(flatten)]
    pub sweep: Sweep,
    /// How often all algorithms are timed in turn; fewer than 7 make no rules, and no file of them
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Calls of each algorithm at each size, rather than as many as fit in 15 ms
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
        if let (Some(path), None) = (&self.output, enough(self.rounds)) {
            let (rounds, path) = (self.rounds, path.display());
            return Err(format!(
                "no number of {rounds} rounds proves a rule: take --rounds 7 or more for {path}, \
                 or leave --output out"
            ));
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
}

fn tuned() -> String {
    KINDS.map(Kind::name).join(", ")
}

/// Any collective: whoever names one that has nothing to choose is told so, and not that there is
/// none.
fn parse_kind(text: &str) -> Result<Kind, String> {
    Kind::from_str(text, false).map_err(|_| format!("what can be tuned is {}", tuned()))
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
    tune(args, comm).map_err(|failure| give_up(comm, failure))
}

fn tune(args: &TuneArgs, comm: &Communicator) -> Result<Verdict, Failure> {
    let cases = args.as_bench().and_then(|bench| bench.cases(comm.size()));
    let cases = cases.map_err(Failure::Usage)?;
    let method = Method::quick(args.iters);
    let mut report = (comm.rank() == 0).then(|| Report::new(args, comm)).transpose()?;
    let mut pace = Pace::new(&cases, comm.size() as u32, args.rounds);
    let tables: Vec<_> = cases.chunk_by(|one, next| one.kind == next.kind).collect();
    let kinds: Vec<_> = tables.iter().map(|table| table[0].kind).collect();
    for (at, &table) in tables.iter().enumerate() {
        let kind = kinds[at];
        if let Some(report) = &mut report {
            report.begin(kind)?;
        }
        let (what, rounds, is_shown) = (kind.name(), args.rounds, report.is_some());
        let progress = Progress { what, rounds, is_shown };
        let timed = time_all(comm, &progress, method, table, |round| {
            pace.round(table, comm.size() as u32);
            progress.after(round, pace.left());
            report.as_mut().map_or(Ok(()), |report| report.foretell(pace.left()))
        })?;
        drop(progress);
        if let Some(report) = &mut report {
            report.add(kind, &timed)?;
            report.keep_so_far(args, &kinds[at + 1..])?;
        }
    }
    report.map_or(Ok(()), |report| report.finish(args))?;
    Ok(Verdict::Passed)
}

/// All algorithms at all sizes of one collective; `after` is told of each round. Every rank finds
/// the same.
fn time_all(
    comm: &Communicator,
    progress: &Progress,
    method: Method,
    cases: &[Case],
    mut after: impl FnMut(usize) -> Result<(), Failure>,
) -> Result<Vec<Timed>, Failure> {
    let ranks = comm.size() as u32;
    let collective = cases[0].kind.collective(0).expect("what is tuned is a collective");
    let algorithms = Algorithm::all_for(collective, ranks);
    let mut us = vec![vec![Vec::new(); algorithms.len()]; cases.len()];
    for round in 0..progress.rounds as usize {
        if round == 0 {
            progress.round(round);
        }
        for place in (0..algorithms.len()).map(|step| (round + step) % algorithms.len()) {
            let own = going_by(comm, Some(algorithms[place]))?;
            let mut bench = Bench::new(&own, method, cases)?;
            for (of_case, case) in us.iter_mut().zip(cases) {
                of_case[place].push(bench.out_of_place(case)?.us(50));
            }
        }
        after(round)?;
    }
    let plain = going_by(comm, None)?;
    let timed = cases.iter().zip(us).map(|(case, us)| {
        let call = case.call(comm.size(), comm.rank()).expect("a collective is a call");
        let us = algorithms.iter().copied().zip(us).collect();
        Ok(Timed { bytes: bytes(case, comm), usual: plain.algorithm_for(&call)?, us })
    });
    timed.collect()
}

fn bytes(case: &Case, comm: &Communicator) -> u64 {
    case.sizes(comm.size()).total as u64
}

#[cfg(test)]
mod tests {
    use super::rounds::rules;
    use super::*;
    use brigade_schedule::Collective;
    use clap::Parser;

    fn timed(bytes: u64, ring: f64, doubling: f64) -> Timed {
        let us = [(Algorithm::Ring, ring), (Algorithm::Doubling, doubling)];
        let us = us.map(|(algorithm, us)| (algorithm, vec![us; 7])).to_vec();
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
        let rules = rules(Collective::AllReduce, 3, &all, 4);
        let found: Vec<_> = rules.iter().map(|rule| (rule.up_to, rule.algorithm)).collect();
        assert_eq!(found, [(800, Algorithm::Doubling), (12_800, Algorithm::Ring)]);
    }

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: TuneArgs,
    }

    fn told(line: &str) -> Result<TuneArgs, clap::Error> {
        Command::try_parse_from(line.split(' ')).map(|told| told.args)
    }

    #[test]
    fn the_help_says_what_its_ratio_is_and_when_rules_are_kept() {
        let help = <TuneArgs as clap::Args>::augment_args(clap::Command::new("tune")).render_help();
        let help = help.to_string();
        assert!(help.contains("`ratio` is") && help.contains("after each collective"), "{help}");
    }

    #[test]
    fn rounds_that_prove_nothing_write_no_rules() {
        let of = |line| told(line).expect("flags").as_bench();
        let refused = of("tune --rounds 6 --output rules").expect_err("six rounds");
        assert!(refused.contains("no number of 6") && refused.contains("--rounds 7"), "{refused}");
        of("tune --rounds 7 --output rules").expect("seven");
        of("tune --rounds 1").expect("a look at the table");
    }

    #[test]
    fn only_what_has_a_choice_is_tuned() {
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
