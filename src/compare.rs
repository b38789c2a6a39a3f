//! `brigade compare`: starts this very program again as `train`, once a leg of each row.

use std::fs::File;
use std::io::{BufRead, BufReader, stdout};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use brigade_trainer::compare;

use crate::{run, sys};

/// Lines of a failed training's errors that are worth repeating.
const LAST_LINES: usize = 6;

/// Compare; 1 says that a row is not as it must be, 2 that nothing could be compared.
pub(crate) fn compare(args: &compare::Args) -> ExitCode {
    if run::in_a_world() {
        eprintln!("brigade compare: starts its ranks itself, and cannot be a rank");
        return ExitCode::from(2);
    }
    let compared = Folder::make().map_err(|error| error.to_string()).and_then(|folder| {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut train = |flags: &[String], step: &mut dyn FnMut()| {
            train(&program, flags, &folder.0.join("errors"), step)
        };
        compare::compare(args, &folder.0, &mut train, &mut stdout())
            .map_err(|error| error.to_string())
    });
    match compared {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("brigade compare: {error}");
            ExitCode::from(2)
        }
    }
}

/// One `brigade train`, each of whose steps is told.
fn train(
    program: &Path,
    flags: &[String],
    errors: &Path,
    step: &mut dyn FnMut(),
) -> Result<(), String> {
    let told = |error: std::io::Error| format!("cannot train: {error}");
    let mut command = Command::new(program);
    command.arg("train").args(flags).stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(File::create(errors).map_err(told)?);
    sys::die_with_parent(&mut command);
    let mut child = command.spawn().map_err(told)?;
    let output = child.stdout.take().expect("it was asked for");
    for line in BufReader::new(output).lines() {
        // A line that cannot be read is no step; how the training ended is asked below.
        if line.is_ok_and(|line| line.starts_with("step ")) {
            step();
        }
    }
    let status = child.wait().map_err(told)?;
    if status.success() {
        return Ok(());
    }
    let said = std::fs::read_to_string(errors).map_err(told)?;
    let lines: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    if let (Some(2), Some(first)) = (status.code(), lines.first()) {
        let names = ["brigade train: ", "error: "];
        let why = names.iter().fold(*first, |line, name| line.strip_prefix(name).unwrap_or(line));
        return Err(format!("`brigade train` refuses its flags: {why}"));
    }
    let last = lines[lines.len().saturating_sub(LAST_LINES)..].join("; ");
    Err(format!("`brigade train {}` ended with {status}: {last}", flags.join(" ")))
}

/// A folder for logs and checkpoints, gone with this value.
struct Folder(PathBuf);

impl Folder {
    fn make() -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("brigade-compare-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("brigade compare: cannot remove {}: {error}", self.0.display());
        }
    }
}
