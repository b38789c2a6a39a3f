//! cuBLAS, found at run time: one function of it, for products of f32, of bf16 and of f16.

use super::ProductFormat;
use super::product::{Matrix, Product};
use brigade_cuda::nvrtc::Compiler;
use brigade_cuda::{Stream, Version, find};
use libloading::Library;
use std::ffi::{c_int, c_longlong, c_void};
use std::path::{Path, PathBuf};

/// The most blocks of a grid along its third dimension, which has one for each product. cuBLAS gets
/// no more at a time either: it says of no such end, and some of its kernels may have it.
pub(super) const PRODUCTS_MAX: usize = 65_535;

/// The variable that names the library, where it is in an odd place; empty for none.
pub const LIBRARY_VARIABLE: &str = "BRIGADE_CUBLAS_LIBRARY";

/// Its names, newest first.
const FILES: [&str; 3] = ["libcublas.so.13", "libcublas.so.12", "libcublas.so"];

// cublas_api.h and library_types.h.
const CUBLAS_OP_N: c_int = 0;
const CUBLAS_OP_T: c_int = 1;
const CUDA_R_32F: c_int = 0;
const CUDA_R_16F: c_int = 2;
const CUDA_R_16BF: c_int = 14;
const CUBLAS_COMPUTE_32F: c_int = 68;
const CUBLAS_COMPUTE_32F_FAST_TF32: c_int = 77;
/// Sums that are cut into parts are added up as they were made, not in the type of what comes out.
const CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: c_int = 16;
const CUBLAS_GEMM_DEFAULT: c_int = -1;

/// What a product gives the stream, generously: parts of a sum are multiplied, and then added up.
const COMMANDS: u32 = 4;

type Handle = *mut c_void;
type Create = unsafe extern "C" fn(*mut Handle) -> c_int;
type Destroy = unsafe extern "C" fn(Handle) -> c_int;
type SetStream = unsafe extern "C" fn(Handle, *mut c_void) -> c_int;
type SetMathMode = unsafe extern "C" fn(Handle, c_int) -> c_int;
type Gemm = unsafe extern "C" fn(
    handle: Handle,
    turn_a: c_int,
    turn_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: u64,
    a_type: c_int,
    lda: c_int,
    stride_a: c_longlong,
    b: u64,
    b_type: c_int,
    ldb: c_int,
    stride_b: c_longlong,
    beta: *const c_void,
    c: u64,
    c_type: c_int,
    ldc: c_int,
    stride_c: c_longlong,
    count: c_int,
    compute: c_int,
    algorithm: c_int,
) -> c_int;

/// A handle of cuBLAS for one stream.
pub(super) struct Blas {
    handle: Handle,
    stream: Stream,
    gemm: Gemm,
    destroy: Destroy,
    compute: c_int,
    /// What numbers of two bytes are.
    narrow: c_int,
}

// SAFETY: a handle may be used by one thread after the other, which `&mut` or a lock of whoever
// owns the kernels sees to; it belongs to none.
unsafe impl Send for Blas {}

impl Blas {
    /// For products of this kind in this stream.
    ///
    /// Errors: a sentence that says what is missing.
    pub(super) fn new(stream: &Stream, inside: ProductFormat) -> Result<Blas, String> {
        let (library, _) = open(stream.context().device().cuda.version())?;
        let missing = |error: libloading::Error| error.to_string();
        // SAFETY: these are the functions' types in cublas_api.h, in versions 12 and 13.
        let (create, destroy, set_stream, set_math, gemm) = unsafe {
            (
                *library.get::<Create>(b"cublasCreate_v2\0").map_err(missing)?,
                *library.get::<Destroy>(b"cublasDestroy_v2\0").map_err(missing)?,
                *library.get::<SetStream>(b"cublasSetStream_v2\0").map_err(missing)?,
                *library.get::<SetMathMode>(b"cublasSetMathMode\0").map_err(missing)?,
                *library.get::<Gemm>(b"cublasGemmStridedBatchedEx\0").map_err(missing)?,
            )
        };
        // It stays: its runtime keeps something for every thread, and for the end of the process.
        std::mem::forget(library);
        let _here = stream.context().enter().map_err(|error| error.to_string())?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle that outlives the call, and a context is current.
        let status = unsafe { create(&mut handle) };
        if status != 0 {
            return Err(format!("cublasCreate said {status}"));
        }
        let compute = match inside {
            ProductFormat::Tf32 => CUBLAS_COMPUTE_32F_FAST_TF32,
            ProductFormat::Full | ProductFormat::Bf16 | ProductFormat::F16 => CUBLAS_COMPUTE_32F,
        };
        let narrow = if inside == ProductFormat::F16 { CUDA_R_16F } else { CUDA_R_16BF };
        let stream = stream.clone();
        let blas = Blas { handle, stream, gemm, destroy, compute, narrow };
        // SAFETY: handle and stream are alive, and `blas` keeps both.
        match unsafe { set_stream(handle, blas.stream.raw()) } {
            0 => {}
            status => return Err(format!("cublasSetStream said {status}")),
        }
        // SAFETY: the handle is alive.
        match unsafe { set_math(handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) } {
            0 => Ok(blas),
            status => Err(format!("cublasSetMathMode said {status}")),
        }
    }

    /// Put a product into the stream.
    ///
    /// Errors: a sentence with cuBLAS's number.
    ///
    /// # Safety
    ///
    /// The memory of the three views exists until the product is done, and nobody else writes it.
    pub(super) unsafe fn product(&self, product: &Product) -> Result<(), String> {
        (0..product.count).step_by(PRODUCTS_MAX).try_for_each(|first| {
            let count = PRODUCTS_MAX.min(product.count - first);
            // SAFETY: the caller's promise.
            unsafe { self.products(product, (first, count)) }
        })
    }

