//! Kernels that are loaded, and how many threads each launch gets.

use super::blas::{self, Blas, PRODUCTS_MAX};
use super::{Matrix, Product, ProductFormat, View};
use crate::error::Error;
use brigade_cuda::{Arg, Context, Cuda, Function, Launch, Module, Stream, nvrtc};

/// A device that computes: its kernels, and the stream that they go into.
pub struct Device {
    pub(super) kernels: Kernels,
    blas: Option<Blas>,
    stream: Stream,
    inside: ProductFormat,
    /// One line about what multiplies.
    products: String,
    /// Of any of our kernels, in a block.
    threads_max: u32,
    multiprocessors: u32,
}

macro_rules! kernels {
    ($($name:ident)*) => {
        /// Each kernel of the source, by its name.
        pub(super) struct Kernels {
            $(pub(super) $name: Function,)*
        }

        impl Kernels {
            fn of(module: &Module) -> brigade_cuda::Result<Kernels> {
                Ok(Kernels { $($name: module.function(stringify!($name))?,)* })
            }
        }
    };
}

kernels! {
    gelu gelu_backward add to_act to_bf16 add_bf16 start_stream start_inside embed embed_places
    squares adamw layernorm layernorm_backward norm_slices column_slices token_slices fold_slices
    causal_softmax softmax_backward cross_entropy sum_losses product_wide product_inside
    attention_tiles attention_tiles_queries attention_tiles_keys chunk_softmax chunk_backward
    chunk_deltas take_columns put_columns join_tiles choose_experts send_rows combine_answers
    share_gradients send_gradients add_returned gate_backward
}

/// Side of a tile of our own product, and the threads that it is written for.
const TILE: usize = 64;
const THREADS: u32 = 256;
/// Threads that go together.
const WARP: usize = 32;

/// The context of the `index`-th device of this machine, modulo how many there are.
///
/// Errors: `Setting` that says what is missing, `Device` for what the driver says.
pub fn open_context(index: usize) -> Result<Context, Error> {
    let missing = |what: brigade_cuda::Missing| {
        Error::setting("device", format!("there is no CUDA here: {what}; {}", what.next_step))
    };
    let devices = Cuda::load().map_err(missing)?.devices()?;
    let Some(device) = devices.get(index % devices.len().max(1)) else {
        return Err(Error::setting("device", "CUDA has no device here".to_string()));
    };
    Ok(Context::new(device)?)
}

impl Device {
    /// The first device of this machine, or the `index`-th modulo how many there are, so that ranks
    /// of a machine spread over its devices. Compiles the kernels unless they are kept from before.
    ///
    /// Errors: `Setting` that says what is missing, `Device` for what the driver says.
    pub fn open(index: usize, inside: ProductFormat) -> Result<Device, Error> {
        Device::new(&Stream::new(&open_context(index)?)?, inside)
    }

    /// Kernels for this stream.
    ///
    /// Errors: what compiler or driver say; `Setting` where cuBLAS is named and cannot be used.
    pub fn new(stream: &Stream, inside: ProductFormat) -> Result<Device, Error> {
        let context = stream.context();
        let module = nvrtc::module(context, inside.source())?;
        let kernels = Kernels::of(&module)?;
        let (blas, products) = match Blas::new(stream, inside) {
            Ok(blas) => (Some(blas), "cuBLAS".to_string()),
            Err(why) if blas::is_named() => {
                let problem = format!("{} cannot be used: {why}", blas::LIBRARY_VARIABLE);
                return Err(Error::setting("device", problem));
            }
            Err(why) => (None, format!("own kernels ({why})")),
        };
        let threads_max = THREADS.min(kernels.product_inside.threads_max()?);
        let multiprocessors = context.device().multiprocessors.max(1);
        let stream = stream.clone();
        Ok(Device { kernels, blas, stream, inside, products, threads_max, multiprocessors })
    }

