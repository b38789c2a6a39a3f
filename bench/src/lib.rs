//! Timing collectives and offloading: what is behind `brigade bench` and `brigade offload bench`.
//!
//! It starts no processes: [`run_rank`] is one rank of a world that a launcher made, and
//! [`run_threads`] is a whole world in this process. What is timed, and how, stands in
//! `measure.rs`; what is made of the samples, in `record.rs`.
#![warn(missing_docs)]

mod arena;
mod args;
pub mod cuda;
mod device;
mod explain;
mod failure;
mod kind;
mod measure;
mod median;
mod news;
pub mod offload;
mod plot;
mod progress;
mod record;
mod reference;
mod room;
mod run;
mod session;
pub mod size;
mod sys;
mod table;
mod tune;

pub use args::{Args, Dtypes, Ops, Root, Sweep};
pub use explain::{ExplainArgs, explain_rank};
pub use failure::Failure;
pub use kind::{Case, Kind, Sizes};
pub use record::Record;
pub use room::refuse_too_large;
pub use session::{
    Verdict, are_threads, in_threads, run_rank, run_threads, settings, world_settings,
};
pub use tune::{TuneArgs, tune_rank};
