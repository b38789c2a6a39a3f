//! `brigade train`: decide who the ranks are, and leave the rest to `brigade_trainer`.

use std::fmt::Display;
use std::io::stdout;
use std::process::ExitCode;

use brigade_comm::launch::Launch;
use brigade_comm::transports::transports;
use brigade_comm::{Communicator, Error, Settings};
use brigade_offload::storage::abandon;
use brigade_trainer::{Args, Before};

use crate::transports::probe;
use crate::{interrupt, outputs, run, terminal};

/// Train; with more than one rank, start them first unless a launcher has. The exit code is 2 when
/// nothing could be started.
pub(crate) fn train(args: &Args) -> ExitCode {
    if args.plan {
        return plan(args);
    }
    if run::in_a_world() {
        return train_in_world(args);
    }
    if args.ranks == 1 {
        // Where there are several the first of them does that once they have come together.
        Settings::warn_of_unknown_variables();
    }
    // What all ranks would refuse is refused once, before there are any.
    if let Err(why) = check(args).and_then(|()| check_outputs(args)) {
        Settings::warn_of_unknown_variables();
        say(why);
        return ExitCode::from(2);
    }
    let before = Before::of(args);
    if args.ranks > 1 {
        let code = run::run_self(args.ranks);
        tell_saved(code, args, &before);
        return code;
    }
    // Nobody else would say what ended it.
    let (own, then) = (args.clone(), Before::of(args));
    let stopped = move |signal| {
        terminal::say_stopped("brigade train", signal);
        then.told(&own).into_iter().for_each(say);
    };
    if let Err(error) = interrupt::take_along(abandon, stopped) {
        say(error);
        return ExitCode::FAILURE;
    }
    let code = end(brigade_trainer::train(args, None, &mut stdout(), &mut |error| tell(error, "")));
    tell_saved(code, args, &before);
    code
}

/// Tell what a training that has failed or was stopped leaves, if it was to leave something: not of
/// one that never began, nor where nobody reads on.
fn tell_saved(code: ExitCode, args: &Args, before: &Before) {
    let unread = ExitCode::from(128 + libc::SIGPIPE as u8);
    if ![ExitCode::SUCCESS, ExitCode::from(2), unread].contains(&code) {
        before.told(args).into_iter().for_each(say);
    }
}

/// Print what a run would need, once, also where a launcher started many of us.
fn plan(args: &Args) -> ExitCode {
    let launch = Launch::discover().ok().filter(|_| run::in_a_world());
    let (rank, ranks) = launch.map_or((0, args.ranks), |launch| (launch.rank, launch.ranks));
    if rank > 0 {
        return ExitCode::SUCCESS;
    }
    Settings::warn_of_unknown_variables();
    match brigade_trainer::plan(args, ranks, &mut stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ brigade_trainer::Error::Output(_)) => fail(error),
        Err(error) => {
            fail(error);
            ExitCode::from(2)
        }
    }
}

/// Refuse what no rank could do or go on from, and transports that are none, or cannot be used
/// where they would be.
fn check(args: &Args) -> Result<(), String> {
    let checked = brigade_trainer::check(args, args.ranks);
    let checked = checked.and_then(|()| brigade_trainer::check_resumed(args));
    checked.map_err(|error| error.to_string())?;
    let settings = settings(args).map_err(|error| error.to_string())?;
    match args.ranks {
        1 => transports(&settings).map(drop).map_err(|error| error.to_string()),
        _ => probe(&settings),
    }
}

/// Refuse files that cannot be written, or that another flag names, too.
fn check_outputs(args: &Args) -> Result<(), String> {
    outputs::check(args.outputs())
        .and_then(|()| outputs::check_apart(args.outputs(), args.read_files()))
}

/// Train as the rank that the environment says we are.
fn train_in_world(args: &Args) -> ExitCode {
    if let Err(error) = take_checkpoint_along(args) {
        say(error);
        return ExitCode::FAILURE;
    }
    let comm = match join(args) {
        Ok(comm) => comm,
        Err(error) => return fail(error.into()),
    };
    let who = format!("rank {}", comm.rank());
    let mut say = |error: &brigade_trainer::Error| {
        // Our launcher shows what another rank says; under any other this one may be alone with
        // whoever watches it.
        if !(error.is_told_elsewhere() && run::is_started_by_us()) {
            tell(error, &who);
        }
    };
    // Whoever was started by another launcher than ours has not been asked yet.
    let checked = brigade_trainer::check(args, comm.size()).map_err(|error| error.to_string());
    let is_first = comm.rank() == 0;
    let checked = checked.and_then(|()| if is_first { check_outputs(args) } else { Ok(()) });
    if let Err(problem) = checked {
        let error = brigade_trainer::give_up(&comm, brigade_trainer::Error::Refused(problem));
        say(&error);
        return end(Err(error));
    }
    end(brigade_trainer::train(args, Some(comm), &mut stdout(), &mut say))
}

/// Leave nothing of a checkpoint that is being written when a signal ends this process, not even
/// where it has to have a name meanwhile.
fn take_checkpoint_along(args: &Args) -> std::io::Result<()> {
    match args.checkpoint {
        // The launcher tells of it, once for all ranks.
        Some(_) => interrupt::take_along(abandon, |_| {}),
        None => Ok(()),
    }
}

fn join(args: &Args) -> Result<Communicator, Error> {
    let launch = Launch::discover().map_err(|error| Error::Invalid { what: error.to_string() })?;
    Communicator::join(launch, settings(args)?)
}

fn settings(args: &Args) -> Result<Settings, Error> {
    let mut settings = Settings::from_env()?;
    if let Some(transport) = &args.transport {
        settings.set("BRIGADE_TRANSPORT", transport)?;
    }
    Ok(settings)
}

/// What a training exits with that was told what has ended it.
fn end(outcome: Result<brigade_trainer::Outcome, brigade_trainer::Error>) -> ExitCode {
    match outcome {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) if error.is_closed_pipe() => terminal::end_unread(),
        Err(error) => code_of(&error),
    }
}

/// Tell what ends a training; nobody wants to hear that nobody reads on.
fn tell(error: &brigade_trainer::Error, who: &str) {
    if !error.is_closed_pipe() {
        say(told_by(who, &error.to_string()));
    }
}

/// Words with who says them in front, unless they begin with that: those of a rank that has waited
/// for too long do.
fn told_by(who: &str, words: &str) -> String {
    let begins = words.strip_prefix(who).is_some_and(|rest| rest.starts_with(", "));
    if who.is_empty() || begins { words.to_owned() } else { format!("{who}: {words}") }
}

/// End a command with its error.
fn fail(error: brigade_trainer::Error) -> ExitCode {
    tell(&error, "");
    end(Err(error))
}

/// What a training that came to this exits with.
fn code_of(error: &brigade_trainer::Error) -> ExitCode {
    if error.is_refusal() { ExitCode::from(2) } else { ExitCode::FAILURE }
}

fn say(error: impl Display) {
    eprintln!("brigade train: {error}");
}

#[cfg(test)]
mod tests {
    use super::told_by;

    #[test]
    fn who_says_something_is_named_once() {
        let timeout = "rank 1, all-reduce(f32 x 8, sum): waiting for rank 0 since 9 ms";
        assert_eq!(told_by("rank 1", timeout), timeout);
        assert_eq!(told_by("rank 1", "rank 0 is lost"), "rank 1: rank 0 is lost");
        assert_eq!(told_by("rank 1", "rank 12, barrier"), "rank 1: rank 12, barrier");
        assert_eq!(told_by("", "no such file"), "no such file");
    }
}
