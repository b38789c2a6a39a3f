//! `brigade offload plan`: from a model and three budgets to what lives where, or what is missing.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use brigade_bench::{offload, size};
use brigade_offload::plan::{
    Budgets, Drive, Model, Number, Optimizer, Plan, Rate, Rates, Refusal, plan as planned,
};
use brigade_offload::storage::write_whole;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde_json::{Value, json};

use crate::outputs;

/// Say what of a model's state lives where, what a step moves, and how long it takes.
#[derive(clap::Args)]
#[command(after_help = "\
Three inputs decide: the bytes that one rank may use of its device, the bytes it may use of its
host, and the folders where files may lie. Ranks that share a machine share its memory and drives:
give each its part. Everything else follows, and is printed: what lives in which tier, the buffers,
the bytes that each link carries in a step, the time, and how long the drives will last.

A folder that exists is measured, with a file of 256 MiB that is gone afterwards, and its free
room is its budget; of one that is not there both are assumed. Rates behind a folder are taken as
given: DIR=READ/WRITE in GB/s, or DIR=READ/WRITE/BOTH, where BOTH is what the drive moves when it
reads and writes at once. Rates that nobody gave or measured are marked as assumed.

When it does not fit, the table says what each budget would have to be, and the exit code is 1.

Examples:
  brigade offload plan --params 7B --device 24G --host 64G --path /mnt/nvme
  brigade offload plan --params 70B --device 80G --host 200G --ranks 8 --tokens 65536 \\
      --path /mnt/a=6.5/4.5 --path /mnt/b=6.5/4.5 --tbw 1200 --tflops 400
  brigade offload plan --layers 12 --width 768 --vocab 50257 --context 1024 --device 0 --host 3G")]
#[command(
    group = clap::ArgGroup::new("model").required(true).args(["params", "layers"]),
    override_usage = "brigade offload plan [OPTIONS] --device <BYTES> --host <BYTES> \
                      <--params <N>|--layers <N>>"
)]
pub(crate) struct Args {
    /// Parameters, such as 7B or 124M: a transformer of usual proportions
    #[arg(long, value_name = "N", value_parser = parse_count)]
    params: Option<u64>,
    /// Layers of a transformer, instead of --params
    #[arg(long, value_name = "N", requires = "width")]
    layers: Option<u64>,
    /// Width of its layers
    #[arg(long, value_name = "N", requires = "layers", conflicts_with = "params")]
    width: Option<u64>,
    /// Its vocabulary
    #[arg(long, value_name = "N", default_value_t = 32_768)]
    vocab: u64,
    /// Tokens of a sequence, the least that passes at once
    #[arg(long, value_name = "N", default_value_t = 2048)]
    context: u64,
    /// Budget of the device, such as 24G; 0: none, and the host computes
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    device: usize,
    /// Budget of the host, such as 64G
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    host: usize,
    /// A folder on a drive; may be given several times, each on a file system of its own
    #[arg(long = "path", value_name = "DIR[=READ/WRITE]",
          value_parser = OsStringValueParser::new().try_map(|text| parse_place(&text)))]
    places: Vec<Place>,
    /// Ranks that divide the state among them
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    ranks: u64,
    /// Tokens of one rank in a step
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    tokens: u64,
    /// adamw, adam, lamb, lion, lars, momentum or sgd
    #[arg(long, value_name = "NAME", default_value = "adamw", value_parser = parse_optimizer)]
    optimizer: Optimizer,
    /// What the passes compute with: f32, bf16 or f16
    #[arg(long, value_name = "TYPE", default_value = "bf16", value_parser = parse_number)]
    weights: Number,
    /// What gradients are kept as [default: as the weights]
    #[arg(long, value_name = "TYPE", value_parser = parse_number)]
    gradients: Option<Number>,
    /// What the optimizer's moments are kept as
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = parse_number)]
    moments: Number,
    /// Keep no exact weights in f32 beside narrow ones
    #[arg(long)]
    no_master: bool,
    /// GB/s between host and device, each way
    #[arg(long, value_name = "GB/S", value_parser = parse_rate)]
    link: Option<f64>,
    /// GB/s of memory that the host's update reads and writes
    #[arg(long, value_name = "GB/S", value_parser = parse_rate)]
    update: Option<f64>,
    /// TFLOP/s that the passes reach when nothing is waited for
    #[arg(long, value_name = "TFLOP/S", value_parser = parse_rate)]
    tflops: Option<f64>,
    /// TB that the maker of each drive stands for being written
    #[arg(long, value_name = "TB", value_parser = parse_rate)]
    tbw: Option<f64>,
    /// Write JSON, one object, to FILE; `-`: to stdout, the table to stderr
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A folder, with the rates that the user gives for it.
#[derive(Clone, Debug, PartialEq)]
struct Place {
    path: PathBuf,
    rates: Option<(f64, f64, Option<f64>)>,
}

/// Rates of a usual drive (PCIe 3) in GB/s, for one that cannot be measured.
const ASSUMED_READ: f64 = 3.2;
const ASSUMED_WRITE: f64 = 2.5;

