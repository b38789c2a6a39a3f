//! State that does not fit where it is used: memory and files as tiers, and what runs over them.
//!
//! * [`memory`]: one arena for each process, with a hard budget
//! * [`storage`]: transfers between arena memory and files, at the device's speed
//! * [`layout`]: what lies where in a file, so that a crash leaves the old state or the new one
//! * [`store`]: states in files, tensors in tiers; the files that are swapped to are a checkpoint
//! * [`optimizer`]: updates of parameters on the host, each a single pass
//! * [`step`]: an optimizer's step over state that passes through memory chunk by chunk
//! * [`device`]: a GPU above the host's memory, and what crosses between them
//! * [`plan`]: what lives where and what that costs, said before the first step
//!
//! Nothing here knows what a collective is, and a rank is a number in the name of a file.
#![warn(missing_docs)]

pub mod device;
pub mod layout;
pub mod memory;
pub mod optimizer;
pub mod plan;
pub mod step;
pub mod storage;
pub mod store;
