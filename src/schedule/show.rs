//! `brigade schedule show`: one algorithm as text and as a picture, or all of them side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use brigade_bench::size;
use brigade_offload::plan::show_bytes;
use brigade_offload::storage::write_whole;
use brigade_schedule::{Algorithm, Collective, check, cost, program};

use super::effort::{Effort, Proofs, Schedule};
use super::{LINK, RANKS_MAX, parse_bytes, time};
use crate::outputs;

/// Print the schedule of a collective, or compare the algorithms that can do it.
#[derive(clap::Args)]
#[command(after_help = "\
Without --algorithm: a table of all algorithms. `steps` is the longest chain of messages in which
each waits for the one before; `sent` is what the busiest rank sends; `time` is a prediction for
links of 5 us and 10 GB/s, good for comparing, not for believing; `bits` names those that add in
rank order, and so have the bits of a plain loop. What is shown is proved as
`brigade schedule check` does it, which takes minutes with thousands of ranks.

With it: a line for each rank, its moves in their order. `2→1` sends chunk 2 to rank 1, `2⊕3` adds
to chunk 2 what rank 3 sends, `2←3` puts that in its place. `2-3` are chunks 2 and 3, `s0` is a
chunk beside those of the call, and `0=s0⊕0` adds it to chunk 0, from the left.

Examples:
  brigade schedule show all-reduce -n 8 --bytes 1M
  brigade schedule show all-reduce -n 4 --algorithm ring
  brigade schedule show broadcast -n 6 --algorithm binomial --root 2 --svg broadcast.svg")]
pub(crate) struct Args {
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce, all-to-all, gather, scatter or
    /// barrier
    collective: Collective,
    /// How many ranks
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32)
        .range(1..=i64::from(RANKS_MAX)))]
    ranks: u32,
    /// Show this algorithm: a name from the table that is printed without
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,
    /// Show only the moves of this rank
    #[arg(long)]
    rank: Option<u32>,
    /// The root of broadcast, reduce, gather and scatter
    #[arg(long, default_value_t = 0)]
    root: u32,
    /// The size that costs are told for
    #[arg(long, default_value = "1M", value_parser = parse_bytes)]
    bytes: usize,
    /// Draw a picture into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Show what is asked for; the exit code is 2 when it cannot be, 1 when the picture cannot be kept.
pub(crate) fn show(args: &Args) -> ExitCode {
    let shown = || match args.algorithm {
        None => show_all(args).map(|()| None),
        Some(algorithm) => show_one(args, algorithm),
    };
    let (problem, code) = match outputs::check_files(None, &args.svg).and_then(|()| shown()) {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some((path, picture))) => match write_whole(path, &picture) {
            Ok(()) => {
                println!("drawn  {}, {}", path.display(), show_bytes(picture.len() as u64));
                return ExitCode::SUCCESS;
            }
            Err(error) => (format!("cannot write {}: {error}", path.display()), 1),
        },
        Err(problem) => (problem, 2),
    };
    eprintln!("brigade schedule show: {problem}");
    ExitCode::from(code)
}

/// A table of the algorithms that can do the collective.
fn show_all(args: &Args) -> Result<(), String> {
    refuse_if(args.svg.is_some(), "a picture shows one algorithm: add --algorithm NAME")?;
    refuse_if(args.rank.is_some(), "moves are those of one algorithm: add --algorithm NAME")?;
    let collective = collective(args)?;
    let named = |algorithm| Schedule { collective, algorithm, ranks: args.ranks };
    let all = Algorithm::all_for(collective, args.ranks).into_iter().map(named);
    let all: Vec<Schedule> = all.collect();
    let effort = all.iter().map(|schedule| schedule.effort()).fold(Effort::default(), Effort::then);
    // Each is proved and priced.
    let proofs = Proofs::begin(Effort { seconds: 2.0 * effort.seconds, ..effort })?;
    let ranks = size::ranks(args.ranks as usize);
    println!("{} {}among {ranks}", collective.name(), of(args, collective));
    println!(
        "{:<16} {:>8} {:>7} {:>16} {:>8} {:>10}  bits",
        "algorithm", "moves", "steps", "sent (B)", "of size", "time"
    );
    for schedule in all {
        proofs.print(&proofs.during(schedule, || row(args, schedule))?);
    }
    Ok(())
}

