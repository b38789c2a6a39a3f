//! What can go wrong with a state, with the path in front.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::held::Held;
use crate::layout::{BadGeometry, Fault, Missing, Unplaceable, Unrecoverable, Unsealable};
use crate::memory::OverBudget;
use crate::storage::StorageError;

/// Why a state was not read or not written. Whatever was committed before is still there.
#[derive(Error)]
pub enum StoreError {
    /// A transfer failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The arena has no room for the blocks that are on their way.
    #[error("no memory to move blocks with: {0}")]
    OverBudget(#[from] OverBudget),
    /// Bytes in a file are not what was written there.
    #[error("{}: {fault}", path.display())]
    Damaged {
        /// The file.
        path: Arc<Path>,
        /// Where, what was wanted and what was found.
        fault: Fault,
    },
    /// A file is not as long as its superblock says.
    #[error("{}: wanted {wanted_bytes} bytes, found {found_bytes}: truncated?", path.display())]
    Length {
        /// The file.
        path: Arc<Path>,
        /// The length that its superblock asks for.
        wanted_bytes: u64,
        /// Its length.
        found_bytes: u64,
    },
    /// The files hold no generation that is whole.
    #[error("{paths:?}: {why}")]
    Unrecoverable {
        /// The stripes, in order.
        paths: Vec<PathBuf>,
        /// What was found instead.
        why: Unrecoverable,
    },
    /// The generation asked for is not there.
    #[error("{paths:?}: wanted {wanted}, found generations {found:?}")]
    NoGeneration {
        /// The stripes, in order.
        paths: Vec<PathBuf>,
        /// What was asked for.
        wanted: String,
        /// What is there.
        found: Vec<u64>,
    },
    /// The tensors make no state.
    #[error(transparent)]
    Unplaceable(#[from] Unplaceable),
    /// The sizes make no state.
    #[error(transparent)]
    Geometry(#[from] BadGeometry),
    /// The generation is not complete.
    #[error(transparent)]
    Unsealable(#[from] Unsealable),
    /// The states hold only parts of what is wanted.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// Two tensors of a store have one name, by which only one of them could be reached.
    #[error("two tensors are called {name:?}")]
    Namesakes {
        /// Their name.
        name: String,
    },
    /// Nobody has heard of this tensor.
    #[error("no tensor is called {name:?}")]
    NoTensor {
        /// The name asked for.
        name: String,
    },
    /// The tensor is lent out: it comes back with `put` or `give_back`.
    #[error("tensor {name:?} is lent out already")]
    Lent {
        /// Its name.
        name: String,
    },
    /// The tensor was not moved in time. It is still on its way, and can be waited for again.
    #[error("tensor {name:?} was not {} after {waited_ms} ms; it is still on its way",
            if *is_write { "in its file" } else { "in memory" })]
    Late {
        /// Its name.
        name: String,
        /// Whether it is on its way out of memory.
        is_write: bool,
        /// How long was waited.
        waited_ms: u64,
    },
    /// The tensor begins or ends in the middle of a block, so it cannot be moved alone.
    #[error("tensor {name:?} shares a block with another: pack them at multiples of a block")]
    Shared {
        /// Its name.
        name: String,
    },
    /// All memory of the store is lent out.
    #[error("{wanted_bytes} bytes do not fit into a host tier of {limit_bytes}: {held}")]
    HostFull {
        /// Bytes asked for.
        wanted_bytes: usize,
        /// Most bytes that the store may hold in memory.
        limit_bytes: usize,
        /// Where its tensors are.
        held: Held,
    },
    /// Parts of the draft were not waited for, and not all of their blocks are handed in.
    #[error("{runs} parts of the draft were not waited for until they were written")]
    Unsent {
        /// How many.
        runs: usize,
    },
    /// A newer draft was begun, so this one must not write any more.
    #[error("generation {number} was begun again; this draft of it is void")]
    Superseded {
        /// The generation that both would become.
        number: u64,
    },
    /// Somebody else has written to the state since it was opened here.
    #[error(
        "{paths:?}: generations {seen:?} when it was opened, {found:?} now: somebody else has \
         written to it; open it again"
    )]
    Overtaken {
        /// The stripes, in order.
        paths: Vec<PathBuf>,
        /// The generations that were there, newest first.
        seen: Vec<u64>,
        /// Those that are there.
        found: Vec<u64>,
    },
    /// No checkpoint is there, and none ever was: nothing was committed to any file that is.
    #[error("{}: {what}", folder.display())]
    Nothing {
        /// Where it was looked for.
        folder: PathBuf,
        /// What is there instead.
        what: &'static str,
    },
    /// The files of a checkpoint are not all there.
    #[error("{}: {what}", folder.display())]
    Incomplete {
        /// Where they were looked for.
        folder: PathBuf,
        /// What is there and what is missing.
        what: String,
    },
    /// States that belong together, not each of them once.
    #[error("{paths:?}: {what}")]
    Apart {
        /// The files of the state.
        paths: Vec<PathBuf>,
        /// What is missing, or there twice.
        what: String,
    },
    /// A tensor that no memory of the store could ever hold.
    #[error(
        "tensor {name:?} takes {wanted_bytes} bytes of memory, and the store has {limit_bytes}"
    )]
    TooLong {
        /// Its name.
        name: String,
        /// What it takes, in whole pages.
        wanted_bytes: u64,
        /// Most bytes that the store may hold in memory.
        limit_bytes: usize,
    },
    /// A file in another format.
    #[error("{}: {what}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What the system or the format's reader says.
        what: String,
    },
}

impl std::fmt::Debug for StoreError {
    /// The sentence, as `Display` has it: what a `main` that returns an error prints.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}
