//! `brigade offload bench direct`: a drive and a GPU's memory, by GPUDirect Storage beside pinned
//! memory of the host.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use brigade_cuda::{Context, Cuda, DeviceMemory, Stream};
use brigade_offload::device::{DeviceFile, DeviceFiles, FileMemory, FileSettings, Part, Way};
use brigade_offload::device::{FileProblem, Problem};
use serde::Serialize;

use super::Failure;
use super::report::{Record, Report, Reporting, Spread};
use super::rig::create;
use crate::size;

/// Time files that a GPU reads and writes.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "\
`direct` is GPUDirect Storage (cuFile), `pinned` goes through pinned memory of the host; `ratio` is
direct over pinned, the median over the turns, which are taken in turn. What `brigade doctor` says
under GPU is needed for `direct`, and a drive and file system that cuFile takes; without it the
column is empty and the reason is told. cuFile's compatibility mode, which goes through the host as
well, is never timed as direct. --plot draws the direct way where there is one. Sizes are in powers
of 1024.

Examples:
  brigade offload bench direct --path /mnt/nvme --bytes 64K,1M --depth 32
  brigade offload bench direct --path /mnt/nvme --json direct.jsonl --plot direct.svg")]
pub struct Args {
    /// A folder on the drive; two files of --file bytes without a name are made there
    #[arg(long, value_name = "DIR")]
    pub path: PathBuf,
    /// Bytes of a transfer, multiples of 4K, separated by commas
    #[arg(long, value_name = "SIZES", default_value = "1M,4M,16M", value_delimiter = ',',
          value_parser = size::parse)]
    pub bytes: Vec<usize>,
    /// Bytes of the file
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size::parse)]
    pub file: usize,
    /// Transfers on their way
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub depth: u32,
    /// Number of the device
    #[arg(long, default_value_t = 0)]
    pub device: u32,
    /// Milliseconds of one measurement, at least
    #[arg(long, value_name = "MS", default_value_t = 400)]
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
    direct_gb_s: Option<Spread>,
    pinned_gb_s: Spread,
    ratio: Option<f64>,
    why_not: Option<String>,
    /// Whether the head does not say so.
    #[serde(skip)]
    is_news: bool,
}

const PANELS: [&str; 2] = ["time of a transfer, median (us)", "bandwidth (GB/s)"];
/// Bytes of the device's memory, at least as many as are on their way.
const MEMORY_BYTES: usize = 64 << 20;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Write,
    Read,
}

impl Op {
    fn name(self) -> &'static str {
        if self == Op::Read { "read" } else { "write" }
    }
}

/// A file without a name, memory, and what moves bytes between them, one way.
struct Side {
    files: DeviceFiles,
    file: DeviceFile,
    memory: FileMemory,
    stream: Stream,
}

impl Side {
    fn new(args: &Args, piece_bytes: usize, direct: bool) -> Result<Side, Failure> {
        let context =
            context(args.device).map_err(|problem| Failure::Usage(problem.to_string()))?;
        let settings = FileSettings { piece_bytes, pieces: args.depth as usize, direct };
        let files = DeviceFiles::new(&context, settings)?;
        let (file, _) = create(files.storage(), &args.path, args.file as u64)?;
        let most = MEMORY_BYTES.max(args.depth as usize * piece_bytes);
        let bytes = most.min(args.file) / piece_bytes * piece_bytes;
        let memory = DeviceMemory::new(&context, bytes).map_err(FileProblem::from)?;
        let memory = files.memory(memory);
        let (file, stream) = (files.file(file), Stream::new(&context).map_err(FileProblem::from)?);
        Ok(Side { files, file, memory, stream })
    }

    /// GB/s of parts as long as the memory, over the file again and again.
    fn rate(&mut self, op: Op, least: Duration) -> Result<f64, Failure> {
        let bytes = self.memory.memory().bytes();
        let in_file = self.file.file().bytes() / bytes as u64;
        let (begun, mut count) = (Instant::now(), 0);
        while count == 0 || begun.elapsed() < least {
            let part = Part { offset: count % in_file * bytes as u64, at: 0, bytes };
            let (file, memory, after) = (&mut self.file, &mut self.memory, &self.stream);
            match op {
                Op::Read => self.files.read(file, memory, part, after),
                Op::Write => self.files.write(file, memory, part, after),
            }?;
            count += 1;
        }
        Ok((count * bytes as u64) as f64 / begun.elapsed().as_secs_f64() / 1e9)
    }

    /// All of the file once, so that it has its blocks and every byte of it is one's own.
    fn fill(&mut self) -> Result<(), Failure> {
        let bytes = self.memory.memory().bytes();
        for offset in (0..self.file.file().bytes()).step_by(bytes) {
            let bytes = bytes.min((self.file.file().bytes() - offset) as usize);
            let part = Part { offset, at: 0, bytes };
            self.files.write(&mut self.file, &self.memory, part, &self.stream)?;
        }
        Ok(())
    }

