//! `brigade offload bench storage`: how fast a drive reads and writes, in streams and in batches of
//! small tensors, with `fio` beside it where that is wanted.

mod fio;

use std::path::PathBuf;
use std::time::Duration;

use brigade_offload::storage::{EngineChoice, Settings};
use serde::Serialize;

use super::Failure;
use super::report::{Record, Report, Reporting, Spread};
use super::rig::{Direction, Rig, Sample};
use crate::size;
use fio::Fio;

/// Time reads and writes of a drive.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
`stream`: requests of four blocks, one after the other, with more handed in than is in flight.
`batch`: so many tensors of one size, handed in at once and waited for as a whole. GB = 1e9 bytes.
Times are from handing in a request (of a batch: the whole batch) to its end. `sync` is what it
takes after writing until the bytes survive a loss of power.

With --fio each measurement has one of fio beside it, taken in turn: the same file and block size,
O_DIRECT, io_uring, registered buffers, huge pages; `ratio` is ours over fio's, the median over the
turns.

Examples:
  brigade offload bench storage --path /mnt/nvme
  brigade offload bench storage --path /mnt/nvme --fio --json storage.jsonl --plot storage.svg")]
pub struct Args {
    /// A folder on the drive; a file of --bytes is made there, which has no name
    #[arg(long, value_name = "DIR")]
    pub path: PathBuf,
    /// Bytes of the file
    #[arg(long, default_value = "512M", value_parser = size::parse)]
    pub bytes: usize,
    /// Bytes of a transfer
    #[arg(long, default_value = "1M", value_parser = size::parse)]
    pub block: usize,
    /// Transfers in flight
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=128))]
    pub depth: u32,
    /// Sizes of a batch's tensors, with commas [default: of 64K, 256K, 1M and 2M those of which a
    /// batch fits in --bytes]
    #[arg(long, value_name = "SIZES", value_delimiter = ',', value_parser = size::parse)]
    pub tensors: Vec<usize>,
    /// Tensors in a batch
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub batch: u32,
    /// Move bytes by threads, as where io_uring is forbidden
    #[arg(long)]
    pub threads: bool,
    /// Look for completions instead of waiting for interrupts, where the drive can
    #[arg(long)]
    pub poll: bool,
    /// Milliseconds of one measurement, at least
    #[arg(long, value_name = "MS", default_value_t = 400)]
    pub least: u64,
    /// Measure fio beside it
    #[arg(long)]
    pub fio: bool,
    /// How often, and where the numbers go.
    #[command(flatten)]
    pub reporting: Reporting,
}

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    direction: Direction,
    pattern: Pattern,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    Stream { request_bytes: usize },
    Batch { tensor_bytes: usize },
}

/// What the turns found about a case.
#[derive(Default)]
struct Turns {
    ours: Vec<Sample>,
    syncs: Vec<Duration>,
    fio: Vec<fio::Run>,
}

/// One line of `--json`. Scripts rely on these names.
#[derive(Debug, Serialize)]
struct Line {
    op: &'static str,
    pattern: &'static str,
    request_bytes: usize,
    tensors: usize,
    block_bytes: usize,
    depth: u32,
    gb_s: Spread,
    cpu_s_per_gb: f64,
    us_p50: f64,
    us_p99: f64,
    us_max: f64,
    sync_ms: Option<f64>,
    fio_gb_s: Option<Spread>,
    fio_cpu_s_per_gb: Option<f64>,
    over_fio: Option<f64>,
}

/// Sizes of tensors unless some are named.
const TENSORS: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 2 << 20];

/// The longest file, so that what is counted from it stays a number.
const BYTES_MAX: usize = 1 << 60;

const PANELS: [&str; 2] = ["time of a request or batch, median (us)", "bandwidth (GB/s)"];

