//! Why a call goes by its algorithm: what decided, what the links there are cost, and what each
//! algorithm takes by that and by the clock.

mod crowd;
mod links;

use brigade_comm::{Call, Choice, Communicator, Reason};
use brigade_schedule::{Algorithm, Collective, Cost, cost};
use clap::ValueEnum;

use crate::args::{Args, Dtypes, Ops, Root, Sweep, parse_dtypes, parse_ops, parse_root};
use crate::failure::{Failure, give_up};
use crate::kind::{Case, Kind};
use crate::measure::{Bench, Method, going_by, transport};
use crate::median::median;
use crate::progress::Progress;
use crate::session::Verdict;
use crate::size;
use crate::sys::processor;
use crate::table::{self, print};
use crowd::crowd;
use links::Links;

/// Among more ranks a simulation of all algorithms takes too long.
const RANKS_MAX: i64 = 256;

/// Tell why a call goes by its algorithm, beside the others: predicted for these links, and timed.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
`steps` is the longest chain of messages in which each waits for the one before, `sent` what the
busiest rank sends, and `of size` how many times the size of the call that is. `predicted` is a
simulation of every message on links that cost what was found here and now between each two ranks:
for an empty message, for a byte while as many come back, and for adding one. It knows nothing of
caches, nor of what ranks that share cores wait for each other. `measured` is as by `brigade bench`,
out of place, the median of --rounds, in which all algorithms take turns. `ratio` is predicted over
measured. What would be chosen has a `*`.

What decides, in this order: BRIGADE_ORDERED; BRIGADE_ALGORITHM, where it can do the call; rules of
`brigade tune` in BRIGADE_TUNING; how ranks lie on nodes; the size.

Without a launcher's environment this command starts the ranks itself; under a launcher (brigade
run, torchrun, mpirun, srun) it is one rank of the world that the launcher made.

Examples:
  brigade explain all-reduce --bytes 1M -n 4
  brigade explain all-gather --bytes 64K -n 8 --transport tcp
  mpirun -n 16 brigade explain broadcast --bytes 16M --root 3")]
pub struct ExplainArgs {
    /// A collective whose blocks have one length.
    #[arg(value_name = "COLLECTIVE", value_parser = parse_kind, help = kinds_help())]
    pub kind: Kind,
    /// The size (K, M, G: powers of 1024)
    #[arg(long, default_value = "1M", value_parser = size::parse)]
    pub bytes: usize,
    /// How many ranks
    #[arg(short = 'n', long, default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(2..=RANKS_MAX))]
    pub ranks: u32,
    /// What carries the bytes, as for `brigade bench`
    #[arg(long, value_name = "NAMES")]
    pub transport: Option<String>,
    /// The element type, as here or as in Python (float32)
    #[arg(long, default_value = "f32", value_parser = parse_dtypes)]
    pub dtype: Dtypes,
    /// The operator
    #[arg(long, default_value = "sum", value_parser = parse_ops)]
    pub op: Ops,
    /// The root, where there is one
    #[arg(long, default_value = "0", value_parser = parse_root)]
    pub root: Root,
    /// How often all algorithms are timed in turn, up to 99; 0 only predicts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=99))]
    pub rounds: u32,
}

impl ExplainArgs {
    /// The flags of a bench of the one call.
    ///
    /// # Errors
    ///
    /// A sentence for what has no algorithm, or is more than one call.
    pub fn as_bench(&self) -> Result<Args, String> {
        if !is_explained(self.kind) {
            let (name, names) = (self.kind.name(), explained());
            return Err(format!("{name} has no choice of algorithms; these have: {names}"));
        }
        if self.transport.as_deref() == Some("cuda") {
            return Err("predictions are for memory of the host; leave --transport cuda out".into());
        }
        let sweep = Sweep {
            ranks: self.ranks,
            min_bytes: self.bytes,
            max_bytes: self.bytes,
            transport: self.transport.clone(),
            ..Sweep::default()
        };
        let bench = Args {
            kinds: vec![self.kind],
            sweep,
            dtype: self.dtype.clone(),
            op: self.op.clone(),
            root: self.root,
            ..Args::default()
        };
        // How many ranks there are, and whether one of them is the root, a launcher may know.
        match bench.cases(RANKS_MAX as usize)?.as_slice() {
            [_] => Ok(bench),
            _ => Err("one call is explained: name one type, one operator and one root".into()),
        }
    }
}

fn is_explained(kind: Kind) -> bool {
    kind.collective(0).is_some() && !kind.is_uneven()
}

