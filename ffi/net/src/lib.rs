//! libnccl-net-brigade: Brigade's transports as a network plugin for NCCL, for memory of the host.
//!
//! Whoever loads it finds a table of functions for each version of the interface, 8 to 12
//! (`tables`); behind them is one set of functions (`calls`), and of rooms:
//!
//! * `device`: which transports there are: `tcp`, and `rdma` where there is a card
//! * `meeting`: listen, connect and accept; two processes meet by a unique id, which is exactly as
//!   long as a handle may be, and open a transport of their own with its secret
//! * `sender`, `receiver`: one connection; the receiver tells the sender what it has posted, so
//!   that nothing is on its way that has no place to go to; `frame`: what they tell each other
//! * `registry`: handles are numbers that are looked up and never followed
//! * `memory`: what was registered; bytes outside of it are not touched
//! * `fault`: errors as numbers, and as sentences for the log; no panic crosses
//!
//! No function waits: what takes time (meeting, parting) is done by threads that are polled.

mod calls;
mod device;
mod fault;
mod frame;
mod meeting;
mod memory;
mod parting;
mod receiver;
mod registry;
mod sender;
mod tables;
