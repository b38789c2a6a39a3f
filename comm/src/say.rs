//! Where a sentence goes that a person should read although no call has failed.

/// Say it where the user looks: in the log if there is one, else on standard error.
pub(crate) fn warn(sentence: &str) {
    tracing::warn!("{sentence}");
    if !tracing::dispatcher::has_been_set() {
        eprintln!("brigade: {sentence}");
    }
}