fn explained() -> String {
    let kinds = Kind::value_variants().iter().copied().filter(|&kind| is_explained(kind));
    kinds.map(Kind::name).collect::<Vec<_>>().join(", ")
}

/// Any collective: whoever names one that has no choice is told so, and not that there is none.
fn parse_kind(text: &str) -> Result<Kind, String> {
    Kind::from_str(text, false).map_err(|_| format!("what can be explained is {}", explained()))
}

fn kinds_help() -> String {
    format!("A collective whose blocks have one length:\n{}", explained())
}

/// Explain as one rank of a world. Only rank 0 writes. Collective.
///
/// # Errors
///
/// Those of calls, and of writing.
pub fn explain_rank(args: &ExplainArgs, comm: &Communicator) -> Result<Verdict, Failure> {
    explain(args, comm).map_err(|failure| give_up(comm, failure))
}

fn explain(args: &ExplainArgs, comm: &Communicator) -> Result<Verdict, Failure> {
    let ranks = comm.size();
    if ranks > RANKS_MAX as usize {
        let why = format!("{ranks} ranks are too many; {RANKS_MAX} are the most");
        return Err(Failure::Usage(why));
    }
    let cases = args.as_bench().and_then(|bench| bench.cases(ranks));
    let [case] = cases.map_err(Failure::Usage)?.try_into().expect("one call");
    let call = case.call(ranks, comm.rank()).expect("a collective is a call");
    let choice = comm.choice_for(&call)?;
    let (links, crowd) = (Links::measure(comm, args.bytes)?, crowd(comm)?);
    let mut algorithms = Algorithm::all_for(call.collective, ranks as u32);
    // The one that is chosen may have a number that is not among all.
    if !algorithms.contains(&choice.algorithm) {
        algorithms.push(choice.algorithm);
    }
    let mut us = vec![Vec::new(); algorithms.len()];
    let (what, rounds, is_shown) = (args.kind.name(), args.rounds, comm.rank() == 0);
    let progress = Progress { what, rounds, is_shown };
    for round in 0..rounds as usize {
        progress.round(round);
        // Nobody always follows the same one.
        for place in (0..algorithms.len()).map(|step| (round + step) % algorithms.len()) {
            let own = going_by(comm, Some(algorithms[place]))?;
            let mut bench = Bench::new(&own, Method::quick(None), std::slice::from_ref(&case))?;
            us[place].push(bench.out_of_place(&case)?.us(50));
        }
    }
    drop(progress);
    // Prices are for whoever tells them: ranks that share cores would take long to find the same.
    if comm.rank() == 0 {
        let timed = algorithms.into_iter().zip(us);
        let (asked, case, call, links) = (args.bytes, &case, &call, &links);
        let report = Report { comm, asked, case, call, choice, links, crowd };
        print(&report.text(timed))?;
    }
    Ok(Verdict::Passed)
}

/// An algorithm that could do the call.
struct Candidate {
    algorithm: Algorithm,
    cost: Cost,
    /// The median of the rounds, if there were any.
    measured_us: Option<f64>,
}

/// What rank 0 prints.
struct Report<'a> {
    comm: &'a Communicator,
    /// The size that was asked for, which need not be one of whole elements.
    asked: usize,
    case: &'a Case,
    call: &'a Call,
    choice: Choice,
    links: &'a Links,
    /// Ranks and cores where there are fewer of these.
    crowd: Option<(usize, usize)>,
}

const COLUMNS: &str = "\
#      algorithm    steps         sent  of size   predicted   measured   ratio
#                                  (B)                 (us)       (us)
";