    /// The same of so many of its products, from the first of these on.
    ///
    /// # Safety
    ///
    /// As for [`Blas::product`].
    unsafe fn products(
        &self,
        product: &Product,
        (first, count): (usize, usize),
    ) -> Result<(), String> {
        let Product { out, a, b, shape: [m, n, k], scale, is_added, .. } = *product;
        let address = |matrix: Matrix| {
            matrix.view.address() + (first * matrix.stride * matrix.view.size()) as u64
        };
        self.stream.make_room(COMMANDS).map_err(|error| error.to_string())?;
        let _here = self.stream.context().enter().map_err(|error| error.to_string())?;
        let (alpha, beta) = (scale, if is_added { 1.0_f32 } else { 0.0 });
        let kind = |size| if size == 4 { CUDA_R_32F } else { self.narrow };
        let turn = |is_turned| if is_turned { CUBLAS_OP_T } else { CUBLAS_OP_N };
        let int = |number: usize| c_int::try_from(number).expect("a product's side is below 2^31");
        let compute = if a.view.size() == 4 { self.compute } else { CUBLAS_COMPUTE_32F };
        // Columns lie together for cuBLAS, rows for us: it multiplies the transposes the other way
        // round, which lie in memory as our matrices do.
        // SAFETY: `Product` has checked that its matrices lie within the views, whose memory the
        // caller answers for; the scalars outlive the call, which reads them from the host.
        let status = unsafe {
            (self.gemm)(
                self.handle,
                turn(b.is_turned),
                turn(a.is_turned),
                int(n),
                int(m),
                int(k),
                (&raw const alpha).cast(),
                address(b),
                kind(b.view.size()),
                int(b.apart),
                b.stride as c_longlong,
                address(a),
                kind(a.view.size()),
                int(a.apart),
                a.stride as c_longlong,
                (&raw const beta).cast(),
                address(out),
                kind(out.view.size()),
                int(out.apart),
                out.stride as c_longlong,
                int(count),
                compute,
                CUBLAS_GEMM_DEFAULT,
            )
        };
        match status {
            0 => Ok(()),
            _ => Err(format!("cublasGemmStridedBatchedEx said {status} to {product:?}")),
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if let Ok(_here) = self.stream.context().enter() {
            // SAFETY: made once and destroyed once. What it says cannot be acted on any more.
            let _ = unsafe { (self.destroy)(self.handle) };
        }
    }
}

/// The file that products are asked of, where the driver is of this version.
///
/// Errors: a sentence that says what is missing.
pub fn find_blas(driver: Version) -> Result<PathBuf, String> {
    let (library, file) = open(driver)?;
    std::mem::forget(library);
    Ok(file)
}

/// Whether somebody named the library, and means to have it.
pub(super) fn is_named() -> bool {
    std::env::var_os(LIBRARY_VARIABLE).is_some_and(|named| !named.is_empty())
}

/// That of the driver's generation, if there is one, or of an older one: what is of a later one
/// makes no handle.
fn open(driver: Version) -> Result<(Library, PathBuf), String> {
    if std::env::var_os(LIBRARY_VARIABLE).is_some_and(|named| named.is_empty()) {
        return Err(format!("{LIBRARY_VARIABLE} is empty"));
    }
    let mut files = find::candidates(&FILES, LIBRARY_VARIABLE);
    // Whoever names a compiler in an odd place may have cuBLAS beside it.
    if std::env::var_os(LIBRARY_VARIABLE).is_none()
        && let Ok(compiler) = Compiler::find()
        && let Some(folder) = Path::new(compiler.file()).parent()
    {
        files.extend(FILES.map(|file| folder.join(file)));
    }
    let mut first = None;
    let is_later = |file: &Path| generation(file).is_some_and(|major| major > driver.major);
    for file in find::of_generation(files, driver.major) {
        if is_later(&file) {
            let why = format!("{} is of a later generation than the driver", file.display());
            first.get_or_insert(why);
            continue;
        }
        open_beside(&file);
        // SAFETY: loading cuBLAS runs its initialisers, which any program that links it runs too.
        match unsafe { Library::new(&file) } {
            Ok(library) => return Ok((library, file)),
            Err(error) => _ = first.get_or_insert(error.to_string()),
        }
    }
    Err(first.unwrap_or_default())
}

/// 12 of libcublas.so.12, and of libcublas.so.12.8.4.
fn generation(file: &Path) -> Option<u32> {
    let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
    version.split('.').next()?.parse().ok()
}

/// Open cuBLAS's other half where it lies beside it: a linker that is told to look elsewhere first
/// would take one of another version.
fn open_beside(file: &Path) {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let other = file.with_file_name(name.replacen("libcublas", "libcublasLt", 1));
    if file.components().count() > 1 && other.exists() {
        // SAFETY: cuBLAS would load it, and run its initialisers, by itself.
        let library = unsafe { Library::new(&other) };
        // If it does not open, cuBLAS says so.
        std::mem::forget(library);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_generation() {
        let of = |name: &str| generation(Path::new(name));
        assert_eq!(of("libcublas.so.12"), Some(12));
        assert_eq!(of("/usr/lib/libcublas.so.13.0.2"), Some(13));
        assert_eq!((of("libcublas.so"), of("/opt/fake.so.txt")), (None, None));
    }
}