/// Measure, and print.
pub fn run(args: &Args) -> Result<(), Failure> {
    let cases = cases(args)?;
    let fio = if args.fio { Some(Fio::find()?) } else { None };
    let title = format!("storage at {}", args.path.display());
    let mut report = Report::new(&title, PANELS, &args.reporting);
    let engine = if args.threads { EngineChoice::Threads } else { EngineChoice::Auto };
    let in_flight = args.depth as usize;
    let (block_bytes, is_polled) = (args.block, args.poll);
    let settings = Settings { engine, block_bytes, in_flight, is_polled };
    let memory = memory(args, &cases);
    let mut rig = Rig::new(&args.path, file_bytes(args), settings, memory)?;
    let mut facts = rig.facts().to_vec();
    facts.push(format!(
        "method: a file of {}, {} of at least {} ms each, {:.1} s or more in all; medians, \
         with the range over turns",
        size::show(args.bytes),
        args.reporting.turns(),
        args.least,
        least_s(args, cases.len())
    ));
    facts.extend(fio.as_ref().map(|fio| format!("beside it: {}", fio.describe())));
    report.head(&facts, &columns(fio.is_some()))?;
    // A block that was never written is not read from the drive either.
    rig.stream(&[Direction::Write], 4 * args.block, Duration::ZERO)?;
    let mut turns: Vec<Turns> = cases.iter().map(|_| Turns::default()).collect();
    for _ in 0..args.reporting.turns {
        for (case, turns) in cases.iter().zip(&mut turns) {
            turns.take(args, *case, &mut rig, fio.as_ref())?;
        }
    }
    for (case, turns) in cases.iter().zip(&turns) {
        report.add(&turns.line(args, *case))?;
    }
    report.finish()
}

/// The least that all of it takes: nothing is printed before the last turn.
fn least_s(args: &Args, cases: usize) -> f64 {
    let sides = if args.fio { 2.0 } else { 1.0 };
    sides * cases as f64 * f64::from(args.reporting.turns) * args.least as f64 / 1e3
}

fn cases(args: &Args) -> Result<Vec<Case>, Failure> {
    let usage = |problem: String| Err(Failure::Usage(problem));
    if !args.block.is_multiple_of(4096) || !(4096..=4 << 20).contains(&args.block) {
        let block = size::show(args.block);
        return usage(format!("--block {block}: a multiple of 4K up to 4M is wanted"));
    }
    if args.bytes < 4 * args.block {
        let [bytes, least] = [args.bytes, 4 * args.block].map(size::show);
        return usage(format!("--bytes {bytes}: four blocks are the least, {least}"));
    }
    if args.bytes > BYTES_MAX {
        return usage(format!("--bytes {}: no drive has so many", size::show(args.bytes)));
    }
    let batch_bytes = |tensor: usize| tensor.saturating_mul(args.batch as usize);
    let fits = |tensor: usize| batch_bytes(tensor) <= args.bytes;
    if let Some(tensor) = args.tensors.iter().find(|&&it| it == 0 || !it.is_multiple_of(4096)) {
        return usage(format!("--tensors {}: a multiple of 4K is wanted", size::show(*tensor)));
    }
    if let Some(&tensor) = args.tensors.iter().find(|&&tensor| !fits(tensor)) {
        let [tensor, bytes, wanted] = [tensor, args.bytes, batch_bytes(tensor)].map(size::show);
        return usage(format!(
            "--tensors {tensor}: {} of them do not fit in a file of {bytes}; --bytes {wanted} is \
             the least, or take a smaller --batch",
            args.batch
        ));
    }
    let tensors = match args.tensors.is_empty() {
        true => TENSORS.into_iter().filter(|&tensor| fits(tensor)).collect(),
        false => args.tensors.clone(),
    };
    let stream = Pattern::Stream { request_bytes: 4 * args.block };
    let batches = tensors.iter().map(|&tensor_bytes| Pattern::Batch { tensor_bytes });
    let both =
        |pattern| [Direction::Read, Direction::Write].map(|direction| Case { direction, pattern });
    Ok([stream].into_iter().chain(batches).flat_map(both).collect())
}

/// A whole number of stream requests.
fn file_bytes(args: &Args) -> u64 {
    (args.bytes / (4 * args.block) * (4 * args.block)) as u64
}

/// Memory for the buffers of the largest case, and a little for where they may begin.
fn memory(args: &Args, cases: &[Case]) -> usize {
    let of_case = |case: &Case| match case.pattern {
        Pattern::Stream { request_bytes } => {
            (2 * args.depth as usize * args.block).next_multiple_of(request_bytes) + request_bytes
        }
        Pattern::Batch { tensor_bytes } => args.batch as usize * tensor_bytes,
    };
    let most = cases.iter().map(of_case).max().unwrap_or(0);
    (most + most / 8 + (4 << 20)).next_multiple_of(2 << 20)
}

