//! `brigade schedule simulate`: what algorithms would take on a network that need not exist.

use std::process::ExitCode;

use brigade_bench::size;
use brigade_schedule::{Algorithm, Collective, Link, Network, RANKS_MAX, TwoLevels};
use brigade_schedule::{cost, predict};

use super::{LINK, parse_bytes, time};

/// Compare algorithms over sizes, on links that are described.
#[derive(clap::Args)]
#[command(after_help = "\
A link is told by two numbers: microseconds for an empty message, and GB/s (1e9) each way. Ranks of
a node have consecutive numbers. A rank sends one message at a time and receives one, and links are
as fast however many are used at once; adding a byte takes 0.025 ns. Up to 64 ranks every message is
simulated. Among more, rounds are added up by formula, which the project's tests hold within 2.5
times of that. The fastest for a size has a `*`.

Examples:
  brigade schedule simulate all-reduce -n 64
  brigade schedule simulate all-reduce -n 1024 --node-ranks 8 --inside 2,300 --across 8,50
  brigade schedule simulate all-reduce -n 65535 --node-ranks 72 --inside 2,700 --across 10,50
  brigade schedule simulate all-to-all -n 16 --node-ranks 4 -b 64 -e 16M -f 64")]
pub(crate) struct Args {
    /// all-reduce, reduce-scatter, all-gather, broadcast, reduce, all-to-all, gather, scatter or
    /// barrier; what has a root has rank 0
    collective: Collective,
    /// How many ranks
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32)
        .range(2..=i64::from(RANKS_MAX)))]
    ranks: u32,
    /// How many ranks a node has; without it, one node has all
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..))]
    node_ranks: Option<u32>,
    /// Links inside a node
    #[arg(long, value_name = "US,GB/S", default_value = "5,10", value_parser = parse_link)]
    inside: Link,
    /// Links across nodes
    #[arg(long, value_name = "US,GB/S", default_value = "20,1.25", value_parser = parse_link,
          requires = "node_ranks")]
    across: Link,
    /// Smallest size in bytes, such as 64K, 1.5M or 1GiB (powers of 1024)
    #[arg(short = 'b', long, value_name = "MIN", default_value = "1K", value_parser = parse_bytes)]
    min_bytes: usize,
    /// Largest size in bytes
    #[arg(short = 'e', long, value_name = "MAX", default_value = "256M",
          value_parser = parse_bytes)]
    max_bytes: usize,
    /// Each size is so many times the one before
    #[arg(short = 'f', long, default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
}

/// As many columns as fit into a hundred characters.
const SIZES_MAX: usize = 7;
/// Of more ranks, a simulation of all messages takes too long.
const SIMULATED_MAX: u32 = 64;

/// Print the table; the exit code is 2 when there can be none.
pub(crate) fn simulate(args: &Args) -> ExitCode {
    match table(args) {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("brigade schedule simulate: {problem}");
            ExitCode::from(2)
        }
    }
}

fn table(args: &Args) -> Result<String, String> {
    let sizes = sizes(args)?;
    let rows: Vec<(String, Vec<f64>)> = algorithms(args)
        .into_iter()
        .map(|algorithm| {
            let seconds = sizes.iter().map(|&bytes| seconds(args, algorithm, bytes));
            (algorithm.name(), seconds.collect())
        })
        .collect();
    let mut text = head(args);
    text += &format!("{:<16}", "algorithm");
    sizes.iter().for_each(|&bytes| text += &format!(" {:>10} ", size::show(bytes)));
    text = text.trim_end().to_owned() + "\n";
    let least = |at: usize| rows.iter().map(|(_, row)| row[at]).fold(f64::INFINITY, f64::min);
    for (name, row) in &rows {
        let mut line = format!("{name:<16}");
        for (at, &seconds) in row.iter().enumerate() {
            let star = if seconds <= least(at) { '*' } else { ' ' };
            line += &format!(" {:>10}{star}", time(seconds));
        }
        text += &format!("{}\n", line.trim_end());
    }
    Ok(text)
}

