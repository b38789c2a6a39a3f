//! What tests that cross crates share.

pub mod command;
pub mod sys;
pub mod tidy;
