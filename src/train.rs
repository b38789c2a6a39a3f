//! `brigade train`: decide who the ranks are, and leave the rest to `brigade_trainer`.

use std::error::Error;
use std::fmt::Display;
use std::io::stdout;
use std::process::ExitCode;

use brigade_comm::launch::Launch;
use brigade_comm::{Communicator, Settings};
use brigade_trainer::Args;

use crate::run;

/// Train; with more than one rank, start them first unless a launcher has.
pub(crate) fn train(args: &Args) -> ExitCode {
    if run::in_a_world() {
        return train_in_world(args);
    }
    // What all ranks would refuse is refused once, before there are any.
    if let Err(error) = brigade_trainer::check(args, args.ranks) {
        return refuse(error);
    }
    let transports = |settings: Settings| match args.ranks {
        1 => Ok(Vec::new()),
        _ => brigade_comm::transports::transports(&settings),
    };
    if let Err(error) = settings(args).and_then(transports) {
        return refuse(error);
    }
    if args.ranks > 1 {
        return run::run_self(args.ranks);
    }
    match brigade_trainer::train(args, None, &mut stdout()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => refuse(error),
    }
}

/// Train as the rank that the environment says we are.
fn train_in_world(args: &Args) -> ExitCode {
    let comm = match join(args) {
        Ok(comm) => comm,
        Err(error) => return refuse(error),
    };
    let rank = comm.rank();
    match brigade_trainer::train(args, Some(comm), &mut stdout()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) if error.is_told_elsewhere(rank) => ExitCode::FAILURE,
        Err(error) => refuse(format!("rank {rank}: {error}")),
    }
}

fn join(args: &Args) -> Result<Communicator, Box<dyn Error>> {
    Ok(Communicator::join(Launch::discover()?, settings(args)?)?)
}

fn settings(args: &Args) -> Result<Settings, brigade_comm::Error> {
    let mut settings = Settings::from_env()?;
    if args.transport != "auto" {
        settings.set("BRIGADE_TRANSPORT", &args.transport)?;
    }
    Ok(settings)
}

/// Say why there is no training, or no more.
fn refuse(error: impl Display) -> ExitCode {
    eprintln!("brigade train: {error}");
    ExitCode::FAILURE
}
