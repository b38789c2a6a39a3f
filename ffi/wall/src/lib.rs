//! The wall between C and the communicator, for every library that stands in it.
//!
//! What comes in is hostile until parsed: a handle is a number that is looked up and never followed
//! ([`handle`]), a pointer is compared with NULL and its alignment before it is used
//! ([`mod@pointer`]), and a panic ends here ([`failure`]). What cannot be seen from here is whether
//! a pointer that is neither NULL nor misaligned leads to enough memory ([`memory`]). Memory of
//! devices is told apart from the host's ([`sight`]), and calls on it keep their order across the
//! streams that programs pass ([`streams`]). A child of `fork` is refused what is its parent's
//! ([`mod@fork`], [`handle`]).
//!
//! Nothing here has a name that C could call: what functions are called, which numbers results have
//! and what the header says is each library's own.

#![allow(clippy::missing_safety_doc, reason = "the headers say once what all pointers owe")]

pub mod failure;
pub mod fork;
pub mod handle;
pub mod listed;
pub mod memory;
pub mod pages;
pub mod pointer;
pub mod roots;
pub mod sight;
pub mod streams;

pub use failure::{Cause, Failure, Outcome};
