//! `brigade offload plan`: from a model and three budgets to what lives where, or what is missing.

mod flags;

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use brigade_bench::offload;
use brigade_offload::plan::{
    Budgets, Drive, Model, Number, Optimizer, Plan, Rate, Rates, Refusal, plan as planned,
};
use brigade_offload::storage::write_whole;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde_json::{Value, json};

use self::flags::{
    Place, parse_budget, parse_count, parse_number, parse_optimizer, parse_place, parse_rate,
};
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
    /// Budget of the device, such as 24G, 1.5T or 640GiB (powers of 1024); 0: none, and the host
    /// computes
    #[arg(long, value_name = "BYTES", value_parser = parse_budget)]
    device: usize,
    /// Budget of the host, such as 64G
    #[arg(long, value_name = "BYTES", value_parser = parse_budget)]
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
            let found = offload::measure(&place.path).map_err(|error| {
                format!("{error}; or give its rates in GB/s: --path {name}=READ/WRITE")
            })?;
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
