//! Optimizers: the same bits however they are computed, and the right numbers.

mod bits;
mod numbers;
mod refusals;
mod right;
mod torch;
