//! A GPU above the host's memory: what crosses, crosses by pinned memory, on streams of its own for
//! each direction, so that both directions and the device's arithmetic happen at the same time.
//!
//! | file | what it does |
//! |---|---|
//! | `staging` | numbers that lie anywhere on the host, through a few pinned slots |
//! | `pinned` | the arena's memory, pinned where it lies, so that buffers cross without a copy |
//! | `files` | files and memory of the device, by GPUDirect Storage where that is there |
//! | `rates` | how near that comes to long pinned copies: up, down and both |
//!
//! Not here: what the device computes, and what the bytes mean.

mod files;
mod pinned;
mod rates;
mod staging;

pub use brigade_cuda::CudaError as Problem;
pub use files::{DeviceFile, DeviceFiles, FileMemory, FileProblem, FileSettings, Part, Way};
pub use pinned::{Flight, Lane, PinnedArena};
pub use rates::{Crossing, Rates};
pub use staging::{Download, Upload};