    /// The stream that everything goes into, in order.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        self.stream.context()
    }

    /// What products read.
    pub fn inside(&self) -> ProductFormat {
        self.inside
    }

    /// One line: the device, and what multiplies on it.
    pub fn describe(&self) -> String {
        format!("{}, products by {}", self.context().device().name, self.products)
    }

    /// Put products into the stream.
    pub fn product(&self, product: &Product) -> Result<(), Error> {
        if let Some(blas) = &self.blas {
            // SAFETY: views are of memory that whoever made them keeps while the stream uses it.
            return unsafe { blas.product(product) }.map_err(Error::device);
        }
        let Product { out, a, b, shape, scale, is_added, count } = *product;
        let sides = shape.map(narrow);
        let flags = u32::from(a.is_turned) + 2 * u32::from(b.is_turned) + 4 * u32::from(is_added);
        let tiles = |side: usize| narrow(side.div_ceil(TILE));
        // Where both are f32 either kernel will do.
        let kernel = match out.view.size() {
            4 => &self.kernels.product_wide,
            _ => &self.kernels.product_inside,
        };
        assert_eq!(a.view.size(), self.inside.size(), "products read what is inside");
        let all = [out, a, b];
        let apart = [a, b, out].map(|matrix| narrow(matrix.apart));
        let strides = [a, b, out].map(|matrix| matrix.stride as u64);
        for first in (0..count).step_by(PRODUCTS_MAX) {
            let products = narrow(PRODUCTS_MAX.min(count - first));
            let launch = Launch {
                grid: [tiles(shape[0]), tiles(shape[1]), products],
                block: [self.threads_max, 1, 1],
                shared_bytes: 0,
                is_cooperative: false,
            };
            let addresses = all.map(|matrix: Matrix| {
                matrix.view.address() + (first * matrix.stride * matrix.view.size()) as u64
            });
            let mut args = Vec::with_capacity(14);
            args.extend(addresses.iter().map(Arg::of));
            args.extend(sides.iter().chain(&apart).map(Arg::of));
            args.extend(strides.iter().map(Arg::of));
            args.extend([Arg::of(&scale), Arg::of(&flags)]);
            // SAFETY: these are the kernel's parameters, `Product` has checked that its matrices
            // lie within the views, and those are of memory that is kept while the stream uses it.
            unsafe { kernel.launch(&self.stream, &launch, &args) }?;
        }
        Ok(())
    }

    /// Copy all numbers of one view to another of the same kind.
    pub fn copy(&self, target: View, source: View) -> Result<(), Error> {
        assert_eq!((target.len(), target.size()), (source.len(), source.size()), "a copy");
        // SAFETY: both are of memory that is kept while the stream uses it.
        unsafe { self.stream.copy(target.address(), source.address(), source.bytes()) }?;
        Ok(())
    }

    /// Zeros everywhere.
    pub fn clear(&self, view: View) -> Result<(), Error> {
        // SAFETY: it is of memory that is kept while the stream uses it.
        unsafe { self.stream.fill(view.address(), 0, view.bytes()) }?;
        Ok(())
    }

    /// Threads for so many independent elements: enough to keep memory busy, no more.
    pub(super) fn elements(&self, len: usize) -> Launch {
        let blocks = len.div_ceil(self.threads_max as usize);
        Launch::linear(blocks.clamp(1, 16 * self.multiprocessors as usize) as u32, self.threads_max)
    }

    /// Threads for rows of so many numbers, one block for one row at a time. Blocks of one warp
    /// meet for little, and many of them share a multiprocessor: longer rows have four numbers for
    /// each thread.
    pub(super) fn rows(&self, rows: usize, width: usize) -> Launch {
        let threads = (width / 4).next_power_of_two().max(width.next_power_of_two().min(WARP));
        self.blocks(rows, threads)
    }

    /// So many threads, a power of two, for each of these things, one block for one at a time.
    pub(super) fn blocks(&self, things: usize, threads: usize) -> Launch {
        let threads = narrow(threads).min(self.threads_max);
        Launch::linear(things.clamp(1, 32 * self.multiprocessors as usize) as u32, threads)
    }

    /// One block.
    pub(super) fn one_block(&self) -> Launch {
        Launch::linear(1, self.threads_max)
    }
}

/// Put a kernel into the device's stream.
macro_rules! launch {
    ($device:ident.$kernel:ident($($arg:expr),* $(,)?) as $shape:expr) => {{
        // SAFETY: the arguments are this kernel's parameters, in its source's order and types; the
        // lengths of the views were checked against each other above, and views are of memory that
        // is kept while the stream uses it.
        unsafe { $device.kernels.$kernel.launch($device.stream(), &$shape, &[$(Arg::of(&$arg)),*]) }
            .map_err(Error::from)
    }};
}

pub(super) use launch;

/// A number that kernels count in 32 bits.
pub(super) fn narrow(number: usize) -> u32 {
    u32::try_from(number).expect("rows and columns are fewer than 2^32")
}
