//! A GPU as what computes: `--device cuda`.
//!
//! | file | what it does |
//! |---|---|
//! | `args` | its flags |
//! | `budget` | how much of it a rank may use |
//! | `text` | the text of a pass, as a rank has it |
//! | `passes`, `tape` | how a pass is made, and its memory on the device |
//! | `gpt` | forward and backward, unit by unit |
//! | `layers` | what is between the stream and the inside of a block, of all who divide a model |
//! | `tiles` | linear layers of which each tile is a unit |
//! | `ring` | attention of ranks that divide tokens |
//! | `mixture` | experts in place of a block's perceptron |
//! | `split` | backward in two parts |
//! | `inputs` | what goes into blocks, kept elsewhere meanwhile |
//! | `wire` | what crosses between host and device |
//! | `calls` | collectives of the devices themselves |
//! | `among` | these, or those of the hosts, of ranks that divide a model |
//! | `division` | ranks that divide the inside of units |
//! | `grid` | linear layers of ranks that divide matrices along both sides |
//! | `gridded` | blocks of these |
//!
//! Who holds parameters, gradients and moments, and where, is decided in `parallel::device`.

mod among;
mod args;
mod budget;
mod calls;
mod division;
mod gpt;
mod grid;
mod gridded;
mod inputs;
mod layers;
mod mixture;
mod passes;
mod ring;
mod split;
mod tape;
mod text;
mod tiles;
mod wire;

pub use args::{DeviceArgs, DeviceUse, Machine};
pub(crate) use calls::{Calls, dtype};
pub(crate) use division::DeviceDivision;
pub(crate) use gpt::DeviceGpt;
pub(crate) use grid::GridRooms;
pub(crate) use inputs::DeviceInputs;
pub(crate) use passes::Passes;
pub(crate) use split::DeviceOwed;
pub(crate) use tape::{DeviceTape, Rooms, Scratch};
pub(crate) use text::Text;
pub(crate) use wire::{Results, Wire};
