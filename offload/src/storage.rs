//! Transfers between arena memory and files: io_uring, or threads where it is forbidden.
//!
//! One thread for each [`Storage`] keeps one engine busy: requests come in through `inbox`, become
//! transfers of at most a block in `queue` and `pieces`, and go to an engine that completes them in
//! any order. A buffer is handed in with its request and comes back with the outcome, so nobody can
//! touch memory that the system still transfers into. Every result is looked at: what was not
//! transferred is an error that names the file, the place and the numbers.
//!
//! There are three engines behind the one trait of `engine`: `uring` (with rings of their own for
//! polling and for commands straight to a drive), `threads`, and [`simulated`] devices. What a
//! file's bytes mean is not known here; [`crate::layout`] knows.
//!
//! Beside all that, a [`Partial`] is written as any file is, and bears its name only once it is
//! whole; [`write_whole`] does that with what is written in one go, wherever that is to go.

mod body;
mod claim;
mod engine;
mod error;
mod file;
#[cfg(test)]
mod folder;
mod inbox;
mod kind;
mod mapped;
mod names;
mod namespace;
mod owner;
mod partial;
mod pieces;
mod place;
mod queue;
mod request;
mod serve;
pub mod simulated;
mod store;
mod sys;
mod threads;
mod uring;
mod wake;
mod whole;

pub use error::{Operation, StorageError};
pub use file::File;
pub use mapped::Mapped;
pub use partial::{Abandoned, Partial, abandon, clear};
pub use request::{Outcome, Pending, Priority, wait_all};
pub use store::{EngineChoice, Settings, Storage};
pub use whole::{target, write_whole};
