//! Why a call goes by its algorithm: what decided, what the links there are cost, and what each
//! algorithm takes by that and by the clock.

mod links;

use brigade_comm::{Call, Choice, Communicator};
use brigade_schedule::{Algorithm, Collective, Cost, cost};

use crate::args::{Args, Dtypes, Ops, Root, Sweep, parse_dtypes, parse_ops, parse_root};
use crate::failure::{Failure, give_up};
use crate::kind::{Case, Kind};
use crate::measure::{Bench, Method, going_by, transport};
use crate::progress::Progress;
use crate::session::Verdict;
use crate::size;
use crate::sys::processor;
use crate::table::{self, print};
use links::Links;

/// Among more ranks a simulation of all algorithms takes too long.
const RANKS_MAX: i64 = 256;

/// Tell why a call goes by its algorithm, beside the others: predicted for these links, and timed.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
`steps` is the longest chain of messages in which each waits for the one before, `sent` what the
busiest rank sends. `predicted` is a simulation of every message on links that cost what was found
here and now between each two ranks: for an empty message, for a byte while as many come back, and
for adding one. It knows nothing of caches, nor of what ranks that share cores wait for each other.
`measured` is as by `brigade bench`, out of place, the median of --rounds, in which all algorithms
take turns. What would be chosen has a `*`.

What decides, in this order: BRIGADE_ORDERED; BRIGADE_ALGORITHM, where it can do the call; rules of
`brigade tune` in BRIGADE_TUNING; how ranks lie on nodes; the size.

Without a launcher's environment this command starts the ranks itself; under a launcher (brigade
run, torchrun, mpirun, srun) it is one rank of the world that the launcher made.

Examples:
  brigade explain all-reduce --bytes 1M -n 4
  brigade explain all-gather --bytes 64K -n 8 --transport tcp
  mpirun -n 16 brigade explain broadcast --bytes 16M --root 3")]
pub struct ExplainArgs {
    /// A collective whose blocks have one length: all-reduce, reduce-scatter, all-gather,
    /// broadcast, reduce, all-to-all, gather, scatter or barrier
    #[arg(value_enum, value_name = "COLLECTIVE", hide_possible_values = true)]
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
    /// The element type
    #[arg(long, default_value = "f32", value_parser = parse_dtypes)]
    pub dtype: Dtypes,
    /// The operator
    #[arg(long, default_value = "sum", value_parser = parse_ops)]
    pub op: Ops,
    /// The root, where there is one
    #[arg(long, default_value = "0", value_parser = parse_root)]
    pub root: Root,
    /// How often all algorithms are timed in turn; 0 only predicts
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
        if self.kind.collective(0).is_none() || self.kind.is_uneven() {
            let name = self.kind.name();
            return Err(format!("{name} is none of the collectives that --help names"));
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
        match bench.cases(self.ranks as usize)?.as_slice() {
            [_] => Ok(bench),
            _ => Err("one call is explained: name one type, one operator and one root".into()),
        }
    }
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
    if comm.size() > RANKS_MAX as usize {
        let ranks = comm.size();
        return Err(Failure::Usage(format!(
            "{ranks} ranks are too many; {RANKS_MAX} are the most"
        )));
    }
    let cases = args.as_bench().and_then(|bench| bench.cases(comm.size()));
    let [case] = cases.map_err(Failure::Usage)?.try_into().expect("one call");
    let call = case.call(comm.size(), comm.rank()).expect("a collective is a call");
    let choice = comm.choice_for(&call)?;
    let links = Links::measure(comm, args.bytes)?;
    let mut candidates = candidates(comm, &case, &call, &links);
    // The one that is chosen may have a number that is not among all.
    if candidates.iter().all(|one| one.algorithm != choice.algorithm) {
        candidates.extend(Candidate::new(comm, &case, &call, choice.algorithm, &links));
    }
    let progress = Progress { kind: args.kind, rounds: args.rounds, is_shown: comm.rank() == 0 };
    for round in 0..args.rounds as usize {
        progress.round(round);
        for candidate in &mut candidates {
            candidate.take_a_turn(comm, &case)?;
        }
    }
    drop(progress);
    candidates.sort_by(|one, other| one.seconds().total_cmp(&other.seconds()));
    if comm.rank() == 0 {
        let told = report(comm, &case, (&call, choice), &links, &candidates);
        print(&told)?;
    }
    Ok(Verdict::Passed)
}

/// An algorithm that could do the call.
struct Candidate {
    algorithm: Algorithm,
    cost: Cost,
    us: Vec<f64>,
}

fn candidates(comm: &Communicator, case: &Case, call: &Call, links: &Links) -> Vec<Candidate> {
    let all = Algorithm::all_for(call.collective, comm.size() as u32);
    let candidate = |algorithm| Candidate::new(comm, case, call, algorithm, links);
    all.into_iter().filter_map(candidate).collect()
}

