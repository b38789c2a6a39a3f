//! Why a rank does not get into its world.

use std::io;

use brigade_transports::{MAKE_THREAD, remedy};
use thiserror::Error;

use super::id::IdError;
use super::store::StoreError;
use crate::control::{CARD_BYTES_MAX, Refusal};

/// Why a rank did not get into its world.
#[derive(Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The root gives no seat: what the job was started with does not fit together.
    #[error("{why}{}", hint(*kind))]
    Refused {
        /// What does not fit.
        kind: Refusal,
        /// The root's sentence; it names ranks, processes and hosts.
        why: String,
    },
    /// Nothing that answers like the root was found in time.
    #[error(
        "rank {rank} waited {} s for the root at {root} (at last: {last}): check that the root's \
         process runs and that its address can be reached from here", *waited_ms as f64 / 1e3
    )]
    Unreachable {
        /// Who was looking.
        rank: usize,
        /// Where.
        root: String,
        /// For how long.
        waited_ms: u64,
        /// How the last attempt ended.
        last: String,
    },
    /// The root cannot listen where it was told to.
    #[error(
        "the root cannot listen at {address}: {source}{}{}",
        more("socket", source),
        taken(source)
    )]
    Listen {
        /// Where.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// A unique id that is none.
    #[error(transparent)]
    Id(#[from] IdError),
    /// A store of PyTorch's that does not help.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The id has led this rank to its world before.
    #[error(
        "this process has joined as rank {rank} by this unique id before, and an id leads to one \
         world: keep the communicator that it gave, split it, or draw another id"
    )]
    Spent {
        /// The rank.
        rank: usize,
    },
    /// A card longer than [`CARD_BYTES_MAX`].
    #[error("a card of {bytes} bytes; at most {CARD_BYTES_MAX} are carried")]
    CardTooLong {
        /// Its length.
        bytes: usize,
    },
    /// The rank has no card: there is no way to reach it.
    #[error("{why}")]
    NoCard {
        /// What was tried.
        why: String,
    },
    /// A rank that its own world does not have, or a world without a root.
    #[error("rank {rank} of {ranks} cannot join: {why}")]
    Contradiction {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
        /// What is wrong.
        why: &'static str,
    },
    /// The system refused something that bootstrap cannot do without.
    #[error("{what} failed: {source}{}", more(MAKE_THREAD, source))]
    System {
        /// What.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl std::fmt::Debug for JoinError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // In one piece: that goes to standard error as it is, where other ranks print theirs.
        f.write_str(&self.to_string())
    }
}

impl JoinError {
    /// Whether somebody else listens there.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self, Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse)
    }

    /// Whether the system had no more of what joining takes.
    pub(crate) fn is_exhausted(&self) -> bool {
        match self {
            Self::Listen { source, .. } => remedy("socket", source).is_some(),
            Self::System { source, .. } => remedy(MAKE_THREAD, source).is_some(),
            _ => false,
        }
    }
}

/// What to do, behind what the system said.
fn more(call: &str, error: &io::Error) -> String {
    remedy(call, error).map_or(String::new(), |remedy| format!("; {remedy}"))
}

fn taken(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => ": has another process rank 0, too, or another job this port?",
        io::ErrorKind::PermissionDenied => {
            ": may this user listen there? Ports below 1024 are the administrator's"
        }
        _ => "",
    }
}

fn hint(kind: Refusal) -> &'static str {
    match kind {
        Refusal::DuplicateRank => ": give each a rank of its own",
        Refusal::RankOutOfRange | Refusal::RanksDiffer => ": start all with the same number",
        Refusal::RanksMissing => ": look at the missing processes' own output",
        Refusal::Version => ": use one version of the library in the whole job",
        Refusal::Secret => ": give all processes the same id or BRIGADE_SECRET",
        Refusal::EncryptionDiffers => ": set BRIGADE_ENCRYPT on all of them, or on none",
        Refusal::RootClosed | Refusal::RankUnable => "",
    }
}

/// What makes an error of what the system said of `what`.
pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> JoinError {
    move |source| JoinError::System { what, source }
}
