//! Calls on memory of devices against the judge, with a driver that needs no device.
//!
//! Every rank is a thread (or, in `processes.rs`, a process) with the fake driver of
//! `transports/cuda/fake`; kernels are compiled from the same source as for a device.

mod calls;
mod endings;
mod failures;
mod graphs;
mod groups;
mod lending;
mod linked;
#[expect(dead_code, reason = "nobody here pulls a plug, or speaks IPv6 alone")]
#[path = "../hosts/net.rs"]
mod net;
mod nodes;
mod processes;
mod races;
mod reach;
mod rows;
mod streams;
mod waits;
mod windows;
mod world;
