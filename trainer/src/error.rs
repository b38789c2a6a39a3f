//! What can go wrong in a training run, and what its user can do about it.

use std::path::{Path, PathBuf};

/// How the reason of a rank begins that ends all before the first step, since what is asked for
/// cannot be: those who hear of it are to come to the same.
const REFUSED: &str = "refused: ";

/// Why a training run stopped.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting that cannot work; the text says which value would.
    #[error("--{name}: {problem}")]
    Setting {
        /// The flag, without its dashes.
        name: &'static str,
        /// What is wrong with its value.
        problem: String,
    },
    /// What may be kept in the host's memory is too little.
    #[error("--host-budget: {} is the least that it works with", exact(*least_bytes))]
    HostBudget {
        /// What would do, for all that the rank keeps.
        least_bytes: usize,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// What was tried: `read`, `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Standard output is gone.
    #[error("cannot print: {0}")]
    Output(std::io::Error),
    /// A checkpoint that does not belong to this run, or is damaged.
    #[error("checkpoint {}: {problem}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        problem: String,
    },
    /// The ranks could not talk to each other.
    #[error(transparent)]
    Comm(#[from] brigade_comm::Error),
    /// What is kept in cheaper memory could not be moved; the text names file, place and reason.
    #[error("offload: {0}")]
    Offload(Box<dyn std::error::Error + Send + Sync>),
    /// The device that computes, or its driver, refused; the text says what and why.
    #[error("device: {0}")]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// One process, with which others were to be compared, could not train; the text says how.
    #[error("there is nothing to compare with, since one process cannot train: {0}")]
    Alone(String),
    /// A comparison was stopped in the middle.
    #[error("stopped by {by} while {row} trained; rows that had ended: {ended}")]
    Stopped {
        /// What stopped it: the name of a signal.
        by: String,
        /// The row that trained.
        row: String,
        /// How many had ended before.
        ended: usize,
    },
    /// What the program around a training refuses; the text says what would do.
    #[error("{0}")]
    Refused(String),
    /// What would have been a refusal before the first step, but came later.
    #[error("{0}")]
    OnTheWay(Box<Error>),
    /// Another rank was the first to end all with these words, and tells them.
    #[error("{error}")]
    Told {
        /// The other rank.
        by: usize,
        /// What this one found, too.
        error: Box<Error>,
    },
    /// The loss is not a number any more; a smaller learning rate usually helps.
    #[error("loss is {loss} at step {step}: try a smaller --lr")]
    Diverged {
        /// The step that produced it.
        step: usize,
        /// What it was.
        loss: f64,
    },
    /// The same of the first step of a run that goes on: no step of this run made it so.
    #[error(
        "loss is {loss} at step {step}, the first after the checkpoint, whose parameters give it: \
         go on from an earlier one, or in the precision of before if this is another one"
    )]
    DivergedBefore {
        /// The step that produced it.
        step: usize,
        /// What it was.
        loss: f64,
    },
    /// Gradients do not fit f16 even as they are, in two steps running: nothing is updated.
    #[error(
        "a gradient overflows f16 at step {step}, and at the one before, with a loss scale of 1, \
         the least: try a smaller --lr, or --precision bf16, which has no such limit"
    )]
    Overflown {
        /// The second one.
        step: usize,
    },
}

impl std::fmt::Debug for Error {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // In one piece: that goes to standard error as it is, where other ranks print theirs.
        f.write_str(&self.to_string())
    }
}

impl Error {
    /// Whether another rank says it: the one that has ended all.
    pub fn is_told_elsewhere(&self) -> bool {
        matches!(self, Error::Comm(brigade_comm::Error::Aborted { .. }) | Error::Told { .. })
    }

    /// Whether whoever read the output went away (`| head`), who wants to hear no more of it.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Error::Output(error) if error.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// Whether nothing was trained, since what is asked for cannot be, is missing or is damaged:
    /// also where another rank has found that, so that all come to the same.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Setting { .. } | Error::Checkpoint { .. } => true,
            Error::HostBudget { .. } | Error::Alone(_) | Error::Refused(_) => true,
            Error::File { action, .. } => *action == "read",
            Error::Comm(brigade_comm::Error::Aborted { why, .. }) => why.starts_with(REFUSED),
            Error::Comm(error) => matches!(error, brigade_comm::Error::Invalid { .. }),
            Error::Told { error, .. } => error.is_refusal(),
            _ => false,
        }
    }

    /// The reason that others hear when this ends all.
    pub(crate) fn reason(&self) -> String {
        if self.is_refusal() { format!("{REFUSED}{self}") } else { self.to_string() }
    }

    /// The same of a run that has begun.
    pub(crate) fn on_the_way(self) -> Error {
        let is_of_this_rank = !self.is_told_elsewhere();
        if is_of_this_rank && self.is_refusal() { Error::OnTheWay(Box::new(self)) } else { self }
    }

    /// The same, which names the flag that a file was asked for by.
    pub(crate) fn of_flag(self, flag: &str) -> Error {
        match self {
            Error::File { action, path, source } => {
                let source = std::io::Error::new(source.kind(), format!("{source}, for {flag}"));
                Error::File { action, path, source }
            }
            error => error,
        }
    }

    pub(crate) fn setting(name: &'static str, problem: String) -> Error {
        Error::Setting { name, problem }
    }

    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::File { action, path, source }
    }

    pub(crate) fn offload(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Offload(problem.into())
    }

    pub(crate) fn device(problem: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Device(problem.into())
    }

    pub(crate) fn checkpoint(path: &Path, problem: impl ToString) -> Error {
        Error::Checkpoint { path: path.to_path_buf(), problem: problem.to_string() }
    }
}

impl From<brigade_cuda::CudaError> for Error {
    fn from(problem: brigade_cuda::CudaError) -> Error {
        Error::device(problem)
    }
}

/// To the byte, as a flag takes it: `4M` where that is exact.
fn exact(bytes: usize) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or(bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_main_that_returns_an_error_prints_its_sentence() {
        let setting = Error::setting("lr", "must be above 0".to_string());
        assert_eq!(format!("{setting:?}"), "--lr: must be above 0");
        let aborted = brigade_comm::Error::Aborted { rank: 2, why: "of a test".to_string() };
        assert_eq!(format!("{aborted:?}"), "rank 2 aborted: of a test");
        let kept = brigade_offload::memory::Arena::new(brigade_offload::memory::Budget::new(1));
        let refused = kept.map(drop).unwrap_err();
        assert_eq!(format!("{refused:?}"), refused.to_string());
        let joined = "nonsense".parse::<brigade_comm::bootstrap::UniqueId>().map(drop).unwrap_err();
        assert_eq!(format!("{joined:?}"), joined.to_string());
    }

    #[test]
    fn what_is_said_to_be_enough_is_a_flag() {
        for (bytes, told) in [(4 << 20, "4M"), ((4 << 20) + 1, "4194305"), (3 << 10, "3K")] {
            assert_eq!(exact(bytes), told);
            assert_eq!(crate::offload::parse_bytes(told), Ok(bytes));
        }
    }
}
