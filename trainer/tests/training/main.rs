//! However a model is trained, the digits are those of one process, and bytes are as predicted.

mod activations;
mod ended;
mod experts;
mod gradients;
mod kept;
mod layers;
mod offload;
mod optimizers;
mod pipelines;
mod precision;
mod recompute;
mod reshard;
mod schedules;
mod stages;
mod tensor;
mod tiers;
mod tiling;
mod told;
mod travel;
mod unchecked;
mod world;
