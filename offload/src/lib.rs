//! State that does not fit where it is used: memory and files as tiers, and what runs over them.
//!
//! * [`memory`]: one arena for each process, with a hard budget
//! * [`storage`]: transfers between arena memory and files, at the device's speed
//! * [`layout`]: what lies where in a file, so that a crash leaves the old state or the new one
//! * [`optimizer`]: updates of parameters on the host, each a single pass
//! * [`plan`]: what lives where and what that costs, said before the first step
//!
//! Nothing here knows what a rank or a collective is.
#![warn(missing_docs)]

pub mod layout;
pub mod memory;
pub mod optimizer;
pub mod plan;
pub mod storage;
