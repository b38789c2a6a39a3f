//! `brigade tune`: decide who the ranks are, as `brigade bench` does, and leave the rest to
//! `brigade_bench`.

use std::process::ExitCode;

use brigade_bench::{Failure, TuneArgs};
use brigade_comm::{Communicator, Settings};

use crate::{bench, outputs, run};

/// The name in front of errors.
const NAME: &str = "brigade tune";

/// Tune; the exit code is 2 when nothing could be started.
pub(crate) fn tune(args: &TuneArgs) -> ExitCode {
    let flags = match args.as_bench() {
        Ok(flags) => flags,
        Err(why) => return refused(&why),
    };
    if run::in_a_world() {
        return match bench::join(&flags) {
            Ok(comm) => {
                let checked = bench::check_outputs(&comm, None, &args.output);
                let tuned = checked.and_then(|()| brigade_bench::tune_rank(args, &comm));
                drop(comm);
                bench::end(NAME, tuned)
            }
            Err(error) => {
                bench::say(NAME, &error);
                bench::code_of(&error)
            }
        };
    }
    // What all ranks would refuse is refused once, before there are any.
    let written = || outputs::check_files(None, &args.output).map_err(Failure::Usage);
    let checked = bench::check(&flags).and_then(|settings| written().map(|()| settings));
    let settings = match checked {
        Ok(settings) => settings,
        Err(error) => return refused(&error.to_string()),
    };
    if !brigade_bench::are_threads(&settings) {
        return run::run_self(args.sweep.ranks as usize);
    }
    bench::end(NAME, in_threads(args, &settings))
}

fn in_threads(args: &TuneArgs, settings: &Settings) -> Result<brigade_bench::Verdict, Failure> {
    let world = Communicator::local_world(args.sweep.ranks as usize, settings)?;
    brigade_bench::in_threads(world, |comm| brigade_bench::tune_rank(args, comm))
}

fn refused(why: &str) -> ExitCode {
    bench::say(NAME, why);
    ExitCode::from(2)
}
