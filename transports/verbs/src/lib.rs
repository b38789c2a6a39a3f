//! RDMA verbs, found at run time.
//!
//! | layer | what it knows |
//! |---|---|
//! | `sys` | libibverbs as C sees it: structures and constants |
//! | `library` | loading it; every code becomes a [`Result`] |
//! | [`Device`], [`QueuePair`], [`MemoryRegion`], ... | who owns what, and how long it must live |
//! | [`Status`] | what a failed work request means, and what to do |
//!
//! Only reliable connections are here, with what a transport needs: writes, reads, fetch-and-add
//! and messages without a body. Whoever posts a write names a place in a [`MemoryRegion`]; that it
//! lies within is checked. What the peer writes is not seen by the compiler: memory that a peer may
//! write is only looked at through [`Memory::read`] and [`Memory::with`], and what it holds is
//! settled once a completion has said so.
#![warn(missing_docs)]

mod completion;
mod device;
mod gid;
mod library;
mod queue_pair;
mod region;
mod status;
#[allow(non_camel_case_types)]
mod sys;

use thiserror::Error;

pub use completion::{Completion, CompletionChannel, CompletionQueue};
pub use device::{Device, LinkLayer, PortState, ProtectionDomain};
pub use gid::{Gid, GidEntry, GidKind};
pub use library::Library;
pub use queue_pair::{Limits, Path, QueuePair, Remote};
pub use region::{Access, Memory, MemoryRegion};
pub use status::Status;

/// A call of libibverbs that failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum VerbsError {
    /// The library is not there, or not usable.
    #[error("{why}")]
    Missing {
        /// What was tried.
        why: String,
    },
    /// A call returned an error.
    #[error("{call} failed ({}): {what}", std::io::Error::from_raw_os_error(*errno))]
    Call {
        /// The function.
        call: &'static str,
        /// Its error number.
        errno: i32,
        /// What we were doing.
        what: String,
    },
}

impl VerbsError {
    /// The error of a call that just failed and left its number in `errno`.
    fn last(call: &'static str, what: impl Into<String>) -> Self {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Self::Call { call, errno, what: what.into() }
    }
}

/// A result with a [`VerbsError`].
pub type Result<T> = std::result::Result<T, VerbsError>;
