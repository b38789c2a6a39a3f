//! `brigade offload`: plan what lives where, and measure what a plan rests on.

mod plan;

use std::process::ExitCode;

/// Train what does not fit: plan the tiers of memory, measure drives and updates.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Plan(Box<plan::Args>),
}

/// Do what is asked; the exit code is 1 when a model does not fit, 2 when nothing could be begun.
pub(crate) fn offload(command: &Command) -> ExitCode {
    match command {
        Command::Plan(args) => plan::plan(args),
    }
}
