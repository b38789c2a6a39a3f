//! `brigade schedule check`: prove algorithms right on symbols, for as many ranks as wanted.

use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::time::Instant;

use brigade_schedule::{Algorithm, Collective, Fault, Report};

use super::effort::{Effort, Proofs, Schedule};
use super::parse_ranks;

/// Verify that schedules are matched, free of deadlock, complete and the same on every rank.
#[derive(clap::Args)]
#[command(after_help = "\
What is proved, for any lengths and any timing: every chunk sent is received, no deadlock on wires
that never fill and on wires that hold half a chunk, every contribution folded exactly once into
the right place, and the same expression on every rank, so the same bits. Of more ranks than
--all-roots-to the first, the middle and the last root are checked. What takes long, as thousands of
ranks do, is told beforehand.

Examples:
  brigade schedule check all -n 1..16
  brigade schedule check all-reduce -n 7 --algorithm double-tree")]
pub(crate) struct Args {
    /// A collective (all-reduce, reduce-scatter, all-gather, broadcast, reduce, all-to-all, gather,
    /// scatter, barrier), or `all`
    #[arg(value_name = "COLLECTIVE", value_parser = parse_collectives)]
    collective: Collectives,
    /// How many ranks: N, or FIRST..LAST
    #[arg(short = 'n', long, value_name = "RANKS", value_parser = parse_ranks)]
    ranks: RangeInclusive<u32>,
    /// Only this algorithm, as `brigade schedule show COLLECTIVE -n RANKS` names it
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Up to so many ranks check every root, with more only three
    #[arg(long, value_name = "RANKS", default_value_t = 16)]
    all_roots_to: u32,
}

/// One collective or all of them.
#[derive(Clone, Debug)]
struct Collectives(Vec<Collective>);

/// What was found about one algorithm, over all numbers of ranks and all roots.
#[derive(Default)]
struct Line {
    checked: usize,
    moves: usize,
    steps: u32,
    first_fault: Option<(u32, Fault)>,
}

/// Check everything that was asked for, and print a line for each collective and family.
pub(crate) fn check(args: &Args) -> ExitCode {
    let start = Instant::now();
    if !is_any(args) {
        eprintln!(
            "brigade schedule check: no algorithm asked for does that; `brigade schedule show \
             COLLECTIVE -n RANKS` names those that do"
        );
        return ExitCode::from(2);
    }
    let proofs = match Proofs::begin(effort(args)) {
        Ok(proofs) => proofs,
        Err(error) => {
            eprintln!("brigade schedule check: {error}");
            return ExitCode::from(2);
        }
    };
    println!(
        "{:<15} {:<13} {:>9} {:>12} {:>10}  result",
        "collective", "algorithm", "schedules", "moves", "max steps"
    );
    let (mut checked, mut wrong) = (0, 0);
    for collective in &args.collective.0 {
        for (family, line) in lines(args, *collective, &proofs) {
            let result = match &line.first_fault {
                None => String::from("proved"),
                Some((ranks, fault)) => format!("WRONG at {ranks} ranks: {fault}"),
            };
            proofs.print(&format!(
                "{:<15} {family:<13} {:>9} {:>12} {:>10}  {result}",
                collective.name(),
                line.checked,
                line.moves,
                line.steps
            ));
            checked += line.checked;
            wrong += usize::from(line.first_fault.is_some());
        }
    }
    drop(proofs);
    let checked = match checked {
        1 => String::from("1 schedule"),
        checked => format!("{checked} schedules"),
    };
    println!("{checked} checked in {:.1} s", start.elapsed().as_secs_f64());
    match wrong {
        0 => ExitCode::SUCCESS,
        wrong => {
            let are = if wrong == 1 { "kind of schedules is" } else { "kinds of schedules are" };
            eprintln!("brigade schedule check: {wrong} {are} wrong");
            ExitCode::FAILURE
        }
    }
}

/// Whether there is anything to check.
fn is_any(args: &Args) -> bool {
    let does = |ranks| args.collective.0.iter().any(|&one| !schedules(args, one, ranks).is_empty());
    args.ranks.clone().any(does)
}

/// About what all of it takes: that of the most ranks, and for fewer as the square of their number.
fn effort(args: &Args) -> Effort {
    let most = *args.ranks.end();
    let largest =
        args.collective.0.iter().flat_map(|&collective| schedules(args, collective, most));
    let largest = largest.map(Schedule::effort).fold(Effort::default(), Effort::then);
    let part = |ranks: u32| (f64::from(ranks) / f64::from(most)).powi(2);
    Effort { seconds: largest.seconds * args.ranks.clone().map(part).sum::<f64>(), ..largest }
}

/// Everything that is asked for about a collective and a number of ranks, root by root.
fn schedules(args: &Args, collective: Collective, ranks: u32) -> Vec<Schedule> {
    let mut all = Algorithm::all_for(collective, ranks);
    all.retain(|&algorithm| args.algorithm.is_none_or(|only| only == algorithm));
    let at = |algorithm| {
        let roots = roots(args, collective, ranks).into_iter();
        roots.map(move |root| Schedule { collective: collective.with_root(root), algorithm, ranks })
    };
    all.into_iter().flat_map(at).collect()
}

/// The families that can do the collective, in the order in which they are first met.
fn lines(args: &Args, collective: Collective, proofs: &Proofs) -> Vec<(&'static str, Line)> {
    let mut lines: Vec<(&'static str, Line)> = Vec::new();
    let all = args.ranks.clone().flat_map(|ranks| schedules(args, collective, ranks));
    for schedule in all {
        let Schedule { collective, algorithm, ranks } = schedule;
        let at = match lines.iter().position(|(family, _)| *family == algorithm.family()) {
            Some(at) => at,
            None => {
                lines.push((algorithm.family(), Line::default()));
                lines.len() - 1
            }
        };
        let prove = || brigade_schedule::check(collective, algorithm, ranks);
        lines[at].1.add(ranks, proofs.during(schedule, prove));
    }
    lines
}

fn roots(args: &Args, collective: Collective, ranks: u32) -> Vec<u32> {
    if collective.with_root(0) == collective.with_root(1) {
        vec![0]
    } else if ranks <= args.all_roots_to {
        (0..ranks).collect()
    } else {
        vec![0, ranks / 2, ranks - 1]
    }
}

impl Line {
    fn add(&mut self, ranks: u32, proof: Result<Report, Fault>) {
        self.checked += 1;
        match proof {
            Ok(report) => {
                self.moves += report.moves;
                self.steps = self.steps.max(report.steps);
            }
            Err(fault) => {
                self.first_fault.get_or_insert((ranks, fault));
            }
        }
    }
}

fn parse_collectives(text: &str) -> Result<Collectives, String> {
    match text {
        "all" => Ok(Collectives(Collective::ALL.to_vec())),
        _ => text
            .parse::<Collective>()
            .map(|one| Collectives(vec![one]))
            .map_err(|error| format!("{error}, all")),
    }
}
