//! Why a run goes no further, and which rank says so.

use std::io;
use std::time::{Duration, Instant};

use brigade_comm::Communicator;

/// How long one who has ended all waits to hear who was the first, and how often it looks.
const VERDICT_WAIT: Duration = Duration::from_secs(1);
const VERDICT_LOOK: Duration = Duration::from_millis(2);

/// Why a run could not be finished.
#[derive(thiserror::Error)]
pub enum Failure {
    /// The flags contradict each other or the world.
    #[error("{0}")]
    Usage(String),
    /// This rank cannot begin: a setting means nothing, or the machine lacks what is asked for.
    #[error("{0}")]
    Refused(String),
    /// What cannot be, as another rank tells, which was the first to.
    #[error("{0}")]
    Told(String),
    /// A collective failed.
    #[error(transparent)]
    Comm(#[from] brigade_comm::Error),
    /// The table or a file could not be written.
    #[error("cannot write {what}: {source}")]
    Write {
        /// What was being written.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl std::fmt::Debug for Failure {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl Failure {
    /// Of an error before anything was measured.
    pub fn before(error: brigade_comm::Error) -> Self {
        match error {
            brigade_comm::Error::Invalid { what } => Self::Refused(what),
            error => Self::Comm(error),
        }
    }

    /// Whether nothing was begun, since what is asked for cannot be, or not here.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Usage(_) | Self::Refused(_) | Self::Told(_))
    }

    /// Whether another rank says it: the one that has ended all.
    pub fn is_told_elsewhere(&self) -> bool {
        matches!(self, Self::Comm(brigade_comm::Error::Aborted { .. }) | Self::Told(_))
    }

    /// Whether whoever read the output went away (`| head`), who wants to hear no more of it.
    pub fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Write { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Have the other ranks hear why this one goes no further, where nothing else tells them. What
/// several find, as flags that make no sense, the first one says.
pub(crate) fn give_up(comm: &Communicator, failure: Failure) -> Failure {
    let words = match &failure {
        Failure::Write { .. } | Failure::Usage(_) => failure.to_string(),
        _ => return failure,
    };
    comm.abort(&words);
    let until = Instant::now() + VERDICT_WAIT;
    loop {
        match comm.ended() {
            Some(brigade_comm::Error::Aborted { rank, why })
                if rank as usize != comm.rank() && why == words =>
            {
                return Failure::Told(words);
            }
            None if Instant::now() < until => std::thread::sleep(VERDICT_LOOK),
            // Better twice than not at all.
            _ => return failure,
        }
    }
}

pub(crate) fn cannot_write(what: &str) -> impl Fn(io::Error) -> Failure {
    move |source| Failure::Write { what: what.to_owned(), source }
}
