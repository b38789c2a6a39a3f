//! Optimizers on the host: AdamW and its kin as single fused passes over a shard.
//!
//! One step is: find the norm of the gradients ([`square_sum`], a pass that only reads), make of it
//! the factor that undoes the loss scale and clips ([`SquareSum::factor`]; it also says when the
//! step must be skipped), and let a rule update the shard ([`Update::apply`]: unscale, clip, decay,
//! update and narrow in one pass). [`Lamb`] and [`Lars`] want the norms of each tensor first, which
//! is one pass more: their trust ratio is not known before the last element has been seen.
//!
//! The bits of a result depend on the numbers alone: not on the instruction set, the threads, or
//! where a shard is cut. Hence no fused multiply-add: where the hardware lacks it, it is a slow
//! function, and the passes wait for memory anyway. Hence no approximate roots either, and NaN is
//! always the canonical one. Hardware conversion to bf16 is not used, as it drops subnormals.
//!
//! Measured and not done: streaming stores and prefetching (both lose), and arrays that all begin
//! at a multiple of 2 MiB (up to twice the time: leave them to an arena that staggers them).
//!
//! Nothing here knows where memory came from, what a file is, or who computed the gradients.

mod apply;
mod kernels;
mod norm;
mod rules;
mod shard;

pub use kernels::{Crew, Isa};
pub use norm::{SquareSum, square_sum};
pub use rules::{Adam, AdamW, Lamb, Lars, Lion, Sgd, TensorNorms, Update};
pub use shard::{Gradients, Moment, Narrowed, Shard, ShardError, Weights};
