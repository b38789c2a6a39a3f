//! `brigade offload bench step`: an update whose state is streamed from a drive and back, against
//! what reading, writing and updating take by themselves.

mod streamed;

use std::path::PathBuf;
use std::time::Duration;

use brigade_offload::optimizer::Crew;
use brigade_offload::storage::Settings;
use brigade_offload::storage::simulated::{Clock, Rates, SimulatedDevice};
use serde::Serialize;

use super::Failure;
use super::optimizer::{Format, Rule};
use super::report::{Record, Report, Reporting, Spread};
use super::rig::{Direction, Rig, stream_bytes};
use crate::size;
use streamed::Streamed;

/// Time updates of state that is streamed from a drive and back.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Weights and moments are in files, gradients and new weights in memory. In each turn the state is
read, written, read and written at once, and updated in memory, each by itself; then comes the
step, which does all of it. `of max` is the longest of reading, writing and updating over the step,
`of both` the same with reading and writing at once, which is the most that a drive allows whose
directions hinder each other. Medians over the turns; formats are those of `bench optimizer`.

With --simulate READ/WRITE (GB/s) the drive is one in memory with exactly these rates.

Examples:
  brigade offload bench step --path /mnt/nvme
  brigade offload bench step --simulate 0.4/0.4 --params 8M --format mixed")]
#[command(group = clap::ArgGroup::new("drive").required(true).args(["path", "simulate"]))]
pub struct Args {
    /// A folder on the drive; its files are gone afterwards
    #[arg(long, value_name = "DIR")]
    pub path: Option<PathBuf>,
    /// Rates of a simulated drive, in GB/s
    #[arg(long, value_name = "READ/WRITE", value_parser = parse_rates)]
    pub simulate: Option<(f64, f64)>,
    /// How many parameters, separated by commas; in powers of 1024
    #[arg(long, value_name = "COUNTS", default_value = "16M", value_delimiter = ',',
          value_parser = size::parse_count)]
    pub params: Vec<usize>,
    /// adamw, adam, sgd (with momentum), lion; separated by commas
    #[arg(long = "rule", value_name = "NAMES", default_value = "adamw", value_delimiter = ',')]
    pub rules: Vec<Rule>,
    /// f32, mixed, bf16-moments; separated by commas
    #[arg(long = "format", value_name = "NAMES", default_value = "mixed", value_delimiter = ',')]
    pub formats: Vec<Format>,
    /// Threads that update [default: as many as there are cores]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// How often, and where the numbers go.
    #[command(flatten)]
    pub reporting: Reporting,
}

/// One line of `--json`. Scripts rely on these names.
#[derive(Debug, Serialize)]
struct Line {
    op: &'static str,
    rule: &'static str,
    format: &'static str,
    params: usize,
    chunks: usize,
    state_bytes: u64,
    read_bytes: u64,
    written_bytes: u64,
    read_s: f64,
    write_s: f64,
    both_s: f64,
    update_s: f64,
    step_s: Spread,
    of_max: f64,
    of_both: f64,
}

/// What one turn found, in seconds.
struct Turn {
    read: f64,
    write: f64,
    both: f64,
    update: f64,
    step: f64,
}

const PANELS: [&str; 2] = ["time of a step, median (us)", "read and written (GB/s)"];
const COLUMNS: [&str; 12] = [
    "rule", "format", "params", "chunks", "read s", "write s", "both s", "update s", "step s",
    "range", "of max", "of both",
];
/// Requests that time the drive by itself are as large as an array of a chunk.
const REQUEST_BYTES: usize = 4 << 20;

/// Measure, and print.
pub fn run(args: &Args) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let threads = args.threads.map_or(cores, |threads| threads as usize);
    let mut crew = Crew::new(threads)
        .map_err(|error| Failure::Usage(format!("{threads} threads cannot be had: {error}")))?;
    let place = match (&args.path, args.simulate) {
        (Some(path), _) => path.display().to_string(),
        (None, Some((read, write))) => format!("a simulated drive of {read}/{write} GB/s"),
        (None, None) => return Err(Failure::Usage(String::from("--path or --simulate is wanted"))),
    };
    let title = format!("streamed updates at {place}");
    let mut report = Report::new(&title, PANELS, &args.reporting);
    let mut is_begun = false;
    for &params in &args.params {
        if !(1..=1 << 40).contains(&params) {
            let params = size::show(params);
            return Err(Failure::Usage(format!("--params {params}: 1 to 1024G are wanted")));
        }
        for &format in &args.formats {
            for &rule in &args.rules {
                let mut rig = rig(args, rule, format, params)?;
                if !is_begun {
                    head(args, &mut report, &rig, threads)?;
                    is_begun = true;
                }
                report.add(&measure(args, &mut rig, (rule, format, params), &mut crew)?)?;
            }
        }
    }
    report.finish()
}

