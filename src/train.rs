//! `brigade train`: decide who the ranks are, and leave the rest to `brigade_trainer`.

use std::process::ExitCode;

use brigade_comm::launch::Launch;
use brigade_comm::{Communicator, Settings};
use brigade_trainer::Args;

use crate::run;

/// Train; with more than one rank, start them first unless a launcher has.
pub(crate) fn train(args: &Args) -> ExitCode {
    if args.ranks > 1 && !run::in_a_world() {
        return run::run_self(args.ranks);
    }
    match train_rank(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("brigade train: {error}");
            ExitCode::FAILURE
        }
    }
}

fn train_rank(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let comm = match run::in_a_world() {
        true => {
            let mut settings = Settings::from_env()?;
            if args.transport != "auto" {
                settings.set("BRIGADE_TRANSPORT", &args.transport)?;
            }
            Some(Communicator::join(Launch::discover()?, settings)?)
        }
        false => None,
    };
    brigade_trainer::train(args, comm)?;
    Ok(())
}