impl Turns {
    /// One measurement of ours, and one of fio where that is wanted.
    fn take(
        &mut self,
        args: &Args,
        case: Case,
        rig: &mut Rig,
        fio: Option<&Fio>,
    ) -> Result<(), Failure> {
        let least = Duration::from_millis(args.least);
        let direction = case.direction;
        self.ours.push(match case.pattern {
            Pattern::Stream { request_bytes } => rig.stream(&[direction], request_bytes, least)?,
            Pattern::Batch { tensor_bytes } => {
                rig.batches(direction, tensor_bytes, args.batch as usize, least)?
            }
        });
        if direction == Direction::Write {
            self.syncs.push(rig.sync()?);
        }
        if let Some((fio, path)) = fio.zip(rig.path()) {
            let block = match case.pattern {
                Pattern::Stream { .. } => args.block,
                Pattern::Batch { tensor_bytes } => tensor_bytes.min(args.block),
            };
            let bytes = file_bytes(args);
            let is_direct = rig.is_direct();
            let job = fio::Job { direction, path: &path, bytes, block, is_direct };
            self.fio.push(fio.run(&job, args.depth, least)?);
        }
        Ok(())
    }

    fn line(&self, args: &Args, case: Case) -> Line {
        let (pattern, request_bytes, tensors) = match case.pattern {
            Pattern::Stream { request_bytes } => ("stream", request_bytes, 1),
            Pattern::Batch { tensor_bytes } => ("batch", tensor_bytes, args.batch as usize),
        };
        let mut waits: Vec<u64> =
            self.ours.iter().flat_map(|sample| sample.waits_ns.iter().copied()).collect();
        waits.sort_unstable();
        let us = |percent: usize| {
            waits[(waits.len() * percent).div_ceil(100).saturating_sub(1)] as f64 / 1e3
        };
        let has_fio = !self.fio.is_empty();
        let ratios = self.ours.iter().zip(&self.fio).map(|(ours, fio)| ours.gb_s() / fio.gb_s);
        Line {
            op: case.direction.name(),
            pattern,
            request_bytes,
            tensors,
            block_bytes: args.block,
            depth: args.depth,
            gb_s: Spread::of(self.ours.iter().map(Sample::gb_s)),
            cpu_s_per_gb: Spread::of(self.ours.iter().map(Sample::cpu_s_per_gb)).median,
            us_p50: us(50),
            us_p99: us(99),
            us_max: us(100),
            sync_ms: (!self.syncs.is_empty())
                .then(|| Spread::of(self.syncs.iter().map(|sync| sync.as_secs_f64() * 1e3)).median),
            fio_gb_s: has_fio.then(|| Spread::of(self.fio.iter().map(|run| run.gb_s))),
            fio_cpu_s_per_gb: has_fio
                .then(|| Spread::of(self.fio.iter().map(|run| run.cpu_s_per_gb)).median),
            over_fio: has_fio.then(|| Spread::of(ratios).median),
        }
    }
}

fn columns(has_fio: bool) -> String {
    let mut line = format!(
        "{:>6} {:>7} {:>7} {:>7} {:>13} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "op",
        "pattern",
        "size",
        "GB/s",
        "range",
        "cpu s/GB",
        "p50 (us)",
        "p99 (us)",
        "max (us)",
        "sync (ms)"
    );
    if has_fio {
        line.push_str(&format!(" {:>7} {:>13} {:>9} {:>6}", "fio", "range", "cpu s/GB", "ratio"));
    }
    line
}

impl Record for Line {
    fn row(&self) -> String {
        let range = |spread: &Spread| format!("{:.2}..{:.2}", spread.least, spread.most);
        let sync = self.sync_ms.map_or_else(|| String::from("-"), |sync| format!("{sync:.1}"));
        let mut line = format!(
            "{:>6} {:>7} {:>7} {:>7.2} {:>13} {:>9.4} {:>9.1} {:>9.1} {:>9.1} {sync:>9}",
            self.op,
            self.pattern,
            size::show(self.request_bytes),
            self.gb_s.median,
            range(&self.gb_s),
            self.cpu_s_per_gb,
            self.us_p50,
            self.us_p99,
            self.us_max
        );
        let fio = self.fio_gb_s.as_ref().zip(self.fio_cpu_s_per_gb).zip(self.over_fio);
        if let Some(((fio, cpu), over)) = fio {
            let (median, range) = (fio.median, range(fio));
            line.push_str(&format!(" {median:>7.2} {range:>13} {cpu:>9.4} {over:>6.3}"));
        }
        line
    }

    fn series(&self) -> String {
        match self.pattern {
            "stream" => format!("{}, stream", self.op),
            _ => format!("{}, {} tensors at once", self.op, self.tensors),
        }
    }

    fn point(&self) -> (usize, [f64; 2]) {
        (self.request_bytes, [self.us_p50, self.gb_s.median])
    }
}
