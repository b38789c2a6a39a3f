//! One suite for every engine: what goes in comes out, and nothing is claimed that did not happen.

mod devices;
mod faults;
mod hurry;
mod mapped;
mod namespace;
mod owned;
mod transfers;
mod world;
