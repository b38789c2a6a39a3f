//! However a model is trained, the digits are those of one process, and bytes are as predicted.

mod activations;
mod bubbles;
mod gradients;
mod offload;
mod optimizers;
mod pipelines;
mod precision;
mod recompute;
mod schedules;
mod stages;
mod tiers;
mod tiling;
mod travel;
mod world;
