//! A GPU as what computes: `--device cuda`.
//!
//! | file | what it does |
//! |---|---|
//! | `args` | its flags |
//! | `tape` | memory of a pass on the device |
//! | `gpt` | forward and backward, unit by unit |
//! | `split` | backward in two parts |
//! | `wire` | what crosses between host and device |
//! | `calls` | collectives of the devices themselves |
//! | `division` | ranks that divide the inside of units |
//!
//! Who holds parameters, gradients and moments, and where, is decided in `parallel::device`.

mod args;
mod calls;
mod division;
mod gpt;
mod split;
mod tape;
mod wire;

pub use args::{DeviceArgs, DeviceUse, Machine};
pub(crate) use calls::Calls;
pub(crate) use division::DeviceDivision;
pub(crate) use gpt::DeviceGpt;
pub(crate) use split::DeviceOwed;
pub(crate) use tape::{DeviceTape, Passes, Rooms, Scratch};
pub(crate) use wire::{Results, Wire};
