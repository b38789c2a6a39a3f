//! Communicators: schedules linked into plans and run over transports.
//!
//! A [`Communicator`] is a group of ranks that make the same calls in the same order. A call is a
//! [`brigade_schedule`] program, linked once into a plan of offsets, and run by a cursor that is
//! polled over the wires of [`brigade_transports`]. This crate names a transport in one table only
//! ([`transports`]), and knows nothing of C.

#![warn(missing_debug_implementations)]

// `Communicator` is documented in this order: how one is made, its calls, groups made of it, calls
// that go on, the rest; and what needs a device at the end.
mod join;

mod typed;

mod messages;
mod sharded;
mod split;

mod grow;
mod shrink;

mod owned;
mod work;

mod communicator;
mod describe;
mod window;

pub mod bootstrap;
pub mod bytes;
pub mod control;
pub mod device;
pub mod kernels;
pub mod launch;
pub mod naive;
pub mod transports;

mod aside;
mod call;
mod choice;
mod codes;
mod debug;
mod drive;
mod dtype;
mod eagerness;
mod engine;
mod error;
mod extent;
mod float8;
mod header;
mod inside;
mod interrupt;
mod locked;
mod maker;
mod middle;
mod nodes;
mod numbers;
mod op;
mod plan;
mod purpose;
mod reduction;
mod run;
mod say;
mod select;
mod settings;
mod slip;
mod sys;
mod threads;
mod tuning;
mod wait;
mod world;

pub use brigade_transports::LendingStats;
pub use call::{Buffers, Call, Counts};
pub use choice::{Choice, Reason};
pub use communicator::{Communicator, Stats};
pub use dtype::{Dtype, Element, UnknownDtype};
pub use error::Error;
pub use float8::{F8e4m3, F8e5m2};
pub use interrupt::interrupt_by;
pub use messages::{Messages, Received};
pub use op::{CustomOp, Op, UnknownOp};
pub use owned::Owned;
pub use settings::{RdmaSettings, SettingRow, Settings, Variable};
pub use sharded::ShardUpdate;
pub use threads::at_once;
pub use tuning::{Rule, Tuning};
pub use window::{Window, WindowSize};
pub use work::{Event, Scope, Work};
