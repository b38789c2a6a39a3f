//! Communicators: schedules linked into plans and run over transports.

pub mod kernels;
pub mod naive;

mod dtype;
mod float8;
mod op;

pub use dtype::{Dtype, Element, UnknownDtype};
pub use float8::{F8e4m3, F8e5m2};
pub use op::{CustomOp, Op, UnknownOp};
