//! Where a sentence goes that a person should read although no call has failed.

use std::io::{self, Write};

/// Say it where the user looks: in the log if there is one, else on standard error.
pub(crate) fn warn(sentence: &str) {
    tracing::warn!("{sentence}");
    if !tracing::dispatcher::has_been_set() {
        // Nobody who trains shall lose a run because there is nobody who reads along any more, at
        // which the standard library's macro panics.
        let _gone = writeln!(io::stderr(), "brigade: {sentence}");
    }
}
