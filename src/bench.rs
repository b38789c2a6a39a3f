//! `brigade bench`: decide who the ranks are, and leave the rest to `brigade_bench`.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use brigade_bench::{Args, Failure, Verdict};
use brigade_comm::launch::Launch;
use brigade_comm::{Communicator, Settings};

use crate::{outputs, run, terminal, transports};

/// The name in front of errors.
const NAME: &str = "brigade bench";

/// Measure; the exit code is 1 when a checked element was wrong, 2 when nothing could be started.
pub(crate) fn bench(args: &Args) -> ExitCode {
    if run::in_a_world() {
        return bench_in_world(args);
    }
    // What all ranks would refuse is refused once, before there are any.
    let settings = match check(args) {
        Ok(settings) => settings,
        Err(error) => {
            say(NAME, error);
            return ExitCode::from(2);
        }
    };
    if !brigade_bench::are_threads(&settings) {
        return run::run_self(args.sweep.ranks as usize);
    }
    end(NAME, brigade_bench::run_threads(args))
}

/// Do something else that takes ranks, by the flags of a bench that times the same, as rank of the
/// world that we are in or as all ranks of one. `output`: what rank 0 will write.
pub(crate) fn as_ranks(
    name: &str,
    flags: Result<Args, String>,
    output: &Option<PathBuf>,
    of_rank: impl Fn(&Communicator) -> Result<Verdict, Failure> + Sync,
) -> ExitCode {
    let refused = |why: &dyn Display| {
        say(name, why);
        ExitCode::from(2)
    };
    let flags = match flags {
        Ok(flags) => flags,
        Err(why) => return refused(&why),
    };
    if run::in_a_world() {
        let comm = match join(&flags) {
            Ok(comm) => comm,
            Err(error) => {
                say(name, &error);
                return code_of(&error);
            }
        };
        let done = check_outputs(&comm, None, output).and_then(|()| of_rank(&comm));
        drop(comm);
        return end(name, done);
    }
    // What all ranks would refuse is refused once, before there are any.
    let written = || outputs::check_files(None, output).map_err(Failure::Usage);
    let settings = match check(&flags).and_then(|settings| written().map(|()| settings)) {
        Ok(settings) => settings,
        Err(error) => return refused(&error),
    };
    let ranks = flags.sweep.ranks as usize;
    if !brigade_bench::are_threads(&settings) {
        return run::run_self(ranks);
    }
    let world = Communicator::local_world(ranks, &settings).map_err(Failure::before);
    end(name, world.and_then(|world| brigade_bench::in_threads(world, of_rank)))
}

/// The settings of a run that can be started.
fn check(args: &Args) -> Result<Settings, Failure> {
    let cases = args.cases(args.sweep.ranks as usize).map_err(Failure::Usage)?;
    let settings = brigade_bench::settings(args)?;
    brigade_bench::refuse_too_large(args, &cases).map_err(Failure::Usage)?;
    if !brigade_bench::are_threads(&settings) {
        transports::probe(&settings).map_err(Failure::Usage)?;
    }
    outputs::check_files(args.json.as_ref(), &args.plot).map_err(Failure::Usage)?;
    Ok(settings)
}

/// Measure as the rank that the environment says we are.
fn bench_in_world(args: &Args) -> ExitCode {
    match join(args) {
        Ok(comm) => {
            let checked = check_outputs(&comm, args.json.as_ref(), &args.plot);
            let measured = checked.and_then(|()| brigade_bench::run_rank(args, &comm));
            drop(comm);
            end(NAME, measured)
        }
        Err(error) => {
            say(NAME, &error);
            code_of(&error)
        }
    }
}

/// Have rank 0 refuse files that it cannot write, before the work: whoever was started by another
/// launcher than ours has not been asked yet.
fn check_outputs<'a>(
    comm: &Communicator,
    json: Option<&'a PathBuf>,
    files: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), Failure> {
    if comm.rank() > 0 {
        return Ok(());
    }
    // The others shall not wait for it.
    let checked = outputs::check_files(json, files).inspect_err(|problem| comm.abort(problem));
    checked.map_err(Failure::Usage)
}

fn join(args: &Args) -> Result<Communicator, Failure> {
    let launch = Launch::discover().map_err(|error| Failure::Usage(error.to_string()))?;
    let settings = brigade_bench::world_settings(args, false)?;
    Communicator::join(launch, settings).map_err(Failure::before)
}

/// What a rank exits with, which has left its world.
fn end(name: &str, result: Result<Verdict, Failure>) -> ExitCode {
    match result {
        Ok(Verdict::Passed) => ExitCode::SUCCESS,
        Ok(Verdict::Wrong(_)) => ExitCode::FAILURE,
        Err(error) if error.is_closed_pipe() => terminal::end_unread(),
        Err(error) => {
            if !error.is_told_elsewhere() {
                say(name, &error);
            }
            code_of(&error)
        }
    }
}

/// What a measurement that came to this exits with.
fn code_of(error: &Failure) -> ExitCode {
    if error.is_refusal() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

/// Tell an error.
fn say(name: &str, error: impl Display) {
    eprintln!("{name}: {error}");
}
