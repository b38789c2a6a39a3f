//! What can go wrong below a communicator.

use thiserror::Error;

/// An error of a transport. `peer` is the member's index in the group, where one is to blame.
#[derive(Clone, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportError {
    /// The peer's process ended, or its side of the wire was closed.
    #[error("member {peer} is gone: {how}")]
    PeerGone {
        /// Who.
        peer: usize,
        /// What was seen.
        how: String,
    },
    /// Bytes arrived that no peer of ours would send.
    #[error("bytes from member {peer} are not ours: {what}")]
    Corrupt {
        /// From whom.
        peer: usize,
        /// What was wrong with them.
        what: String,
    },
    /// Someone who cannot prove that it belongs to the job, or whom we cannot convince.
    #[error("refused: {why}")]
    Refused {
        /// What failed, and what to look at.
        why: String,
    },
    /// A wait reached its deadline.
    #[error("{what} took longer than {waited_ms} ms")]
    Timeout {
        /// What was waited for.
        what: String,
        /// For how long.
        waited_ms: u64,
    },
    /// Whoever had us wait wants us to wait no longer.
    #[error("{what} was called off after {waited_ms} ms")]
    CalledOff {
        /// What was waited for.
        what: String,
        /// For how long.
        waited_ms: u64,
    },
    /// A system call failed.
    #[error(
        "{call} failed ({}): {what}{}",
        std::io::Error::from_raw_os_error(*errno), behind(call, *errno)
    )]
    System {
        /// The call.
        call: &'static str,
        /// Its error number.
        errno: i32,
        /// What we were doing, and the number that was wrong.
        what: String,
    },
    /// The transport cannot be used here.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl std::fmt::Debug for TransportError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl TransportError {
    /// The error of a system call that just failed, from `errno`.
    pub fn system(call: &'static str, what: impl Into<String>) -> Self {
        Self::from_io(call, &std::io::Error::last_os_error(), what)
    }

    /// The error of a system call whose failure the standard library reported.
    pub fn from_io(call: &'static str, error: &std::io::Error, what: impl Into<String>) -> Self {
        Self::System { call, errno: error.raw_os_error().unwrap_or(0), what: what.into() }
    }

    /// Whether the system has no more of something that its limits say how much there is of.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::System { call, errno, .. } if remedy_of(call, *errno).is_some())
    }
}

/// The call that makes threads, for errors of it.
pub const MAKE_THREAD: &str = "pthread_create";

/// What to do where the system has no more of the files or threads that `call` asked for; nothing
/// where something else went wrong.
pub fn remedy(call: &str, error: &std::io::Error) -> Option<&'static str> {
    remedy_of(call, error.raw_os_error()?)
}

fn remedy_of(call: &str, errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EMFILE => "this process has as many files open as it may: raise ulimit -n",
        libc::ENFILE => "this machine has as many files open as it may: raise fs.file-max",
        libc::EAGAIN if call == MAKE_THREAD => {
            "no more threads may be started here: raise ulimit -u, or the limit that a container \
             has on processes"
        }
        _ => return None,
    })
}

/// The same behind a sentence.
fn behind(call: &str, errno: i32) -> String {
    remedy_of(call, errno).map_or(String::new(), |remedy| format!("; {remedy}"))
}

/// Why a transport is not to be had on this machine.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{transport} is not available: {why}; {next_step}")]
pub struct Unavailable {
    /// Which transport.
    pub transport: &'static str,
    /// What is missing.
    pub why: String,
    /// What would change that.
    pub next_step: String,
}
