//! Why an environment does not say who a process is.

use std::path::PathBuf;

use thiserror::Error;

use super::launchers::{has_set, speaker};
use crate::bootstrap::id::IdError;

/// Why the environment does not say who we are.
#[derive(Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// It says one thing but not another that belongs to it.
    #[error("{} {seen}, but {missing} is not set: {advice}", has_set(launcher))]
    Missing {
        /// Whose variables were found.
        launcher: &'static str,
        /// Which, with their values.
        seen: String,
        /// What is not there.
        missing: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A variable has a value that means nothing.
    #[error("{name}={value:?} is not {want}")]
    Malformed {
        /// Which.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        want: &'static str,
    },
    /// A rank that its own job does not have.
    #[error("{} says rank {rank} of {ranks} ranks; ranks count from 0", speaker(launcher))]
    Range {
        /// Who says so.
        launcher: &'static str,
        /// The rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// `BRIGADE_ID` holds no id.
    #[error("BRIGADE_ID: {0}")]
    Id(#[source] IdError),
    /// The file of the secret cannot be read, or is empty.
    #[error("BRIGADE_SECRET_FILE={}: {why}", path.display())]
    SecretFile {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl std::fmt::Debug for LaunchError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
