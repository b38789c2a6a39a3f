//! Why bytes do not pass between a file and memory of a device.

use std::fmt;
use std::path::PathBuf;

use brigade_cuda::CudaError;

use crate::memory::{ArenaError, OverBudget};
use crate::storage::StorageError;

/// Why bytes did not pass, or not all of them.
#[derive(thiserror::Error)]
pub enum FileProblem {
    /// The device or its driver.
    #[error(transparent)]
    Device(#[from] CudaError),
    /// The file, or what it stands on.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// No memory to be pinned.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// Less memory than the settings ask for.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// There is no such part.
    #[error("{bytes} bytes at {offset} lie beyond the {have} of {}", path.display())]
    Beyond {
        /// The file.
        path: PathBuf,
        /// Where the part begins.
        offset: u64,
        /// How long it is.
        bytes: usize,
        /// How long the file is.
        have: u64,
    },
}

impl fmt::Debug for FileProblem {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
