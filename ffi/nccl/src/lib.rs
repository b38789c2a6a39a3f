//! libbrigade_nccl: a program that was compiled against NCCL runs on memory of the host, without a
//! GPU, and on memory of devices, with several ranks on one.
//!
//! It has NCCL's names and its soname, libnccl.so.2, over the same communicator as libbrigade. What
//! differs from NCCL: a call on memory of the host ignores its stream and has been carried out when
//! it returns (or, on a communicator with `blocking = 0`, when ncclCommGetAsyncError says so). What
//! cannot be done here returns ncclInvalidUsage, and ncclGetLastError says why; what has another
//! result is empty then.
//!
//! What this is not: a header. Programs bring the one that they were compiled with.

#![allow(non_camel_case_types, non_snake_case, reason = "the names are NCCL's")]
#![allow(clippy::missing_safety_doc, reason = "NCCL's documentation says what pointers owe")]
#![allow(missing_docs, reason = "every public item is one of NCCL's, whose users know it")]

pub mod absent;
pub mod collective;
pub mod comm;
pub mod config;
pub mod device;
pub mod divide;
pub mod group;
pub mod grow;
pub mod id;
pub mod join;
pub mod leave;
pub mod memory;
pub mod message;
pub mod op;
pub mod profiled;
pub mod result;

mod factor;
mod joining;
mod open;
