//! One suite for every engine: what goes in comes out, and nothing is claimed that did not happen.

mod faults;
mod mapped;
mod namespace;
mod transfers;
mod world;
