//! libbrigade: what Rust users have, for C and everything that can call C.
//!
//! Only this crate knows C. `include/brigade.h` is made of its public items, by the test
//! `tests/header.rs`, so their words are written for whoever reads the header.
//!
//! What comes in is hostile until parsed; how, is `brigade_wall`'s to know.

#![allow(non_camel_case_types, reason = "the names are C's")]
#![allow(clippy::missing_safety_doc, reason = "the header says once what all pointers owe")]

pub mod adamw;
pub mod arena;
pub mod collective;
pub mod comm;
pub mod comm_setting;
pub mod device;
pub mod device_collective;
pub mod device_rooted;
pub mod divide;
pub mod dtype;
pub mod error;
pub mod group;
pub mod id;
pub mod interrupt;
pub mod memory;
pub mod message;
pub mod op;
pub mod rooted;
pub mod settings;
pub mod store;
pub mod version;
pub mod window;
pub mod work;

mod call;
mod floats;
mod on_device;
mod shape;
mod thread;
