//! What can be done with a file.

/// What a transfer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Sync,
}
