//! What a call can end with, by what its caller can do about it.

use std::fmt::Display;
use std::io;

use brigade_transports::{MAKE_THREAD, TransportError, remedy};
use thiserror::Error;

/// An error of a communicator. Ranks are those of the world, the group that bootstrapped together.
///
/// After [`Error::Invalid`] and [`Error::Exhausted`] the communicator is as good as before. After
/// any other error it is not: calls in flight on other ranks end with an error too, and every later
/// call on this communicator returns the first error again. What cannot make a new one, by
/// [`Error::Join`], leaves the old one as it was.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// The call makes no sense by itself: nothing was sent, nothing was changed.
    #[error("{what}")]
    Invalid {
        /// What was wrong with it, with the numbers.
        what: String,
    },
    /// The system has no more of the threads or files that the call needs before it begins: nothing
    /// was sent, nothing was changed. It may be made again when there are more.
    #[error("{what}")]
    Exhausted {
        /// What was wanted, what the system said, and what to do about it.
        what: String,
    },
    /// Two ranks are in different calls: another collective, type, operator, count, root or
    /// algorithm, or one has made a call more.
    ///
    /// Whoever waits when this is noticed gets it within a second, and it is noticed when ranks
    /// wait for each other or look at what the others sent. A rank whose part of the call was
    /// done before, because it had only to send, has got `Ok` for it; it gets this from the first
    /// call that it makes afterwards, whichever that is, and the calls named are then the earlier
    /// ones. Ranks that were all done with such a call, as two roots of one broadcast are, notice
    /// it when they next look at what the other one has sent.
    #[error("ranks disagree: rank {rank} called {call}, but rank {peer} called {peer_call}")]
    Mismatch {
        /// One of the two.
        rank: u32,
        /// Its call, with its number in the communicator: `#7 barrier(u8 x 0) by doubling`.
        call: String,
        /// The other.
        peer: u32,
        /// The other's call; where nothing but settings makes the two differ, with these behind it.
        peer_call: String,
    },
    /// A rank's process ended, or cannot be reached any more.
    #[error("rank {rank} is lost ({how}) during {during}")]
    PeerLost {
        /// Who.
        rank: u32,
        /// What was seen.
        how: String,
        /// What this rank was doing.
        during: String,
    },
    /// The process that brought the ranks together ended without saying so, and no rank was in it:
    /// nobody is left who could tell the ranks of each other.
    #[error("the process that brought the ranks together is lost ({how}) during {during}")]
    RootLost {
        /// What was seen.
        how: String,
        /// What this rank was doing.
        during: String,
    },
    /// A rank closed its communicator while this one still needs it.
    #[error("rank {rank} has left, but {during} needs it: do all ranks make the same calls?")]
    PeerLeft {
        /// Who.
        rank: u32,
        /// What this rank was doing.
        during: String,
    },
    /// Nothing moved until the deadline.
    #[error("{place} since {waited_ms} ms{others}")]
    Timeout {
        /// Rank, algorithm, step, chunk and peer.
        place: String,
        /// For how long.
        waited_ms: u64,
        /// What is known of the others.
        others: String,
    },
    /// A rank ended the world: it called abort, or its own call ended with an error of which the
    /// others hear by this one. That may have been its deadline ([`Error::Timeout`] there), a rank
    /// that left, a device or a system that failed, a panic, an interrupt, or that it could not
    /// join.
    #[error("rank {rank} aborted: {why}")]
    Aborted {
        /// Who.
        rank: u32,
        /// Its reason: what it was told, or the sentence of its own error.
        why: String,
    },
    /// The operating system or a device failed.
    #[error("{during}: {source}")]
    Transport {
        /// What failed.
        source: TransportError,
        /// What this rank was doing.
        during: String,
    },
    /// The ranks could not come together.
    #[error("{what}")]
    Join {
        /// Who was missing or what was refused, and what to look at.
        what: String,
    },
}

impl std::fmt::Debug for Error {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints. In one piece,
    /// as that goes to standard error piece by piece, where other ranks print theirs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.to_string())
    }
}

impl Error {
    /// A refusal of a call that makes no sense by itself.
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid { what: what.into() }
    }

    /// The system gave nothing for `what`: no file, unless `call` says otherwise.
    pub(crate) fn refused(what: impl Display, call: &str, error: &io::Error) -> Self {
        let remedy = remedy(call, error).map_or(String::new(), |remedy| format!("; {remedy}"));
        Self::Exhausted { what: format!("the system has no {what} ({error}){remedy}") }
    }

    /// The system started no thread: `what` is one, and says what for.
    pub(crate) fn no_thread(what: impl Display, error: &io::Error) -> Self {
        Self::refused(what, MAKE_THREAD, error)
    }

    /// A failure to come together.
    pub(crate) fn join(what: impl Display) -> Self {
        Self::Join { what: what.to_string() }
    }

    /// Whether the communicator may still be used.
    pub fn is_recoverable(&self) -> bool {
        matches!(self, Self::Invalid { .. } | Self::Exhausted { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{self, Write};

    use super::*;

    /// What is written, piece by piece.
    #[derive(Default)]
    struct Pieces(Vec<String>);

    impl Write for Pieces {
        fn write_str(&mut self, piece: &str) -> fmt::Result {
            self.0.push(piece.to_owned());
            Ok(())
        }
    }

    #[test]
    fn an_error_that_ends_a_program_is_printed_in_one_piece() {
        let error = Error::PeerLeft { rank: 1, during: "barrier".into() };
        let mut pieces = Pieces::default();
        write!(pieces, "{error:?}").expect("pieces are taken");
        assert_eq!(pieces.0, [error.to_string()]);
    }
}