/// Plan, and print what came of it.
pub(crate) fn plan(args: &Args) -> ExitCode {
    if let Err(problem) = outputs::check_files(args.json.as_ref(), []) {
        return refuse(&problem);
    }
    if let Err(problem) = refuse_twins(&args.places) {
        return refuse(&problem);
    }
    let drives = match args.places.iter().map(|place| drive(place, args.tbw)).collect() {
        Ok(drives) => drives,
        Err(problem) => return refuse(&problem),
    };
    let budgets =
        Budgets { device_bytes: args.device as u64, host_bytes: args.host as u64, drives };
    let result = planned(&model(args), &budgets, &rates(args));
    if let Err(Refusal::Input(problem)) = &result {
        return refuse(problem);
    }
    if let Ok(plan) = &result
        && let planned = plan.micro_batches().saturating_mul(plan.micro_tokens)
        && planned != args.tokens
    {
        let (tokens, context) = (args.tokens, args.context);
        eprintln!(
            "brigade offload plan: --tokens {tokens} are no whole passes of --context {context}: \
             {planned} are planned for"
        );
    }
    let text = match &result {
        Ok(plan) => plan.to_string(),
        Err(refusal) => refusal.to_string(),
    };
    match write(args.json.as_deref(), &text, &json_of(&result)) {
        Ok(()) if result.is_ok() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            let json = args.json.as_deref().filter(|path| *path != Path::new("-"));
            let target = json.map_or("the plan".into(), |path| path.display().to_string());
            eprintln!("brigade offload plan: cannot write {target}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Refuse two folders of one file system: its room and its rates would count twice.
fn refuse_twins(places: &[Place]) -> Result<(), String> {
    let mut seen: HashMap<u64, &Path> = HashMap::new();
    for Place { path, .. } in places {
        let Ok(found) = path.metadata() else { continue };
        if let Some(other) = seen.insert(found.dev(), path) {
            let (one, other) = (path.display(), other.display());
            return Err(format!(
                "--path: {one} is on the same file system as {other}, whose room and rates would \
                 count twice; name one of them"
            ));
        }
    }
    Ok(())
}

fn model(args: &Args) -> Model {
    let shape = match (args.params, args.layers, args.width) {
        (Some(params), ..) => {
            Model { vocab: args.vocab, context: args.context, ..Model::of_size(params) }
        }
        (None, layers, width) => Model::transformer(
            layers.unwrap_or_default(),
            width.unwrap_or_default(),
            args.vocab,
            args.context,
        ),
    };
    let has_master = args.weights != Number::F32 && !args.no_master;
    Model {
        tokens: args.tokens,
        shards: args.ranks,
        optimizer: args.optimizer,
        weights: args.weights,
        gradients: args.gradients.unwrap_or(args.weights),
        master: has_master.then_some(Number::F32),
        moments: args.moments,
        ..shape
    }
}

fn rates(args: &Args) -> Rates {
    let Rates { link, update, peak } = Rates::assumed(args.device > 0);
    let or = |given: Option<f64>, assumed| given.map_or(assumed, Rate::given);
    Rates {
        link: or(args.link, link),
        update: or(args.update, update),
        peak: or(args.tflops, peak),
    }
}

/// A drive with its rates: given, or measured where the folder exists, or assumed.
fn drive(place: &Place, endurance_tb: Option<f64>) -> Result<Drive, String> {
    let name = place.path.display().to_string();
    let is_there = place.path.is_dir();
    if !is_there && place.path.exists() {
        return Err(format!("--path: {name} is no folder; name the folder that files shall be in"));
    }
    // Before measuring, whose file is not gone from every file system at once.
    let free = offload::free_bytes(&place.path);
    let mut drive = match place.rates {
        Some((read, write, both)) => {
            Drive { both, ..Drive::new(name, Rate::given(read), Rate::given(write)) }
        }
        None if is_there => {
            eprintln!("measuring {name} ...");
            let found = offload::measure(&place.path)
                .map_err(|error| format!("{error}; {name}=READ/WRITE needs no measuring"))?;
            if !found.is_direct {
                return Err(format!(
                    "--path: {name} takes nothing past the page cache of the system, whose rates \
                     would be measured in place of the drive's: say {name}=READ/WRITE, in GB/s"
                ));
            }
            let (read, write) = (Rate::measured(found.read), Rate::measured(found.write));
            Drive { both: Some(found.both), ..Drive::new(name, read, write) }
        }
        None => {
            eprintln!(
                "brigade offload plan: there is no folder {name} here: its room and rates are \
                 assumed; make it, to have it measured, or say {name}=READ/WRITE"
            );
            Drive::new(name, Rate::assumed(ASSUMED_READ), Rate::assumed(ASSUMED_WRITE))
        }
    };
    if let Some(free) = free.filter(|_| is_there) {
        drive.capacity_bytes = free;
    }
    drive.endurance_tb = endurance_tb;
    Ok(drive)
}

fn json_of(result: &Result<Plan, Refusal>) -> Value {
    match result {
        Ok(plan) => json!({
            "fits": true,
            "step_s": plan.step.seconds(),
            "efficiency": plan.efficiency(),
            "tokens_for_90_percent": plan.tokens_for(0.9),
            "device_bytes": plan.tier_bytes(brigade_offload::plan::Tier::Device),
            "host_bytes": plan.host_bytes(),
            "written_bytes_per_day": plan.written_per_day(),
            "drive_years": plan.years(),
            "plan": plan,
        }),
        Err(Refusal::DoesNotFit(shortage)) => json!({ "fits": false, "shortage": shortage }),
        Err(Refusal::Input(problem)) => json!({ "fits": false, "error": problem }),
    }
}

fn write(target: Option<&Path>, text: &str, value: &Value) -> io::Result<()> {
    match target {
        None => writeln!(io::stdout(), "{text}"),
        Some(path) if path == Path::new("-") => {
            writeln!(io::stderr(), "{text}")?;
            writeln!(io::stdout(), "{value}")
        }
        Some(path) => {
            write_whole(path, format!("{value}\n"))?;
            writeln!(io::stdout(), "{text}")
        }
    }
}

fn refuse(problem: &str) -> ExitCode {
    eprintln!("brigade offload plan: {problem}");
    ExitCode::from(2)
}

/// `7B`, `1.5B`, `124M`, or plain digits.
fn parse_count(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no number of parameters; write 124M, 1.5B or plain digits");
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'b' | 'B')) => (&text[..at], 1e9),
        Some((at, 't' | 'T')) => (&text[..at], 1e12),
        _ => return text.parse().map_err(|_| wrong()),
    };
    let number: f64 = digits.parse().map_err(|_| wrong())?;
    let count = (number * unit).round();
    if (1.0..1e18).contains(&count) { Ok(count as u64) } else { Err(wrong()) }
}

