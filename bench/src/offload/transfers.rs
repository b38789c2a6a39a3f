//! `brigade offload bench transfers`: pinned buffers to a GPU and back, against long pinned copies.

use std::time::Duration;

use brigade_offload::device::{Crossing, Rates};
use serde::Serialize;

use super::Failure;
use super::report::{Record, Report, Reporting, Spread};
use crate::size;

/// Time buffers that cross to a GPU and back.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
Buffers lie in an arena that is pinned where it is, three on their way in each direction. `limit` is
what long copies of pinned memory reach on the same link, taken in turn; `of limit` the median over
the turns. Of both directions at once, rates are sums. Sizes are in powers of 1024.

Examples:
  brigade offload bench transfers --bytes 1M,16M,64M
  brigade offload bench transfers --device 1 --json transfers.jsonl --plot transfers.svg")]
pub struct Args {
    /// Bytes of a buffer, separated by commas
    #[arg(long, value_name = "SIZES", default_value = "1M,16M", value_delimiter = ',',
          value_parser = size::parse)]
    pub bytes: Vec<usize>,
    /// Number of the device
    #[arg(long, default_value_t = 0)]
    pub device: u32,
    /// Milliseconds of one measurement, at least
    #[arg(long, value_name = "MS", default_value_t = 200)]
    pub least: u64,
    /// How often, and where the numbers go.
    #[command(flatten)]
    pub reporting: Reporting,
}

/// One line of `--json`. Scripts rely on these names.
#[derive(Debug, Serialize)]
struct Line {
    op: &'static str,
    bytes: usize,
    gb_s: Spread,
    limit_gb_s: Spread,
    of_limit: f64,
}

const PANELS: [&str; 2] = ["time of a buffer, median (us)", "bandwidth (GB/s)"];
const WAYS: [(&str, Crossing); 3] =
    [("up", Crossing::Up), ("down", Crossing::Down), ("both", Crossing::Both)];

/// Measure, and print.
pub fn run(args: &Args) -> Result<(), Failure> {
    let device = |problem: brigade_offload::device::Problem| Failure::Usage(problem.to_string());
    let title = "buffers between host and device";
    let mut report = Report::new(title, PANELS, &args.reporting);
    let mut has_head = false;
    for &bytes in &args.bytes {
        if !(1..=1 << 32).contains(&bytes) {
            return Err(Failure::Usage(String::from("--bytes: sizes from 1 to 4G are wanted")));
        }
        let mut rates = Rates::new(args.device, bytes).map_err(device)?;
        if !std::mem::replace(&mut has_head, true) {
            let method = format!(
                "method: {} of at least {} ms each, limits in between; medians, with the \
                 range",
                args.reporting.turns(),
                args.least
            );
            let columns = ["way", "bytes", "GB/s", "range", "limit", "of limit"];
            report.head(&[rates.describe(), method], &row(&columns.map(String::from)))?;
        }
        for (op, crossing) in WAYS {
            let least = Duration::from_millis(args.least);
            let (mut ours, mut limits) = (Vec::new(), Vec::new());
            for _ in 0..args.reporting.turns {
                limits.push(rates.limit(crossing, least).map_err(device)?);
                ours.push(rates.buffers(crossing, least).map_err(device)?);
            }
            let of_limit = ours.iter().zip(&limits).map(|(ours, limit)| ours / limit);
            let of_limit = Spread::of(of_limit).median;
            let (gb_s, limit_gb_s) = (Spread::of(ours), Spread::of(limits));
            report.add(&Line { op, bytes, gb_s, limit_gb_s, of_limit })?;
        }
    }
    report.finish()
}

fn row(cells: &[String; 6]) -> String {
    let [way, bytes, gb_s, range, limit, of_limit] = cells;
    format!("{way:>5} {bytes:>8} {gb_s:>7} {range:>14} {limit:>7} {of_limit:>8}")
}

impl Record for Line {
    fn row(&self) -> String {
        let Line { op, bytes, gb_s, limit_gb_s, of_limit } = self;
        row(&[
            (*op).to_owned(),
            size::show(*bytes),
            format!("{:.2}", gb_s.median),
            format!("{:.2}-{:.2}", gb_s.least, gb_s.most),
            format!("{:.2}", limit_gb_s.median),
            format!("{of_limit:.3}"),
        ])
    }

    fn series(&self) -> String {
        self.op.to_owned()
    }

    fn point(&self) -> (usize, [f64; 2]) {
        let gb_s = self.gb_s.median;
        (self.bytes, [self.bytes as f64 / gb_s / 1e3, gb_s])
    }
}
