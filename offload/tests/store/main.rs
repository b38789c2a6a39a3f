//! States in files, checkpoints, safetensors and tiers: on real files, and on a simulated device.

mod exchange;
mod owners;
mod place;
mod ranks;
mod readers;
mod states;
mod tiers;
mod works;
