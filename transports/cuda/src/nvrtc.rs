//! Kernels as text, made into code for the device that is there. The compiler (NVRTC) is found at
//! run time; nothing of CUDA is needed to build. What was compiled is kept on disk.
//!
//! A kernel is declared `extern "C" __global__ void name(...)` and found by that name. Its source
//! may include `brigade.cuh`, which has what every kernel here needs (numbers of 8 and 16 bits,
//! loads and stores that other devices and the host see in order) and which a compiler for
//! processors takes as well; the headers of the toolkit are not there.

mod cache;
mod cubin;
mod library;
mod making;

use std::sync::Arc;

use crate::{Context, CudaError, Missing, Module, Result, Version};

pub use cache::{CACHE_VARIABLE, doubt, folder};
pub use cubin::{Usage, usage};
pub use library::LIBRARY_VARIABLE;

/// What every source may include, as `brigade.cuh`.
pub const HEADER: &str = include_str!("nvrtc/brigade.cuh");

/// Kernels as text.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// What errors and files of the cache call it: letters, digits, `_` and `-`.
    pub name: &'static str,
    /// The text.
    pub text: &'static str,
    /// Further headers, by the name that the text includes them with.
    pub headers: &'static [(&'static str, &'static str)],
    /// Options for the compiler, beyond the architecture.
    pub options: &'static [&'static str],
}

impl Source {
    /// A source that includes nothing but `brigade.cuh`, with no options.
    pub const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, headers: &[], options: &[] }
    }

    /// All its headers, `brigade.cuh` first.
    pub(crate) fn all_headers(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        [("brigade.cuh", HEADER)].into_iter().chain(self.headers.iter().copied())
    }
}

/// The compiler of this machine.
#[derive(Clone, Copy)]
pub struct Compiler {
    library: &'static library::Library,
}

impl Compiler {
    /// The compiler of this machine. The first call loads it, some 10 ms; later ones cost a load.
    ///
    /// # Errors
    ///
    /// [`Missing`] says where it was looked for; each time alike.
    pub fn find() -> std::result::Result<Self, Missing> {
        Ok(Self { library: library::Library::load()? })
    }

    /// Its version.
    pub fn version(self) -> Version {
        self.library.version
    }

    /// The file that it was loaded from.
    pub fn file(self) -> &'static str {
        &self.library.file
    }

    /// Compile for an architecture (`sm_90`), whether or not such a device is there; for one that
    /// is newer than the compiler into portable code, which a driver translates as it loads it.
    /// Some 100 ms and more; nothing is kept.
    ///
    /// # Errors
    ///
    /// [`CudaError::Compile`] with what the compiler wrote.
    pub fn compile(self, source: &Source, arch: &str) -> Result<Vec<u8>> {
        self.library.compile(source, arch)
    }
}

/// Kernels ready to be launched in `context`: from the cache on disk, or compiled now and kept
/// there. Where there is no compiler, or one of a later generation than the driver, which may
/// refuse its code, what another compiler made of this very source will do.
///
/// # Errors
///
/// [`CudaError::Compile`], [`CudaError::Missing`] where there is neither a compiler nor a cache,
/// and what the driver says. A cache that cannot be read or written is none, and so is one that
/// others may write ([`doubt`]).
pub fn module(context: &Context, source: &Source) -> Result<Module> {
    let (arch, driver) = (context.device().arch(), context.device().cuda.version().major);
    let is_later = |compiler: Compiler| compiler.version().major > driver;
    let kept = match Compiler::find() {
        Ok(compiler) if !is_later(compiler) => None,
        _ => cache::Cache::of(source, &arch).before(driver),
    };
    let image = kept.map_or_else(|| image(source, &arch), Ok)?;
    // SAFETY: the image is compiled from text that is part of this program.
    unsafe { Module::load(context, &image) }
}

/// The code of a source for an architecture, from the cache or compiled now. Of several threads
/// that want the same at once one compiles it, and the others wait for that.
///
/// # Errors
///
/// As of [`module`].
pub fn image(source: &Source, arch: &str) -> Result<Arc<[u8]>> {
    let cache = cache::Cache::of(source, arch);
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(missing) => return cache.any().ok_or(CudaError::Missing(missing)),
    };
    making::once(cache.stem(), || {
        if let Some(image) = cache.read(compiler.version()) {
            return Ok(image);
        }
        let image = compiler.compile(source, arch)?;
        cache.write(compiler.version(), &image);
        Ok(image.into())
    })
}
