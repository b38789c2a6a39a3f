//! `brigade compare`: starts this very program again as `train`, once a leg of each row.

use std::fs::File;
use std::io::{self, BufRead, BufReader, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use brigade_comm::Settings;
use brigade_trainer::compare::{self, Broken};

use crate::interrupt::Interruption;
use crate::{outputs, run, sys, terminal};

/// Lines of a failed training's errors that are worth repeating.
const LAST_LINES: usize = 6;

/// Compare; 1 says that a row is not as it must be, or what came of it cannot be written, 2 that
/// nothing could be compared. Interrupted, it ends as by the signal.
pub(crate) fn compare(args: &compare::Args) -> ExitCode {
    if run::in_a_world() {
        eprintln!("brigade compare: starts its ranks itself, and cannot be a rank");
        return ExitCode::from(2);
    }
    // What its trainings say is not shown, unless one fails.
    Settings::warn_of_unknown_variables();
    if let Err(problem) = outputs::check_files(args.json.as_ref(), &args.plot) {
        return refused(&problem);
    }
    // Before any thread is started.
    let interruption = match Interruption::watch() {
        Ok(interruption) => interruption,
        Err(error) => return refused(&error),
    };
    interruption.end(|| match in_folder(args, &interruption) {
        Ok(Ok(true)) => ExitCode::SUCCESS,
        Ok(Ok(false)) => ExitCode::FAILURE,
        Ok(Err(error)) if error.is_closed_pipe() => terminal::end_unread(),
        Ok(Err(error)) if !error.is_refusal() => {
            eprintln!("brigade compare: {error}");
            ExitCode::FAILURE
        }
        Ok(Err(error)) => refused(&error),
        Err(error) => refused(&error),
    })
}

fn refused(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("brigade compare: {error}");
    ExitCode::from(2)
}

/// Compare in a folder that is gone afterwards; the error is that there is none, or no program.
fn in_folder(
    args: &compare::Args,
    interruption: &Interruption,
) -> Result<Result<bool, brigade_trainer::Error>, String> {
    let folder = Folder::make()?;
    let program = std::env::current_exe()
        .map_err(|error| format!("cannot find the file of this program to train: {error}"))?;
    let mut train = |flags: &[String], step: &mut dyn FnMut()| {
        train(&program, flags, &folder.0.join("errors"), step, interruption)
    };
    Ok(compare::compare(args, &folder.0, &mut train, &mut stdout()))
}

/// One `brigade train`, each of whose steps is told.
fn train(
    program: &Path,
    flags: &[String],
    errors: &Path,
    step: &mut dyn FnMut(),
    interruption: &Interruption,
) -> Result<(), Broken> {
    let told = |error: std::io::Error| Broken::Failed(format!("cannot train: {error}"));
    let mut command = Command::new(program);
    command.arg("train").args(flags).stdin(Stdio::null());
    command.stderr(File::create(errors).map_err(told)?);
    let ended = interruption.run(&mut command, |output| {
        for line in BufReader::new(output).lines() {
            // A line that cannot be read is no step; how the training ended is asked below.
            if line.is_ok_and(|line| line.starts_with("step ")) {
                step();
            }
        }
    });
    match (ended.map_err(told)?, interruption.signal()) {
        (Some(status), _) if status.success() => Ok(()),
        (Some(status), None) => {
            let said = std::fs::read_to_string(errors).map_err(told)?;
            Err(Broken::Failed(why(status, &said, flags)))
        }
        (_, signal) => {
            let name = signal.map_or("a signal", sys::signal_name);
            Err(Broken::Stopped(name.to_owned()))
        }
    }
}

/// Why a training has failed that `said` so.
fn why(status: ExitStatus, said: &str, flags: &[String]) -> String {
    let lines: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    if let (Some(2), Some(first)) = (status.code(), lines.first()) {
        let names = ["brigade train: ", "error: "];
        let why = names.iter().fold(*first, |line, name| line.strip_prefix(name).unwrap_or(line));
        return format!("`brigade train` refuses its flags: {why}");
    }
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("; ");
    format!("`brigade train {}` ended with {status}: {last}", flags.join(" "))
}

/// A folder for logs and checkpoints, gone with this value.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Self, String> {
        let above = std::env::temp_dir();
        let make = |number: u32| {
            let path = above.join(format!("brigade-compare-{}-{number}", std::process::id()));
            std::fs::create_dir(&path).map(|()| Self(path))
        };
        // One that was killed may have left its own, and had our number.
        let is_taken = |made: &io::Result<Self>| {
            made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
        };
        let mut made = make(0);
        for number in 1..1000 {
            if !is_taken(&made) {
                break;
            }
            made = make(number);
        }
        made.map_err(|error| {
            let above = above.display();
            format!("cannot make a folder for logs in {above}: {error}; TMPDIR names another place")
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("brigade compare: cannot remove {}: {error}", self.0.display());
        }
    }
}
