//! Collective communication between processes: the crate that programs depend on.
//!
//! ```
//! use brigade::{Communicator, Op};
//!
//! fn main() -> Result<(), brigade::Error> {
//!     let comm = Communicator::from_env()?;
//!
//!     let mut numbers = vec![comm.rank() as f32 + 1.0; 1000];
//!     comm.all_reduce(&mut numbers, Op::Sum)?;
//!
//!     println!("rank {} of {}: every number is now {}", comm.rank(), comm.size(), numbers[0]);
//!     Ok(())
//! }
//! ```
//!
//! Started as it is, that program is a world of one rank. `brigade run -n 4 -- PROGRAM` starts four
//! on this machine; under torchrun, `mpirun` or `srun` it finds its rank as other programs do.
//!
//! | to do | see |
//! |---|---|
//! | join a world | [`Communicator::from_env`], [`from_id`](Communicator::from_id) |
//! | a world of threads | [`Communicator::local_world`] |
//! | a collective | [`Communicator::all_reduce`] and its sisters |
//! | a collective while you do something else | [`Communicator::scope`], [`Work`] |
//! | an optimizer step whose state is sharded | [`Communicator::sharded_update`] |
//! | state that does not fit into memory | [`offload`] |
//! | messages between two ranks | [`Communicator::messages`] |
//! | calls on memory of a GPU | [`Communicator::on_device`], [`device`] |
//! | smaller groups | [`Communicator::split`] |
//! | know what a call will do, and why | [`Communicator::choice_for`], [`schedule`] |
//!
//! This crate holds no code of its own, only names; the feature `cli` (on by default) adds the
//! `brigade` command. Libraries want `default-features = false`.

pub use brigade_comm::bootstrap::UniqueId;
pub use brigade_comm::launch::{Launch, RootSpec};
pub use brigade_comm::{
    Buffers, Call, Choice, Communicator, Counts, CustomOp, Dtype, Element, Error, Event, F8e4m3,
    F8e5m2, LendingStats, Messages, Op, Owned, RdmaSettings, Reason, Received, Rule, Scope,
    Settings, ShardUpdate, Stats, Tuning, Window, WindowSize, Work, interrupt_by,
};

/// Collectives as data: algorithms, their proofs, prices and pictures.
pub mod schedule {
    pub use brigade_schedule::*;
}

/// Tiers of memory, storage, and optimizers on the host.
pub mod offload {
    pub use brigade_offload::*;
}

/// Calls on memory of devices, in the order of a stream: [`Communicator::on_device`].
pub mod device {
    pub use brigade_comm::device::*;
}

/// How bytes move between two ranks, for those who bring a transport of their own.
pub mod transports {
    pub use brigade_transports::*;
}
