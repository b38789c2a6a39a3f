//! The run log: one JSON object a line, appended, so that a resumed run continues its file.
//!
//! The first line of a run has the event `start` and its settings, then come a `step` each, and an
//! `end`.

use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What one step was like on rank 0. Times in milliseconds, sizes in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StepRecord {
    /// Counts from 1.
    pub step: usize,
    /// Mean over the global batch, before the step's update.
    pub loss: f64,
    /// Learning rate.
    pub lr: f32,
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

/// An open log, or none.
pub struct RunLog(Option<(PathBuf, File)>);

impl RunLog {
    /// Append to `path`, if given.
    pub fn open(path: Option<&Path>) -> Result<RunLog, Error> {
        let Some(path) = path else { return Ok(RunLog(None)) };
        let file = File::options().create(true).append(true).open(path);
        let file = file.map_err(Error::file("write", path))?;
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
