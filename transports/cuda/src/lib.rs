//! The CUDA driver, the compiler of kernels and cuFile, found at run time.
//!
//! | layer | what it knows |
//! |---|---|
//! | `sys` | libcuda as C sees it: structures and constants |
//! | `library` | loading it; every code becomes a [`Result`] |
//! | [`Context`], [`Stream`], [`DeviceMemory`], [`Function`], ... | who owns what, for how long |
//! | [`nvrtc`] | kernels as text, made into code for the device that is there, and kept |
//! | [`cufile`] | files straight to memory of devices and back: GPUDirect Storage |
//!
//! Nothing here needs CUDA to build or to start: [`Cuda::load`] says in a sentence what is missing.
//! Only the driver is called (libcuda comes with it), never the CUDA runtime; primary contexts are
//! those that the runtime uses, so pointers and streams of PyTorch or CuPy are at home here. A call
//! leaves the thread's current context as it found it.
//!
//! What runs on a device is not seen by the compiler. So whatever hands an address to the device
//! (copies, launches) is `unsafe` and says what it is owed; the rest owns what it frees.
#![warn(missing_docs)]

mod access;
mod aloof;
mod callback;
mod code;
mod context;
pub mod cufile;
mod device;
mod error;
mod event;
pub mod find;
mod graph;
mod ipc;
mod library;
mod memory;
mod module;
pub mod nvrtc;
mod onlooker;
mod pace;
mod pinned;
mod place;
mod share;
mod stream;
#[allow(non_camel_case_types)]
mod sys;

pub use code::Code;
pub use context::{Context, Entered};
pub use device::{Device, PeerLink};
pub use error::{CudaError, Missing, Result};
pub use event::{Event, EventHandle};
pub use graph::{CaptureMode, Executable, Graph};
pub use ipc::{IpcHandle, Opened};
pub use library::{Cuda, LIBRARY_VARIABLE, Version};
pub use memory::DeviceMemory;
pub use module::{Arg, Function, Launch, Module};
pub use onlooker::Onlooker;
pub use pinned::{Pinned, Registered};
pub use place::{Place, Whereabouts};
pub use share::Shareable;
pub use stream::Stream;
