//! Collectives as data: what each rank sends, receives and folds, in chunks, and nothing else.
//!
//! This crate has never seen a byte, a socket or a clock. [`program`] is a pure function from
//! (collective, algorithm, ranks, rank) to a list of [`Move`]s; from that one list a collective is
//! checked, priced, drawn, and elsewhere run.
//!
//! Read in this order: the vocabulary ([`Move`]), an algorithm (`ring.rs`), the proof (`check.rs`).
#![forbid(unsafe_code)]

mod algorithm;
mod bruck;
mod check;
mod cost;
mod direct;
mod doubling;
pub mod draw;
mod expression;
mod graph;
mod halving;
mod hierarchical;
mod moves;
mod names;
mod pairwise;
mod predict;
mod ring;
mod server;
mod tree;
mod write;

pub use algorithm::{Algorithm, program};
pub use check::{Fault, Report, check, check_programs};
pub use cost::{Cost, Link, cost, even_cut, sent_bytes};
pub use moves::{Collective, Move, Program, Span};
pub use names::UnknownName;
pub use predict::predict;
