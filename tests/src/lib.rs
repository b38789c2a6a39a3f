//! What tests that cross crates share.

pub mod tidy;