    /// Why it does not go straight, if it does not.
    fn why_not(&self) -> Option<String> {
        match self.file.way() {
            Way::Direct => None,
            Way::Staged { why } => Some(why.to_owned()),
        }
    }
}

fn context(device: u32) -> Result<Context, Problem> {
    Context::new(&Cuda::load()?.device(device)?)
}

/// Measure, and print.
pub fn run(args: &Args) -> Result<(), Failure> {
    for bytes in &args.bytes {
        if !(4096..=1 << 30).contains(bytes) || !bytes.is_multiple_of(4096) {
            let wanted = "--bytes: multiples of 4K from 4K to 1G are wanted";
            return Err(Failure::Usage(String::from(wanted)));
        }
    }
    let longest = args.bytes.iter().max().copied().unwrap_or(0);
    if args.file < longest {
        let longest = size::show(longest);
        return Err(Failure::Usage(format!("--file: {longest} is the least for these --bytes")));
    }
    let title = "files and memory of a device";
    let mut report = Report::new(title, PANELS, &args.reporting);
    let mut has_head = false;
    for &bytes in &args.bytes {
        let mut sides = [Side::new(args, bytes, true)?, Side::new(args, bytes, false)?];
        sides.iter_mut().try_for_each(Side::fill)?;
        if !std::mem::replace(&mut has_head, true) {
            let columns = ["way", "bytes", "direct", "range", "pinned", "range", "ratio"];
            report.head(&facts(args, &sides[0]), &row(&columns.map(String::from)))?;
        }
        for op in [Op::Write, Op::Read] {
            let line = measure(args, bytes, op, &mut sides)?;
            report.add(&line)?;
        }
    }
    report.finish()
}

fn facts(args: &Args, straight: &Side) -> [String; 4] {
    let device = &straight.memory.memory().context().device().name;
    let storage = straight.files.describe();
    let way = match straight.memory.copied() {
        Some(why) => format!("{}, by a copy on the device ({why})", straight.file.way()),
        None => straight.file.way().to_string(),
    };
    let (Args { least, depth, .. }, turns) = (args, args.reporting.turns());
    let method = format!(
        "method: {turns} of at least {least} ms each, {depth} transfers on their way; \
         medians in GB/s, with the range"
    );
    [format!("device: {device}"), format!("storage: {storage}"), format!("way: {way}"), method]
}

fn measure(args: &Args, bytes: usize, op: Op, sides: &mut [Side; 2]) -> Result<Line, Failure> {
    let least = Duration::from_millis(args.least);
    let [straight, staged] = sides;
    let (mut direct, mut pinned) = (Vec::new(), Vec::new());
    let began_direct = straight.why_not().is_none();
    for _ in 0..args.reporting.turns {
        if straight.why_not().is_none() {
            direct.push(straight.rate(op, least)?);
        }
        pinned.push(staged.rate(op, least)?);
    }
    // What failed on its way went through the host: those numbers are not of GPUDirect.
    let why_not = straight.why_not();
    let is_direct = why_not.is_none();
    let ratio = direct.iter().zip(&pinned).map(|(direct, pinned)| direct / pinned);
    let ratio = is_direct.then(|| Spread::of(ratio).median);
    let direct_gb_s = is_direct.then(|| Spread::of(direct));
    let pinned_gb_s = Spread::of(pinned);
    let (op, is_news) = (op.name(), began_direct && !is_direct);
    Ok(Line { op, bytes, direct_gb_s, pinned_gb_s, ratio, why_not, is_news })
}

fn row(cells: &[String; 7]) -> String {
    let [way, bytes, direct, range, pinned, other_range, ratio] = cells;
    format!("{way:>5} {bytes:>8} {direct:>7} {range:>14} {pinned:>7} {other_range:>14} {ratio:>6}")
}

impl Record for Line {
    fn row(&self) -> String {
        let of = |spread: &Spread| {
            let range = format!("{:.2}-{:.2}", spread.least, spread.most);
            [format!("{:.2}", spread.median), range]
        };
        let none = || [String::from("-"), String::from("-")];
        let [direct, range] = self.direct_gb_s.as_ref().map_or_else(none, of);
        let [pinned, other_range] = of(&self.pinned_gb_s);
        let ratio = self.ratio.map_or(String::from("-"), |ratio| format!("{ratio:.2}"));
        let (way, bytes) = (self.op.to_owned(), size::show(self.bytes));
        let row = row(&[way, bytes, direct, range, pinned, other_range, ratio]);
        match &self.why_not {
            Some(why) if self.is_news => format!("{row}  not direct: {why}"),
            _ => row,
        }
    }

    fn series(&self) -> String {
        let way = if self.direct_gb_s.is_some() { "direct" } else { "pinned" };
        format!("{}, {way}", self.op)
    }

    fn point(&self) -> (usize, [f64; 2]) {
        let gb_s = self.direct_gb_s.as_ref().unwrap_or(&self.pinned_gb_s).median;
        (self.bytes, [self.bytes as f64 / gb_s / 1e3, gb_s])
    }
}
