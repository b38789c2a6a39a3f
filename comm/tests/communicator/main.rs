//! What a communicator promises, on worlds of threads over every transport: each file a promise.

mod any;
#[path = "../best/mod.rs"]
mod best;
mod bytes;
mod collectives;
mod deadlines;
mod described;
mod done;
mod forked;
mod groups;
mod grow;
mod hosted;
mod inside;
mod leaving;
mod messages;
mod operators;
mod owned;
mod panics;
mod refusals;
mod scope;
mod sharded;
mod shrink;
mod soak;
mod typed;
mod unordered;
mod windows;
mod world;
