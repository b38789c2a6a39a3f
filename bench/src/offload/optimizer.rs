//! `brigade offload bench optimizer`: updates in memory, against the same streams without
//! arithmetic.

mod limit;
mod state;

use std::time::{Duration, Instant};

use brigade_offload::memory::{Arena, Budget};
use brigade_offload::optimizer::{Adam, AdamW, Crew, Lion, Sgd, Update};
use serde::Serialize;

use super::Failure;
use super::report::{Record, Report, Reporting, Spread};
use crate::size;
pub use state::Format;
use state::State;

/// Time updates of parameters in memory.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
`f32`: everything in f32. `mixed`: gradients and new weights in bf16 around f32 master weights and
moments. `bf16-moments`: the same with moments in bf16. `GB/s` counts what an update must read and
write. `limit` is what loops reach that read and write the same arrays without arithmetic, as many
threads, taken in turn; `of limit` the median over the turns. Sizes are in powers of 1024.

Examples:
  brigade offload bench optimizer
  brigade offload bench optimizer --rule adamw,lion --format mixed --threads 1,8 --params 64M")]
pub struct Args {
    /// adamw, adam, sgd (with momentum), lion; separated by commas
    #[arg(long = "rule", value_name = "NAMES", default_value = "adamw", value_delimiter = ',')]
    pub rules: Vec<Rule>,
    /// f32, mixed, bf16-moments; separated by commas
    #[arg(
        long = "format",
        value_name = "NAMES",
        default_value = "f32,mixed,bf16-moments",
        value_delimiter = ','
    )]
    pub formats: Vec<Format>,
    /// How many parameters, separated by commas
    #[arg(long, value_name = "COUNTS", default_value = "1M,16M", value_delimiter = ',',
          value_parser = size::parse_count)]
    pub params: Vec<usize>,
    /// Threads, separated by commas [default: 1, and as many as there are cores]
    #[arg(long, value_name = "COUNTS", value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Milliseconds of one measurement, at least
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub least: u64,
    /// How often, and where the numbers go.
    #[command(flatten)]
    pub reporting: Reporting,
}

/// Rules that are one pass over the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Rule {
    /// Adam with decoupled weight decay.
    Adamw,
    /// Adam.
    Adam,
    /// SGD with momentum.
    Sgd,
    /// Lion.
    Lion,
}

/// One line of `--json`. Scripts rely on these names.
#[derive(Debug, Serialize)]
struct Line {
    op: &'static str,
    format: &'static str,
    params: usize,
    threads: usize,
    bytes_per_param: usize,
    ms: f64,
    mparams_s: f64,
    gb_s: Spread,
    limit_gb_s: Spread,
    of_limit: f64,
}

const COLUMNS: [&str; 11] = [
    "rule", "format", "params", "threads", "B/param", "ms", "Mparam/s", "GB/s", "range", "limit",
    "of limit",
];
const PANELS: [&str; 2] = ["time of an update, median (us)", "bandwidth of memory (GB/s)"];

impl Rule {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Adamw => "adamw",
            Self::Adam => "adam",
            Self::Sgd => "sgd",
            Self::Lion => "lion",
        }
    }

    pub(super) fn moments(self) -> usize {
        match self {
            Self::Adamw | Self::Adam => 2,
            Self::Sgd | Self::Lion => 1,
        }
    }

    pub(super) fn at(self, t: u64) -> Update {
        let (lr, beta1, beta2, eps, decay) = (1e-3, 0.9, 0.999, 1e-8, 0.01);
        match self {
            Self::Adamw => AdamW { lr, beta1, beta2, eps, decay }.at(t, 1.0),
            Self::Adam => Adam { lr, beta1, beta2, eps, decay }.at(t, 1.0),
            Self::Sgd => Sgd { lr, momentum: beta1, decay, is_nesterov: false }.at(1.0),
            Self::Lion => Lion { lr, beta1, beta2, decay }.at(1.0),
        }
    }
}

