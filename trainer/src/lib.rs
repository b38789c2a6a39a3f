//! A small GPT trained over Brigade: `brigade train`.
//!
//! Read in this order: `layout` (names and places), `model` (forward and backward by hand),
//! `kernels`, `parallel` (who computes and holds what), `train` (the loop). `docs/TRAINER.md` is a
//! tour of it all.

mod agree;
mod args;
mod begin;
mod check;
pub mod checkpoint;
pub mod compare;
pub mod data;
pub mod device;
mod drawing;
mod ending;
mod error;
mod events;
mod extent;
mod held_out;
mod intake;
mod keep;
pub mod kernels;
pub mod layout;
pub mod model;
pub mod moe;
mod norms;
pub mod offload;
pub mod optim;
mod outcome;
pub mod parallel;
mod plan;
pub mod precision;
mod records;
mod report;
mod run;
pub mod runlog;
pub mod sample;
mod saved;
pub mod state;
mod svg;
mod sys;
pub mod tape;
pub mod trace;
mod train;

pub use args::Args;
pub use begin::check_resumed;
pub use check::check;
pub use ending::give_up;
pub use error::Error;
pub use outcome::Outcome;
pub use plan::plan;
pub use records::Output;
pub use saved::Before;
pub use sys::Counting;
pub use train::train;
