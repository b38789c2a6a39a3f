//! The loops, the arithmetic inside them, and the threads they run on.
//!
//! Each pass is one safe Rust loop, generic over the formats of its arrays and over the rule,
//! compiled for each instruction set; the compiler makes the vectors. What is unsafe is the call of
//! a function compiled for an instruction set, and lending borrowed work to threads that live on.

mod crew;
mod isa;
mod lane;
mod rule;
mod sweep;

pub use crew::Crew;
pub use isa::Isa;

pub(super) use lane::Lane;
pub(super) use rule::{
    AdamStep, LambMoments, LambStep, LarsStep, LionStep, Measure, Rule, SgdStep,
};
pub(super) use sweep::{PartSums, measure, squares, update};
