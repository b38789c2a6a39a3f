//! `brigade offload`: plan what lives where, and measure what a plan rests on.

mod plan;

use std::process::ExitCode;

use brigade_bench::offload as bench;
use brigade_offload::memory::{Arena, Budget};
use brigade_offload::storage::{Settings, Storage};

use crate::findings::{Verdict, line};
use crate::outputs;

/// Train what does not fit: plan the tiers of memory, measure drives and updates.
#[derive(clap::Subcommand)]
#[command(after_help = "\
Examples:
  brigade offload plan --params 7B --device 24G --host 64G --path /mnt/nvme
  brigade offload bench storage --path /mnt/nvme
  brigade offload bench step --simulate 6.5/4.5 --format mixed")]
pub(crate) enum Command {
    Plan(Box<plan::Args>),
    /// Measure what a plan rests on: drives and updates
    #[command(subcommand)]
    Bench(Box<bench::Command>),
}

/// Do what is asked; the exit code is 1 when a model does not fit, 2 when nothing could be begun.
pub(crate) fn offload(command: &Command) -> ExitCode {
    match command {
        Command::Plan(args) => plan::plan(args),
        Command::Bench(command) => measure(command),
    }
}

/// The doctor's lines: which pages buffers get here, and what moves bytes between them and files.
pub(crate) fn print_memory_and_storage(verdict: &mut Verdict) {
    println!("\noffload");
    let arena = match Arena::new(Budget::new(8 << 20)) {
        Ok(arena) => arena,
        Err(error) => {
            verdict.lacks("offload", &error.to_string());
            return line("memory", format_args!("none: {error}"));
        }
    };
    line("memory", arena.describe());
    match Storage::new(&arena, Settings::default()) {
        Ok(storage) => {
            verdict.works("state in the host's memory and in files");
            line("storage", storage.describe());
        }
        Err(error) => {
            verdict.lacks("state in files", &error.to_string());
            line("storage", format_args!("none: {error}"));
        }
    }
}

fn measure(command: &bench::Command) -> ExitCode {
    let (json, plot) = command.outputs();
    if let Err(problem) = outputs::check_files(json, plot) {
        eprintln!("brigade offload bench: {problem}");
        return ExitCode::from(2);
    }
    match bench::run(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("brigade offload bench: {failure}");
            if failure.is_refusal() { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}
