//! The run log: one JSON object a line, appended, so that a resumed run continues its file.
//!
//! The first line of a run has the event `start` and its settings, then come a `step` each, and an
//! `end`.

use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What one step was like on rank 0. Times in milliseconds, sizes in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StepRecord {
    /// Counts from 1.
    pub step: usize,
    /// Mean over the global batch, before the step's update.
    pub loss: f64,
    /// Learning rate.
    pub lr: f32,
    /// Norm of the whole gradient, before it was clipped, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
    /// Forward and loss.
    pub forward_ms: f64,
    /// Backward, with the communication that ran behind it.
    pub backward_ms: f64,
    /// Communication that held the step up.
    pub exposed_ms: f64,
    /// Optimizer.
    pub optimizer_ms: f64,
    /// Waiting for files.
    pub disk_ms: f64,
    /// All of the step.
    pub step_ms: f64,
    /// Tokens of the global batch per second.
    pub tokens_per_second: f64,
    /// Payload this rank sent.
    pub sent_bytes: u64,
    /// Payload its formula predicts.
    pub formula_bytes: u64,
    /// Bytes this rank moved from files and to files.
    pub disk_bytes: [u64; 2],
    /// What is predicted for that.
    pub disk_formula_bytes: [u64; 2],
    /// What the loss was multiplied by for its gradient.
    pub loss_scale: f32,
    /// Whether a gradient has overflowed, so that no rank has updated anything.
    pub is_skipped: bool,
}

/// What a run came to on one rank: bytes of all its steps, and bytes of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankEnd {
    /// Payload it sent in steps.
    pub sent_bytes: u64,
    /// What the strategy's formula predicts for that.
    pub formula_bytes: u64,
    /// The most it held in a step for the strategy; 0 where no allocator counts.
    pub peak_bytes: u64,
    /// What the strategy's formula predicts for that.
    pub memory_bytes: u64,
    /// The most it held until the first step; 0 where no allocator counts.
    #[serde(default)]
    pub start_bytes: u64,
}

/// How long whoever is to read a log that is a pipe may take to come, and how often that is asked.
const READER_WAIT: Duration = Duration::from_secs(5);
const READER_LOOK: Duration = Duration::from_millis(10);

/// An end of it if this is a pipe, once it has a reader: to open it as ever would wait for that for
/// ever, without a word.
fn read_by_somebody(path: &Path) -> io::Result<Option<File>> {
    if !std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        return Ok(None);
    }
    let until = Instant::now() + READER_WAIT;
    loop {
        let opened = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path);
        match opened {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && Instant::now() < until => {
                std::thread::sleep(READER_LOOK);
            }
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {
                let problem = "nobody reads this pipe; start its reader before, such as `cat`";
                return Err(io::Error::other(problem));
            }
            opened => return opened.map(Some),
        }
    }
}

/// Whether a file has bytes, the last of which ends no line. One that cannot be read is left as it
/// is.
fn ends_within_a_line(path: &Path) -> bool {
    let last = || {
        let found = std::fs::metadata(path).ok().filter(|found| found.is_file())?;
        let (file, mut last) = (File::open(path).ok()?, [0]);
        file.read_exact_at(&mut last, found.len().checked_sub(1)?).ok()?;
        Some(last)
    };
    last().is_some_and(|last| last != *b"\n")
}

/// An open log, or none.
pub struct RunLog(Option<(PathBuf, File)>);

impl RunLog {
    /// Append to `path`, if given: from a line of its own on, also where a run that was killed has
    /// left half of one.
    pub fn open(path: Option<&Path>) -> Result<RunLog, Error> {
        let Some(path) = path else { return Ok(RunLog(None)) };
        // Held until the log is open: its reader takes the end of the last writer for the end.
        let held = read_by_somebody(path).map_err(Error::file("write", path))?;
        let file = File::options().create(true).append(true).open(path);
        let mut file = file.map_err(Error::file("write", path))?;
        drop(held);
        if ends_within_a_line(path) {
            file.write_all(b"\n").map_err(Error::file("write", path))?;
        }
        Ok(RunLog(Some((path.to_path_buf(), file))))
    }

    /// Append `{"event": event, ...record}`.
    pub fn write(&mut self, event: &str, record: &impl Serialize) -> Result<(), Error> {
        #[derive(Serialize)]
        struct Line<'a, T> {
            event: &'a str,
            #[serde(flatten)]
            record: &'a T,
        }
        let Some((path, file)) = &mut self.0 else { return Ok(()) };
        let mut line = serde_json::to_string(&Line { event, record }).expect("records are plain");
        line.push('\n');
        file.write_all(line.as_bytes()).map_err(Error::file("write", path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_line_that_was_cut_short_takes_no_other_with_it() {
        let path = std::env::temp_dir().join(format!("brigade-torn-{}", std::process::id()));
        for (there, wanted) in [("", 1), ("{}\n", 2), ("{}\n{\"event\":\"st", 3)] {
            std::fs::write(&path, there).unwrap();
            let mut log = RunLog::open(Some(&path)).unwrap();
            log.write("start", &RankEnd::default()).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            let last = text.lines().last().unwrap();
            assert!(text.lines().count() == wanted && last.starts_with(r#"{"event":"start""#));
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_pipe_is_a_log_if_somebody_reads_it_and_is_not_waited_for_long() {
        let path = std::env::temp_dir().join(format!("brigade-pipe-{}", std::process::id()));
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.is_ok_and(|made| made.success()));
        let refused = RunLog::open(Some(&path)).map(drop).unwrap_err().to_string();
        let from = path.clone();
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            File::open(from).unwrap().read_to_string(&mut text).unwrap();
            text
        });
        let mut log = RunLog::open(Some(&path)).unwrap();
        log.write("start", &RankEnd::default()).unwrap();
        drop(log);
        let text = reader.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.starts_with(r#"{"event":"start""#), "{text}");
        assert!(refused.contains("nobody reads this pipe"), "{refused}");
    }
}