/// What is above zero, such as `6.5`.
fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if rate > 0.0 && f64::is_finite(rate) => Ok(rate),
        _ => Err(format!("{text:?} is no number above zero")),
    }
}

/// `DIR`, `DIR=READ/WRITE` or `DIR=READ/WRITE/BOTH`.
fn parse_place(text: &OsStr) -> Result<Place, String> {
    let wrong = || format!("{text:?}: write DIR, DIR=READ/WRITE or DIR=READ/WRITE/BOTH in GB/s");
    // A path may have any bytes.
    let bytes = text.as_bytes();
    let at = bytes.iter().rposition(|byte| *byte == b'=');
    let path = PathBuf::from(OsStr::from_bytes(&bytes[..at.unwrap_or(bytes.len())]));
    if path.as_os_str().is_empty() {
        return Err(wrong());
    }
    let Some(at) = at else { return Ok(Place { path, rates: None }) };
    let rates = std::str::from_utf8(&bytes[at + 1..]).map_err(|_| wrong())?;
    let rates: Result<Vec<f64>, _> = rates.split('/').map(str::parse).collect();
    let rates = match rates.map_err(|_| wrong())?[..] {
        [read, write] => (read, write, None),
        [read, write, both] => (read, write, Some(both)),
        _ => return Err(wrong()),
    };
    Ok(Place { path, rates: Some(rates) })
}

fn parse_optimizer(text: &str) -> Result<Optimizer, String> {
    let mut all = Optimizer::ALL.into_iter();
    all.find(|optimizer| optimizer.name() == text).ok_or_else(|| {
        let names = Optimizer::ALL.map(Optimizer::name).join(", ");
        format!("{text:?} is none of {names}")
    })
}

fn parse_number(text: &str) -> Result<Number, String> {
    let mut all = [Number::F32, Number::Bf16, Number::F16].into_iter();
    all.find(|number| number.name() == text)
        .ok_or_else(|| format!("{text:?} is none of f32, bf16, f16"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_powers_of_a_thousand() {
        assert_eq!(parse_count("7B"), Ok(7_000_000_000));
        assert_eq!(parse_count("1.5b"), Ok(1_500_000_000));
        assert_eq!(parse_count("124M"), Ok(124_000_000));
        assert_eq!(parse_count("12"), Ok(12));
        for wrong in ["", "B", "7G", "-1B", "0K", "nanB", "1e30B"] {
            assert!(parse_count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_above_zero() {
        assert_eq!(parse_rate("6.5"), Ok(6.5));
        for wrong in ["0", "-1", "nan", "inf", "fast", ""] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn folders_may_carry_their_rates() {
        let place = |text: &str| parse_place(OsStr::new(text));
        let rates = |text| place(text).unwrap().rates;
        assert_eq!(rates("/mnt/nvme"), None);
        assert_eq!(rates("/mnt/nvme=6.5/4.5"), Some((6.5, 4.5, None)));
        assert_eq!(rates("/mnt/a=b=3/2/4"), Some((3.0, 2.0, Some(4.0))));
        for wrong in ["", "=1/1", "/mnt=", "/mnt=3", "/mnt=1/2/3/4", "/mnt=fast/slow"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
        let strange = parse_place(OsStr::from_bytes(b"/mnt/\xff=1/2")).unwrap();
        assert_eq!(strange.path.as_os_str().as_bytes(), b"/mnt/\xff");
        assert_eq!(strange.rates, Some((1.0, 2.0, None)));
    }
}
