//! Updates over ranges of the flat buffer.

mod adamw;

pub use adamw::{AdamW, Hyper, learning_rate};
