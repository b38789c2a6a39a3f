//! Collectives as data: what each rank sends, receives and folds, in chunks, and nothing else.
//!
//! This crate has never seen a byte, a socket or a clock. [`program`] is a pure function from
//! (collective, algorithm, ranks, rank) to a list of [`Move`]s; from that one list a collective is
//! checked, priced, drawn, and elsewhere run.
//!
//! ```
//! use brigade_schedule::{Algorithm, Collective, check, draw, program};
//!
//! let rank = |rank| program(Collective::AllReduce, Algorithm::Halving, 4, rank);
//! let programs: Option<Vec<_>> = (0..4).map(rank).collect();
//! print!("{}", draw::text(&programs.unwrap()));
//! // rank 0: 2-3→2 0-1⊕2 1→1 0⊕1 0→1 1←1 0-1→2 2-3←2
//! // ...
//! assert_eq!(check(Collective::AllReduce, Algorithm::Halving, 4)?.steps, 4);
//! # Ok::<(), brigade_schedule::Fault>(())
//! ```
//!
//! Read in this order: the vocabulary (`moves.rs`), an algorithm (`ring.rs`), how algorithms are
//! composed (`write.rs`, `hierarchical.rs`), the proof (`check.rs`), the price (`cost.rs`).
#![forbid(unsafe_code)]

mod algorithm;
mod bruck;
mod check;
mod cost;
mod direct;
mod doubling;
pub mod draw;
mod expression;
mod families;
mod fault;
mod graph;
mod halving;
mod hierarchical;
mod moves;
mod names;
mod network;
mod pairwise;
mod predict;
mod renamed;
mod ring;
mod server;
mod tree;
mod write;

pub use algorithm::Algorithm;
pub use check::{Report, check, check_programs};
pub use cost::{Cost, cost, even_cut, sent_bytes};
pub use families::{RANKS_MAX, program};
pub use fault::Fault;
pub use moves::{Collective, Move, Program, Span};
pub use names::UnknownName;
pub use network::{Link, Network, TwoLevels};
pub use predict::predict;