/// A line of the table.
fn row(args: &Args, Schedule { collective, algorithm, ranks }: Schedule) -> Result<String, String> {
    let proof = check(collective, algorithm, ranks).map_err(|fault| fault.to_string())?;
    let price = cost(collective, algorithm, ranks, args.bytes as u64, |_, _| LINK)
        .ok_or_else(|| format!("{algorithm} has no price"))?;
    let row = format!(
        "{:<16} {:>8} {:>7} {:>16} {:>8.2} {:>10}  {}",
        algorithm.name(),
        proof.moves,
        proof.steps,
        price.sent_bytes_max,
        price.sent_bytes_max as f64 / args.bytes.max(1) as f64,
        time(price.seconds),
        if proof.in_rank_order && collective.folds() { "in rank order" } else { "" }
    );
    Ok(row.trim_end().to_owned())
}

/// One algorithm: its moves, its price, its proof; and its picture, with where that shall be.
fn show_one(args: &Args, algorithm: Algorithm) -> Result<Option<(&Path, String)>, String> {
    let collective = collective(args)?;
    let all = (0..args.ranks).map(|rank| program(collective, algorithm, args.ranks, rank));
    let programs = all.collect::<Option<Vec<_>>>().ok_or_else(|| {
        let able = Algorithm::all_for(collective, args.ranks);
        let able: Vec<_> = able.into_iter().map(Algorithm::name).collect();
        format!(
            "{algorithm} cannot do {collective} among {} ranks; these can: {}",
            args.ranks,
            able.join(", ")
        )
    })?;
    let text = match args.rank {
        Some(rank) if rank >= args.ranks => {
            let (ranks, last) = (args.ranks, args.ranks - 1);
            return Err(format!("--rank {rank} is no rank of {ranks}; the last one is {last}"));
        }
        Some(rank) => brigade_schedule::draw::text(&programs[rank as usize..=rank as usize]),
        None => brigade_schedule::draw::text(&programs),
    };
    print!("{text}");
    println!(
        "moves  2→1: chunk 2 goes to rank 1; 2⊕1: adds what rank 1 sends to it; 2←1: replaces it"
    );
    let schedule = Schedule { collective, algorithm, ranks: args.ranks };
    let effort = schedule.effort();
    let proofs = Proofs::begin(Effort { seconds: 2.0 * effort.seconds, ..effort })?;
    let (price, proof) = proofs.during(schedule, || {
        let bytes = args.bytes as u64;
        let price = cost(collective, algorithm, args.ranks, bytes, |_, _| LINK);
        (price, check(collective, algorithm, args.ranks))
    });
    drop(proofs);
    let price = price.ok_or_else(|| format!("{algorithm} has no price"))?;
    println!(
        "cost   {} step{}; {}the busiest rank sends {} B; about {} on links of 5 us and 10 GB/s",
        price.steps,
        if price.steps == 1 { "" } else { "s" },
        of(args, collective),
        price.sent_bytes_max,
        time(price.seconds)
    );
    let proof = proof.map_err(|fault| fault.to_string())?;
    println!(
        "check  proved: matched, no deadlock, complete, same expression on every rank ({} moves)",
        proof.moves
    );
    Ok(args.svg.as_deref().map(|path| (path, brigade_schedule::draw::svg(&programs))))
}

/// The size that costs are told for; a barrier has none.
fn of(args: &Args, collective: Collective) -> String {
    match collective {
        Collective::Barrier => String::new(),
        _ => format!("of {} ", size::words(args.bytes)),
    }
}

fn collective(args: &Args) -> Result<Collective, String> {
    let (root, ranks) = (args.root, args.ranks);
    let why = || format!("--root {root} is no rank of {ranks}; the last one is {}", ranks - 1);
    if root < ranks { Ok(args.collective.with_root(root)) } else { Err(why()) }
}

fn refuse_if(wrong: bool, why: &str) -> Result<(), String> {
    if wrong { Err(why.to_owned()) } else { Ok(()) }
}
