//! A GPT's operations on a CUDA device: kernels as text, compiled when a run begins, and products
//! by cuBLAS, or by a kernel of our own where there is none.
//!
//! | file | what it knows |
//! |---|---|
//! | `cuda/*.cu` | what one block of threads does |
//! | [`View`], [`Room`] | ranges of the device's memory |
//! | [`Product`] | shapes of products, checked |
//! | `blas` | cuBLAS, found at run time |
//! | [`Device`] | kernels that are loaded, and the stream that they go into, in order |
//!
//! Calls return before anything is done: whoever looks at numbers waits for the stream.

mod attention;
mod blas;
mod chunks;
mod launch;
mod linear;
mod mixture;
mod operations;
mod product;
mod tiles;
mod view;

pub use blas::{LIBRARY_VARIABLE as BLAS_VARIABLE, find_blas};
pub use chunks::Attending;
pub use launch::{Device, open_context};
pub use linear::Columns;
pub use mixture::Routes;
pub use operations::{AdamWStep, Norm, SQUARES};
pub use product::{Matrix, Product};
pub use view::{Room, View};

use brigade_cuda::nvrtc::Source;
use serde::Serialize;

/// The text of all kernels.
const TEXT: &str = concat!(
    include_str!("cuda/numbers.cu"),
    include_str!("cuda/elements.cu"),
    include_str!("cuda/rows.cu"),
    include_str!("cuda/products.cu"),
    include_str!("cuda/tiles.cu"),
    include_str!("cuda/chunks.cu"),
    include_str!("cuda/mixture.cu"),
);

/// All kernels, with f32 inside, with bf16, and with f16.
pub const SOURCES: [Source; 3] = [
    Source::new("trainer", TEXT),
    Source { options: &["-DNARROW"], ..Source::new("trainer-bf16", TEXT) },
    Source { options: &["-DHALF"], ..Source::new("trainer-f16", TEXT) },
];

/// What products read on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ProductFormat {
    /// f32, all of it.
    Full,
    /// f32, of which products may read 10 bits of each fraction.
    Tf32,
    /// bf16.
    Bf16,
    /// f16.
    F16,
}

impl ProductFormat {
    /// Bytes of each number inside.
    pub fn size(self) -> usize {
        if matches!(self, ProductFormat::Bf16 | ProductFormat::F16) { 2 } else { 4 }
    }

    /// The kernels for it.
    pub fn source(self) -> &'static Source {
        let [full, bf16, f16] = const { &SOURCES };
        match self {
            ProductFormat::Full | ProductFormat::Tf32 => full,
            ProductFormat::Bf16 => bf16,
            ProductFormat::F16 => f16,
        }
    }
}