/// Measure, and print.
pub fn run(args: &Args) -> Result<(), Failure> {
    let title = String::from("updates in memory");
    let mut report = Report::new(&title, PANELS, &args.reporting);
    let threads = threads(args)?;
    let mut crews = threads.iter().map(|&threads| crew(threads)).collect::<Result<Vec<_>, _>>()?;
    let most = args.params.iter().copied().max().unwrap_or(0);
    let arena = Arena::new(Budget::new(State::memory(most)))?;
    let isa =
        crews.first().map_or_else(String::new, |crew| format!("{:?}", crew.isa()).to_lowercase());
    let facts = [
        format!("memory: {}", arena.describe()),
        format!("vectors: {isa}"),
        format!(
            "method: {} of at least {} ms each, limits in between; medians, with the range",
            args.reporting.turns(),
            args.least
        ),
    ];
    report.head(&facts, &row(&COLUMNS.map(String::from)))?;
    for &rule in &args.rules {
        for &format in &args.formats {
            for &params in &args.params {
                let mut state = State::new(&arena, format, rule.moments(), params)?;
                for crew in &mut crews {
                    report.add(&measure(args, rule, &mut state, crew))?;
                }
            }
        }
    }
    report.finish()
}

fn threads(args: &Args) -> Result<Vec<usize>, Failure> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let mut threads = match args.threads.is_empty() {
        true => vec![1, cores],
        false => args.threads.clone(),
    };
    threads.dedup();
    if threads.iter().any(|threads| !(1..=4096).contains(threads)) {
        return Err(Failure::Usage(String::from("--threads: counts from 1 to 4096 are wanted")));
    }
    if args.params.iter().any(|params| !(1..=1 << 40).contains(params)) {
        return Err(Failure::Usage(String::from("--params: counts from 1 to 1024G are wanted")));
    }
    Ok(threads)
}

fn crew(threads: usize) -> Result<Crew, Failure> {
    Crew::new(threads)
        .map_err(|error| Failure::Usage(format!("{threads} threads cannot be had: {error}")))
}

fn measure(args: &Args, rule: Rule, state: &mut State, crew: &mut Crew) -> Line {
    let least = Duration::from_millis(args.least);
    let bytes = (state.params() * state.bytes_per_param()) as f64;
    let gb_s = |seconds: f64| bytes / seconds / 1e9;
    let (mut ours, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..args.reporting.turns {
        let mut step = 0;
        ours.push(gb_s(pass_s(least, || {
            step += 1;
            let start = Instant::now();
            let result = rule.at(step).apply(crew, state.shard());
            assert!(result.is_ok(), "the shard is made for the rule");
            start.elapsed()
        })));
        limits.push(gb_s(pass_s(least, || state.limit(crew.threads()))));
    }
    let of_limit = ours.iter().zip(&limits).map(|(ours, limit)| ours / limit);
    let of_limit = Spread::of(of_limit).median;
    let (gb_s, limit_gb_s) = (Spread::of(ours), Spread::of(limits));
    Line {
        op: rule.name(),
        format: state.format().name(),
        params: state.params(),
        threads: crew.threads(),
        bytes_per_param: state.bytes_per_param(),
        ms: bytes / gb_s.median / 1e6,
        mparams_s: gb_s.median * 1e3 / state.bytes_per_param() as f64,
        gb_s,
        limit_gb_s,
        of_limit,
    }
}

/// The median time of a pass, over as many as fit, after one that is not counted.
fn pass_s(least: Duration, mut pass: impl FnMut() -> Duration) -> f64 {
    pass();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.is_empty() || start.elapsed() < least {
        times.push(pass().as_secs_f64());
    }
    Spread::of(times).median
}

fn row(cells: &[String; 11]) -> String {
    let [rule, format, params, threads, bytes, ms, rate, gb_s, range, limit, of_limit] = cells;
    format!(
        "{rule:>6} {format:>12} {params:>7} {threads:>7} {bytes:>7} {ms:>9} {rate:>9} {gb_s:>7} \
         {range:>14} {limit:>7} {of_limit:>8}"
    )
}

impl Record for Line {
    fn row(&self) -> String {
        row(&[
            self.op.to_owned(),
            self.format.to_owned(),
            size::show(self.params),
            self.threads.to_string(),
            self.bytes_per_param.to_string(),
            format!("{:.3}", self.ms),
            format!("{:.0}", self.mparams_s),
            format!("{:.1}", self.gb_s.median),
            format!("{:.1}..{:.1}", self.gb_s.least, self.gb_s.most),
            format!("{:.1}", self.limit_gb_s.median),
            format!("{:.3}", self.of_limit),
        ])
    }

    fn series(&self) -> String {
        format!("{} {}, {} threads", self.op, self.format, self.threads)
    }

    fn point(&self) -> (usize, [f64; 2]) {
        (self.params * self.bytes_per_param, [self.ms * 1e3, self.gb_s.median])
    }
}
