//! Why a step did not reach its end.

use std::error::Error;
use std::fmt;

use crate::memory::OverBudget;

/// What was being done to a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Doing {
    /// Read this array of it.
    Read(usize),
    /// Update it.
    Update,
    /// Write this array of it.
    Write(usize),
}

/// A step that stopped. Nothing is on its way any more: every transfer has ended, or has been given
/// up on after the limit. The first trouble is named; what followed from it is not.
#[derive(thiserror::Error)]
pub enum StepError {
    /// The memory of a chunk, given up on in an earlier step, could not be replaced.
    #[error("no memory to begin the step: {0}")]
    Memory(#[from] OverBudget),
    /// A chunk could not be read, updated or written.
    #[error("chunk {chunk} of {chunks}: {doing}: {cause}; {updated} chunks had been updated")]
    Stopped {
        /// Which chunk, counted from 0.
        chunk: usize,
        /// How many there are.
        chunks: usize,
        /// What was being done to it.
        doing: Doing,
        /// Chunks that had been updated, from the first on: arrays in memory have new values there
        /// and old ones behind, and streamed arrays have new ones in some of these.
        updated: usize,
        /// What went wrong.
        #[source]
        cause: Box<dyn Error + Send + Sync>,
    },
}

impl std::fmt::Debug for StepError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(array) => write!(f, "reading array {array}"),
            Self::Update => write!(f, "updating it"),
            Self::Write(array) => write!(f, "writing array {array}"),
        }
    }
}
