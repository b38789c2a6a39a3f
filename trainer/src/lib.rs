//! A small GPT trained over Brigade: `brigade train`.
//!
//! Read in this order: `layout` (one flat buffer), `model` (forward and backward by hand), `kernels`,
//! `parallel` (what ranks do with gradients), `train` (the loop).

pub mod data;
pub mod error;
pub mod kernels;
pub mod layout;
pub mod model;
pub mod optim;
pub mod tape;

pub use error::Error;
