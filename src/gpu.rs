//! `brigade gpu`: what `bench/gpu-check` is made of: limits of the device, and every kernel
//! compiled. Hidden from the list of commands, since its output is for that script.

mod found;

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use brigade_bench::cuda::{self, Effort, Row};
use brigade_cuda::nvrtc::{self, Compiler, Source, Usage};
use brigade_cuda::{Cuda, Missing, Result};

use crate::outputs;

pub(crate) use found::print_gpus;

/// How a program says to `bench/gpu-check` that what it is asked for cannot be had here.
const UNAVAILABLE: u8 = 69;

/// Measure a GPU's limits, and compile all kernels.
#[derive(clap::Subcommand)]
#[command(after_help = "\
The exit code is 69, and not 2, where there is no GPU or no compiler: so bench/gpu-check tells what
cannot be had from what failed.")]
pub(crate) enum Command {
    /// Copies, launches, graphs and memory of another process: what everything else is a part of
    Limits {
        /// The device
        #[arg(long, default_value_t = 0)]
        device: u32,
        /// See that everything runs, with little memory
        #[arg(long)]
        quick: bool,
        /// Add a line of JSON for each row
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
    /// Compile every kernel for these architectures; needs NVRTC, but no GPU. One that has local
    /// memory is a failure
    Compile {
        /// Such as sm_80,sm_90
        #[arg(long, value_delimiter = ',', default_value = "sm_80,sm_90")]
        arch: Vec<String>,
        /// Kernels whose name begins so; all without it
        #[arg(long, value_name = "NAME", default_value = "")]
        only: String,
        /// Keep them where programs look for kernels, so that a machine without NVRTC runs them
        #[arg(long)]
        keep: bool,
    },
    /// The second process of `limits`
    #[command(hide = true)]
    Peer {
        /// The device
        device: u32,
        /// How many copies
        turns: usize,
    },
}

/// Do what is asked; the exit code is 69 where there is no GPU, or no compiler.
pub(crate) fn gpu(command: &Command) -> ExitCode {
    match command {
        Command::Limits { device, quick, json } => limits(*device, *quick, json.as_ref()),
        Command::Compile { arch, only, keep } => compile(arch, only, *keep),
        Command::Peer { device, turns } => {
            let copied = cuda::peer(*device, *turns, &mut std::io::stdin().lock());
            end(copied.map(|us| println!("{us}")))
        }
    }
}

/// Every kernel of every crate, with a name for people.
fn sources() -> Vec<(String, Source)> {
    let trainer = brigade_trainer::kernels::cuda::SOURCES;
    let trainer = trainer.map(|source| (source.name.to_owned(), source)).to_vec();
    [cuda::sources(), brigade_comm::device::sources(), trainer].concat()
}

fn limits(device: u32, quick: bool, json: Option<&PathBuf>) -> ExitCode {
    if let Err(problem) = outputs::check_files(None, json) {
        say(problem);
        return ExitCode::from(2);
    }
    let cuda = match Cuda::load() {
        Ok(cuda) => cuda,
        Err(missing) => return unavailable(&missing),
    };
    let effort = if quick { Effort::QUICK } else { Effort::FULL };
    let mut lines = Vec::new();
    let mut wrong = 0;
    let measured = cuda.device(device).and_then(|device| {
        println!("{}, driver for CUDA {}", device.name, cuda.version());
        println!("{:<34} {:>8} {:>11} {:>9}  compared", "what", "bytes", "us", "GB/s");
        cuda::measure(&device, effort, child().as_deref(), &mut |row| {
            wrong += u32::from(row.right == Some(false));
            print(row);
            lines.extend(row.json());
        })
    });
    if let Some(path) = json
        && let Err(error) = append(path, &lines)
    {
        say(format_args!("cannot write {}: {error}", path.display()));
        return ExitCode::FAILURE;
    }
    if wrong > 0 {
        println!("{wrong} of these moved wrong bytes");
        return ExitCode::FAILURE;
    }
    end(measured)
}

/// This program, as the second process.
fn child() -> Option<Vec<String>> {
    let program = std::env::current_exe().ok()?.to_str()?.to_owned();
    Some(vec![program, String::from("gpu"), String::from("peer")])
}

fn print(row: &Row) {
    let bytes = match row.bytes {
        0 => String::from("-"),
        bytes => brigade_bench::size::show(bytes),
    };
    let rate = if row.bytes == 0 { String::from("-") } else { format!("{:.1}", row.gb_s) };
    let compared = row.fraction.zip(row.of);
    let compared = compared.map(|(fraction, of)| format!("{fraction:.2} of {of}"));
    let right = match row.right {
        Some(true) => "  right",
        Some(false) => "  WRONG",
        None => "",
    };
    let compared = compared.unwrap_or_default();
    println!("{:<34} {bytes:>8} {:>11.2} {rate:>9}  {compared}{right}", row.what, row.us);
}

fn append(path: &PathBuf, lines: &[String]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    lines.iter().try_for_each(|line| writeln!(file, "{line}"))
}

fn compile(archs: &[String], only: &str, keep: bool) -> ExitCode {
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(missing) => return unavailable(&missing),
    };
    println!("NVRTC {} of {}", compiler.version(), compiler.file());
    let mut sources = sources();
    sources.retain(|(name, _)| name.starts_with(only));
    // What is kept is read again rather than compiled; else that it compiles is the point.
    let made = |source: &Source, arch: &str| match keep {
        true => nvrtc::image(source, arch),
        false => compiler.compile(source, arch).map(Into::into),
    };
    let all: Vec<_> = sources.iter().flat_map(|one| archs.iter().map(move |a| (one, a))).collect();
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let most = AtomicU32::new(0);
    let fail = |why: String| {
        failed.fetch_add(1, Relaxed);
        println!("{why}");
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(((name, source), arch)) = all.get(next.fetch_add(1, Relaxed)) {
                    let usage = match made(source, arch) {
                        Ok(image) => nvrtc::usage(&image),
                        Err(error) => {
                            fail(format!("{name}: {error}"));
                            continue;
                        }
                    };
                    let registers = usage.iter().map(|usage| usage.registers).max();
                    most.fetch_max(registers.unwrap_or(0), Relaxed);
                    if let Some(astray) = usage.iter().find(|usage| usage.local_bytes > 0) {
                        fail(format!("{name} for {arch}: {}", in_local_memory(astray)));
                    }
                }
            });
        }
    });
    let (failed, most) = (failed.into_inner(), most.into_inner());
    let (good, archs) = (all.len() - failed, archs.join(", "));
    // Portable code, for what is newer than the compiler, does not tell.
    let most = if most > 0 { format!("; at most {most} registers") } else { String::new() };
    println!("{good} compiled, {failed} failed ({archs}){most}");
    if failed == 0 && !all.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Why a kernel will not do: the first launch of one with more local memory than any before makes a
/// driver wait for all kernels, of which some may wait for the rank that launches.
fn in_local_memory(usage: &Usage) -> String {
    let Usage { kernel, registers, local_bytes } = usage;
    format!("{kernel} has {local_bytes} bytes of local memory beside {registers} registers")
}

fn end(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(error);
            ExitCode::FAILURE
        }
    }
}

fn unavailable(missing: &Missing) -> ExitCode {
    say(format_args!("{missing}; {}", missing.next_step));
    ExitCode::from(UNAVAILABLE)
}

fn say(what: impl Display) {
    eprintln!("brigade gpu: {what}");
}