impl Candidate {
    /// With what it should take: if its ranks are called otherwise, then on the links that are so.
    fn new(
        comm: &Communicator,
        case: &Case,
        call: &Call,
        algorithm: Algorithm,
        links: &Links,
    ) -> Option<Self> {
        let (ranks, bytes) = (comm.size() as u32, case.sizes(comm.size()).total as u64);
        let order = comm.order_for(call, algorithm);
        // The root is called first, then.
        let collective = match order {
            Some(_) => call.collective.with_root(0),
            None => call.collective,
        };
        let name = |rank: u32| order.as_ref().map_or(rank, |order| order[rank as usize]);
        let link = |from, to| links.between(name(from), name(to));
        let cost = cost(collective, algorithm, ranks, bytes, link)?;
        Some(Self { algorithm, cost, us: Vec::new() })
    }

    fn take_a_turn(&mut self, comm: &Communicator, case: &Case) -> Result<(), Failure> {
        let own = going_by(comm, Some(self.algorithm))?;
        let method = Method::quick(None);
        let mut bench = Bench::new(&own, method, std::slice::from_ref(case))?;
        self.us.push(bench.out_of_place(case)?.us(50));
        Ok(())
    }

    /// The median of the rounds; every rank has the same.
    fn measured_us(&self) -> Option<f64> {
        let mut sorted = self.us.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }

    /// By the clock, or else as predicted.
    fn seconds(&self) -> f64 {
        self.measured_us().map_or(self.cost.seconds, |us| us * 1e-6)
    }

    /// A line of the table.
    fn row(&self, bytes: u64, is_chosen: bool) -> String {
        let predicted_us = self.cost.seconds * 1e6;
        let measured = self.measured_us();
        let [us, ratio] = match measured {
            Some(us) => [table::us(us), format!("{:.2}", predicted_us / us)],
            None => [String::from("-"), String::from("-")],
        };
        format!(
            "{:>16} {} {:>6} {:>12} {:>8.2} {:>11} {us:>10} {ratio:>7}\n",
            self.algorithm.name(),
            if is_chosen { '*' } else { ' ' },
            self.cost.steps,
            self.cost.sent_bytes_max,
            self.cost.sent_bytes_max as f64 / bytes.max(1) as f64,
            table::us(predicted_us),
        )
    }
}

fn report(
    comm: &Communicator,
    case: &Case,
    (call, choice): (&Call, Choice),
    links: &Links,
    candidates: &[Candidate],
) -> String {
    let cores = std::thread::available_parallelism().map_or(0, |cores| cores.get());
    let bytes = case.sizes(comm.size()).total as u64;
    let size = match call.collective {
        Collective::Barrier => String::new(),
        _ => format!(" of {}", size::show(bytes as usize)),
    };
    let Choice { algorithm, reason } = choice;
    let mut text = format!(
        "# brigade {}: {call}{size}, on {} over {}\n# machine: {}, {cores} cores\n{}\
         #\n# {algorithm} is chosen: it {reason}\n",
        env!("CARGO_PKG_VERSION"),
        size::ranks(comm.size()),
        transport(comm),
        processor(),
        links.told(),
    );
    if let Some(order) = comm.order_for(call, algorithm) {
        let order: Vec<String> = order.iter().map(u32::to_string).collect();
        text += &format!("# ranks are called in this order: {}\n", order.join(" "));
    }
    text += &format!(
        "#\n# {:>14}   {:>6} {:>12} {:>8} {:>11} {:>10} {:>7}\n# {:>14}   {:>6} {:>12} {:>8} \
         {:>11} {:>10} {:>7}\n",
        "algorithm",
        "steps",
        "sent",
        "of size",
        "predicted",
        "measured",
        "ratio",
        "",
        "",
        "(B)",
        "",
        "(us)",
        "(us)",
        "",
    );
    for candidate in candidates {
        text += &candidate.row(bytes, candidate.algorithm == algorithm);
    }
    text + &advice(algorithm, candidates)
}

/// What to do where another one was faster.
fn advice(chosen: Algorithm, candidates: &[Candidate]) -> String {
    let us_of = |one: &Candidate| one.measured_us();
    let Some(us) = candidates.iter().find(|one| one.algorithm == chosen).and_then(us_of) else {
        return String::new();
    };
    match candidates.first().and_then(|first| Some((first.algorithm, us_of(first)?))) {
        Some((fastest, least)) if fastest != chosen && least * 1.1 < us => format!(
            "#\n# {fastest} took {:.2} of that time; if `brigade tune` finds the same, its rules \
             have it chosen\n",
            least / us
        ),
        _ => String::new(),
    }
}
