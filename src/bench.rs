//! `brigade bench`: decide who the ranks are, and leave the rest to `brigade_bench`.

use std::process::ExitCode;

use brigade_bench::{Args, Failure, Verdict};
use brigade_comm::Communicator;
use brigade_comm::launch::Launch;
use brigade_comm::transports::transports;

use crate::run;

/// Measure; the exit code is 1 when a checked element was wrong.
pub(crate) fn bench(args: &Args) -> ExitCode {
    // A mistake in the flags is told once, before any rank starts.
    if let Err(error) = args.cases(args.ranks as usize) {
        eprintln!("brigade bench: {error}");
        return ExitCode::from(2);
    }
    let result = if run::in_a_world() {
        run_rank(args)
    } else if args.transport == "loopback" {
        brigade_bench::run_threads(args)
    } else {
        match brigade_bench::settings(args).map(|settings| transports(&settings)) {
            Ok(Ok(_)) => return run::run_self(args.ranks as usize),
            Ok(Err(error)) => Err(error.into()),
            Err(error) => Err(error),
        }
    };
    match result {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong(_)) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("brigade bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_rank(args: &Args) -> Result<Verdict, Failure> {
    let launch = Launch::discover().map_err(|error| Failure::Usage(error.to_string()))?;
    let comm = Communicator::join(launch, brigade_bench::settings(args)?)?;
    brigade_bench::run_rank(args, &comm)
}