fn head(args: &Args) -> String {
    let ranks = size::ranks(args.ranks as usize);
    let told = |link: Link| {
        format!("{} us and {} GB/s", tidy(link.alpha_s * 1e6), tidy(1e-9 / link.beta_s_per_byte))
    };
    let network = match args.node_ranks {
        Some(each) if each < args.ranks => {
            let (inside, across) = (told(args.inside), told(args.across));
            format!("{each} on a node: {inside} inside, {across} across")
        }
        _ => format!("all on one node: {}", told(args.inside)),
    };
    let how = if args.ranks <= SIMULATED_MAX { "simulated" } else { "by formula" };
    format!("{} among {ranks}, {network}; {how}\n", args.collective.name())
}

/// A number as it was written, which became another unit's and came back.
fn tidy(number: f64) -> f64 {
    (number * 1e6).round() / 1e6
}

/// All that can do it; of hierarchies, that of these nodes.
fn algorithms(args: &Args) -> Vec<Algorithm> {
    let of_nodes = |algorithm: &Algorithm| match *algorithm {
        Algorithm::Hierarchical { node_ranks } | Algorithm::NodeDoubling { node_ranks } => {
            args.node_ranks == Some(node_ranks)
        }
        _ => true,
    };
    let mut all = Algorithm::all_for(args.collective, args.ranks);
    all.retain(of_nodes);
    let own = args.node_ranks.into_iter().flat_map(|node_ranks| {
        [Algorithm::Hierarchical { node_ranks }, Algorithm::NodeDoubling { node_ranks }]
    });
    // Not every number of ranks on a node is among them.
    let is_left_out =
        |own: &Algorithm| !all.contains(own) && own.can_do(args.collective, args.ranks);
    let more: Vec<_> = own.filter(is_left_out).collect();
    all.extend(more);
    all
}

fn seconds(args: &Args, algorithm: Algorithm, bytes: usize) -> f64 {
    let node_ranks = args.node_ranks.unwrap_or(args.ranks);
    let network = TwoLevels { node_ranks, inside: args.inside, across: args.across };
    let link = |from, to| network.link(from, to);
    let (collective, bytes) = (args.collective, bytes as u64);
    let seconds = match args.ranks <= SIMULATED_MAX {
        true => cost(collective, algorithm, args.ranks, bytes, link).map(|cost| cost.seconds),
        false => predict(collective, algorithm, args.ranks, bytes, network),
    };
    seconds.expect("whatever can do it has a price")
}

/// The columns; a barrier has one.
fn sizes(args: &Args) -> Result<Vec<usize>, String> {
    let (least, most) = (args.min_bytes, args.max_bytes);
    if args.collective == Collective::Barrier {
        return Ok(vec![0]);
    }
    if least > most || least == 0 {
        return Err(format!("no size is between -b {least} and -e {most}; the least is 1"));
    }
    let next = |size: &usize| size.checked_mul(args.factor as usize);
    let sizes = std::iter::successors(Some(least), next).take_while(|&size| size <= most);
    let sizes: Vec<usize> = sizes.take(SIZES_MAX + 1).collect();
    match sizes.len() <= SIZES_MAX {
        true => Ok(sizes),
        false => Err(format!("{SIZES_MAX} sizes fit into a line: take a larger -f, or -b")),
    }
}

/// `5,10`: microseconds and GB/s.
fn parse_link(text: &str) -> Result<Link, String> {
    let wrong = || format!("{text:?} is no link; write microseconds and GB/s, like 5,10");
    let (us, gb_s) = text.split_once(',').ok_or_else(wrong)?;
    let number = |text: &str| text.trim().parse::<f64>().map_err(|_| wrong());
    let (us, gb_s) = (number(us)?, number(gb_s)?);
    if !(0.0..=1e9).contains(&us) || !(1e-6..=1e9).contains(&gb_s) {
        return Err(format!("{text:?}: from 0 to 1e9 us, and from 1e-6 to 1e9 GB/s"));
    }
    Ok(Link { alpha_s: us * 1e-6, beta_s_per_byte: 1e-9 / gb_s, ..LINK })
}