impl Report<'_> {
    fn text(&self, timed: impl Iterator<Item = (Algorithm, Vec<f64>)>) -> String {
        let mut candidates: Vec<Candidate> =
            timed.filter_map(|(algorithm, us)| self.candidate(algorithm, us)).collect();
        // By the clock, or else as predicted.
        let us = |one: &Candidate| one.measured_us.unwrap_or(one.cost.seconds * 1e6);
        candidates.sort_by(|one, other| us(one).total_cmp(&us(other)));
        let mut text = self.head() + COLUMNS;
        candidates.iter().for_each(|one| text += &self.row(one));
        text + &self.advice(&candidates)
    }

    /// What it should take: if its ranks are called otherwise, then on the links that are so.
    fn candidate(&self, algorithm: Algorithm, us: Vec<f64>) -> Option<Candidate> {
        let order = self.comm.order_for(self.call, algorithm);
        // The root is called first, then.
        let collective = match order {
            Some(_) => self.call.collective.with_root(0),
            None => self.call.collective,
        };
        let name = |rank: u32| order.as_ref().map_or(rank, |order| order[rank as usize]);
        let link = |from, to| self.links.between(name(from), name(to));
        let cost = cost(collective, algorithm, self.comm.size() as u32, self.bytes(), link)?;
        Some(Candidate { algorithm, cost, measured_us: median(us) })
    }

    fn bytes(&self) -> u64 {
        self.case.sizes(self.comm.size()).total as u64
    }

    fn head(&self) -> String {
        let Self { comm, call, links, choice: Choice { algorithm, reason }, .. } = self;
        let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
        let size = match call.collective {
            Collective::Barrier => String::new(),
            _ => format!(" of {}", size::words(self.bytes() as usize)),
        };
        let mut text = format!(
            "# brigade {}: {call}{size}, on {} over {}\n# machine: {}, {cores} cores\n{}{}\
             #\n# {algorithm} is chosen: it {reason}\n",
            env!("CARGO_PKG_VERSION"),
            size::ranks(comm.size()),
            transport(comm),
            processor(),
            links.told(),
            self.warnings(),
        );
        if let Some(wish) = comm.settings().algorithm
            && !matches!(reason, Reason::Named | Reason::Ordered)
        {
            text += &format!("# {wish}, which BRIGADE_ALGORITHM asks for, cannot do this call\n");
        }
        if let Some(order) = comm.order_for(call, *algorithm) {
            let order: Vec<String> = order.iter().map(u32::to_string).collect();
            text += &format!("# ranks are called in this order: {}\n", order.join(" "));
        }
        text + "#\n"
    }

    /// What is not as it was asked for, or will not be as it is predicted.
    fn warnings(&self) -> String {
        let mut text = String::new();
        if self.call.collective != Collective::Barrier && self.bytes() != self.asked as u64 {
            let (asked, dtype) = (size::words(self.asked), self.case.dtype);
            let ranks = size::ranks(self.comm.size());
            let bytes = size::words(self.bytes() as usize);
            text += &format!("# of {asked} only {bytes} are whole blocks of {dtype} for {ranks}\n");
        }
        if let Some((ranks, cores)) = self.crowd {
            text += &format!(
                "# {ranks} ranks of a host share {cores} of its cores: calls take longer than \
                 predicted, by several times\n"
            );
        }
        text
    }

    /// A line of the table.
    fn row(&self, one: &Candidate) -> String {
        let predicted_us = one.cost.seconds * 1e6;
        let [us, ratio] = match one.measured_us {
            Some(us) => [table::us(us), format!("{:.2}", predicted_us / us)],
            None => [String::from("-"), String::from("-")],
        };
        format!(
            "{:>16} {} {:>6} {:>12} {:>8.2} {:>11} {us:>10} {ratio:>7}\n",
            one.algorithm.name(),
            if one.algorithm == self.choice.algorithm { '*' } else { ' ' },
            one.cost.steps,
            one.cost.sent_bytes_max,
            one.cost.sent_bytes_max as f64 / self.bytes().max(1) as f64,
            table::us(predicted_us),
        )
    }

    /// What to do where another one was faster.
    fn advice(&self, candidates: &[Candidate]) -> String {
        let Choice { algorithm, reason } = self.choice;
        let own = candidates.iter().find(|one| one.algorithm == algorithm);
        let us = own.and_then(|own| own.measured_us);
        let fastest = candidates.first().and_then(|one| Some((one.algorithm, one.measured_us?)));
        let (Some(us), Some((fastest, least))) = (us, fastest) else { return String::new() };
        let what = match reason {
            _ if least * 1.1 > us => return String::new(),
            Reason::Ordered | Reason::Named => "",
            // It has no rules.
            _ if self.call.collective == Collective::Barrier => "",
            _ => "; if `brigade tune` finds the same, its rules have it chosen",
        };
        format!("#\n# {fastest} took {:.2} of that time{what}\n", least / us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args as _;

    #[test]
    fn the_help_says_what_every_column_is() {
        let help = ExplainArgs::augment_args(clap::Command::new("explain")).render_help();
        let help = help.to_string();
        for column in ["steps", "sent", "of size", "predicted", "measured", "ratio"] {
            assert!(COLUMNS.contains(column) && help.contains(&format!("`{column}`")), "{column}");
        }
    }
}