fn rig(args: &Args, rule: Rule, format: Format, params: usize) -> Result<Rig, Failure> {
    let settings = Settings::default();
    let memory = Streamed::memory(rule, format, params) + stream_bytes(&settings, REQUEST_BYTES, 2);
    let memory = memory.next_multiple_of(2 << 20);
    let bytes = Streamed::state_bytes(rule, format, params);
    let bytes = bytes.next_multiple_of(2 * REQUEST_BYTES as u64);
    match (&args.path, args.simulate) {
        (Some(path), _) => Rig::new(path, bytes, settings, memory),
        (None, rates) => {
            let (read, write) = rates.unwrap_or((1.0, 1.0));
            let rates = Rates {
                read_bytes_s: read * 1e9,
                write_bytes_s: write * 1e9,
                clock: Clock::Real,
                ..Rates::default()
            };
            Rig::simulated(&SimulatedDevice::new(rates), bytes, settings, memory)
        }
    }
}

fn head(args: &Args, report: &mut Report, rig: &Rig, threads: usize) -> Result<(), Failure> {
    let mut facts = rig.facts().to_vec();
    facts.push(format!(
        "method: {} of everything, {threads} threads update; medians, with the range",
        args.reporting.turns()
    ));
    report.head(&facts, &row(&COLUMNS.map(String::from)))
}

fn measure(
    args: &Args,
    rig: &mut Rig,
    (rule, format, params): (Rule, Format, usize),
    crew: &mut Crew,
) -> Result<Line, Failure> {
    let state_bytes = Streamed::state_bytes(rule, format, params);
    let mut streamed = Streamed::new(rig, args.path.as_deref(), rule, format, params)?;
    rig.stream(&[Direction::Write], REQUEST_BYTES, Duration::ZERO)?;
    let mut turns = Vec::new();
    for _ in 0..args.reporting.turns {
        let mut alone = |directions: &[Direction], times: f64| -> Result<f64, Failure> {
            let sample = rig.stream(directions, REQUEST_BYTES, Duration::ZERO)?;
            Ok(times * state_bytes as f64 / (sample.gb_s() * 1e9))
        };
        turns.push(Turn {
            read: alone(&[Direction::Read], 1.0)?,
            write: alone(&[Direction::Write], 1.0)?,
            both: alone(&[Direction::Read, Direction::Write], 2.0)?,
            update: streamed.update_alone(crew)?.as_secs_f64(),
            step: streamed.step(crew)?.as_secs_f64(),
        });
    }
    let median = |of: fn(&Turn) -> f64| Spread::of(turns.iter().map(of)).median;
    Ok(Line {
        op: "step",
        rule: rule.name(),
        format: format.name(),
        params,
        chunks: streamed.chunks(),
        state_bytes,
        read_bytes: streamed.moved().read_bytes,
        written_bytes: streamed.moved().written_bytes,
        read_s: median(|turn| turn.read),
        write_s: median(|turn| turn.write),
        both_s: median(|turn| turn.both),
        update_s: median(|turn| turn.update),
        step_s: Spread::of(turns.iter().map(|turn| turn.step)),
        of_max: median(|turn| turn.read.max(turn.write).max(turn.update) / turn.step),
        of_both: median(|turn| turn.both.max(turn.update) / turn.step),
    })
}

fn row(cells: &[String; 12]) -> String {
    let [rule, format, params, chunks, read, write, both, update, step, range, max, of_both] =
        cells;
    format!(
        "{rule:>6} {format:>12} {params:>7} {chunks:>6} {read:>8} {write:>8} {both:>8} \
         {update:>8} {step:>8} {range:>16} {max:>6} {of_both:>7}"
    )
}

fn parse_rates(text: &str) -> Result<(f64, f64), String> {
    let wrong =
        || format!("{text:?}: write READ/WRITE in GB/s, from 0.001 to 1e6, such as 0.4/0.4");
    let (read, write) = text.split_once('/').ok_or_else(wrong)?;
    let rate = |text: &str| {
        let rate = text.parse::<f64>().ok();
        rate.filter(|rate| (1e-3..=1e6).contains(rate)).ok_or_else(wrong)
    };
    Ok((rate(read)?, rate(write)?))
}

impl Record for Line {
    fn row(&self) -> String {
        let seconds = |seconds: f64| format!("{seconds:.3}");
        row(&[
            self.rule.to_owned(),
            self.format.to_owned(),
            size::show(self.params),
            self.chunks.to_string(),
            seconds(self.read_s),
            seconds(self.write_s),
            seconds(self.both_s),
            seconds(self.update_s),
            seconds(self.step_s.median),
            format!("{:.3}..{:.3}", self.step_s.least, self.step_s.most),
            seconds(self.of_max),
            seconds(self.of_both),
        ])
    }

    fn series(&self) -> String {
        format!("{} {}", self.rule, self.format)
    }

    fn point(&self) -> (usize, [f64; 2]) {
        let moved = (self.read_bytes + self.written_bytes) as f64;
        let step_s = self.step_s.median;
        (self.state_bytes as usize, [step_s * 1e6, moved / step_s / 1e9])
    }
}
