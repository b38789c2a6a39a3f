//! Loading libnvrtc, once, when it is first needed, and calling it.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::Source;
use crate::sys::{Handle, NvrtcResult};
use crate::{Cuda, CudaError, Missing, Result, Version, find};

/// The variable that names the compiler: the file, or a folder to look for it in (of a Python
/// environment, for instance).
pub const LIBRARY_VARIABLE: &str = "BRIGADE_NVRTC";

/// What the linker may know, newest first.
const NAMES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"];
const SUCCESS: NvrtcResult = 0;

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($type:ty),*) $(-> $result:ty)?;)*) => {
        pub(super) struct Library {
            pub(super) version: Version,
            pub(super) file: String,
            /// Compilers before version 12 are not safe to call from two threads.
            turn: Mutex<()>,
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Library {
            fn find(
                file: &libloading::Library,
                path: &str,
            ) -> std::result::Result<Self, libloading::Error> {
                Ok(Self {
                    version: Version { major: 0, minor: 0 },
                    file: path.to_owned(),
                    turn: Mutex::new(()),
                    $(
                        // SAFETY: the type is that of the function in `nvrtc.h`, and the library
                        // stays loaded for ever.
                        $name: unsafe { *file.get(concat!($symbol, "\0").as_bytes())? },
                    )*
                })
            }
        }
    };
}

functions! {
    ask_version = "nvrtcVersion": fn(*mut c_int, *mut c_int) -> NvrtcResult;
    create = "nvrtcCreateProgram": fn(
        *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char
    ) -> NvrtcResult;
    compile_program = "nvrtcCompileProgram":
        fn(Handle, c_int, *const *const c_char) -> NvrtcResult;
    destroy = "nvrtcDestroyProgram": fn(*mut Handle) -> NvrtcResult;
    log_size = "nvrtcGetProgramLogSize": fn(Handle, *mut usize) -> NvrtcResult;
    log = "nvrtcGetProgramLog": fn(Handle, *mut c_char) -> NvrtcResult;
    cubin_size = "nvrtcGetCUBINSize": fn(Handle, *mut usize) -> NvrtcResult;
    cubin = "nvrtcGetCUBIN": fn(Handle, *mut c_char) -> NvrtcResult;
    ptx_size = "nvrtcGetPTXSize": fn(Handle, *mut usize) -> NvrtcResult;
    ptx = "nvrtcGetPTX": fn(Handle, *mut c_char) -> NvrtcResult;
    count_archs = "nvrtcGetNumSupportedArchs": fn(*mut c_int) -> NvrtcResult;
    archs = "nvrtcGetSupportedArchs": fn(*mut c_int) -> NvrtcResult;
    error_string = "nvrtcGetErrorString": fn(NvrtcResult) -> *const c_char;
}

impl Library {
    pub(super) fn load() -> std::result::Result<&'static Library, Missing> {
        static LOADED: OnceLock<std::result::Result<Library, Missing>> = OnceLock::new();
        LOADED.get_or_init(open).as_ref().map_err(Clone::clone)
    }

    pub(super) fn compile(&self, source: &Source, arch: &str) -> Result<Vec<u8>> {
        // A panic leaves no program behind that another thread could meet.
        let one_at_a_time = self.version.major < 12;
        let _turn = one_at_a_time.then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        let program = Program::new(self, source)?;
        let known = self.known_before(arch)?;
        let target = known.map_or_else(|| arch.to_owned(), |known| format!("compute_{known}"));
        let mut options = vec![format!("--gpu-architecture={target}"), String::from("-std=c++17")];
        options.extend(source.options.iter().map(|option| String::from(*option)));
        let options = c_strings(options.iter().map(String::as_str))?;
        let pointers: Vec<*const c_char> = options.iter().map(|text| text.as_ptr()).collect();
        // SAFETY: the program is alive, and the array has as many C strings as it says.
        let code = unsafe {
            (self.compile_program)(program.raw, pointers.len() as c_int, pointers.as_ptr())
        };
        if code != SUCCESS {
            let log = program.log().unwrap_or_default();
            let log = format!("{}\n{}", self.words(code), log.trim_end());
            let (kernels, arch) = (source.name.to_owned(), arch.to_owned());
            return Err(CudaError::Compile { kernels, arch, log });
        }
        match known {
            Some(_) => program.filled(self.ptx_size, self.ptx, "reading portable code"),
            None => program.filled(self.cubin_size, self.cubin, "reading compiled code"),
        }
    }

    /// The newest architecture that this compiler knows, if this one is newer: then there is
    /// portable code (PTX) for that one, which the driver of the device translates as it loads it.
    fn known_before(&self, arch: &str) -> Result<Option<c_int>> {
        let Some(wanted) = arch.strip_prefix("sm_").and_then(|sm| sm.parse().ok()) else {
            return Ok(None);
        };
        let mut count = 0;
        // SAFETY: the pointer is to a number that outlives the call.
        self.ok(unsafe { (self.count_archs)(&mut count) }, "asking for architectures")?;
        let mut archs = vec![0; count.max(0) as usize];
        // SAFETY: the list is as long as was just said.
        self.ok(unsafe { (self.archs)(archs.as_mut_ptr()) }, "asking for architectures")?;
        Ok(archs.into_iter().max().filter(|newest| *newest < wanted))
    }

    fn ok(&self, code: NvrtcResult, what: &str) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(CudaError::refused(format!("{what}: {} ({})", self.words(code), self.file)))
    }

    fn words(&self, code: NvrtcResult) -> String {
        // SAFETY: the function takes any number, and what it returns is never freed.
        let words = unsafe { (self.error_string)(code) };
        if words.is_null() {
            return format!("NVRTC error {code}");
        }
        // SAFETY: not null, hence a C string.
        unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
    }
}

/// A program of NVRTC, destroyed when dropped.
struct Program<'a> {
    library: &'a Library,
    raw: Handle,
}

impl<'a> Program<'a> {
    fn new(library: &'a Library, source: &Source) -> Result<Self> {
        let [text, name] = [source.text, source.name].map(CString::new);
        let (Ok(text), Ok(name)) = (text, name) else {
            return Err(CudaError::refused("a source with a zero in it"));
        };
        let names = c_strings(source.all_headers().map(|header| header.0))?;
        let texts = c_strings(source.all_headers().map(|header| header.1))?;
        let name_pointers: Vec<*const c_char> = names.iter().map(|text| text.as_ptr()).collect();
        let text_pointers: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        let mut raw = ptr::null_mut();
        // SAFETY: the pointers are to C strings and arrays of as many as is said, which outlive
        // the call.
        let code = unsafe {
            (library.create)(
                &mut raw,
                text.as_ptr(),
                name.as_ptr(),
                names.len() as c_int,
                text_pointers.as_ptr(),
                name_pointers.as_ptr(),
            )
        };
        library.ok(code, "handing kernels to the compiler")?;
        Ok(Self { library, raw })
    }

    fn log(&self) -> Result<String> {
        let bytes = self.filled(self.library.log_size, self.library.log, "reading the log")?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// What a pair of functions gives: how much it is, and it.
    fn filled(
        &self,
        size: unsafe extern "C" fn(Handle, *mut usize) -> NvrtcResult,
        fill: unsafe extern "C" fn(Handle, *mut c_char) -> NvrtcResult,
        what: &str,
    ) -> Result<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: the program is alive, and the pointer is to a number that outlives the call.
        self.library.ok(unsafe { size(self.raw, &mut bytes) }, what)?;
        let mut buffer = vec![0_u8; bytes];
        // SAFETY: the program is alive, and the buffer is as long as it was just said to be.
        self.library.ok(unsafe { fill(self.raw, buffer.as_mut_ptr().cast()) }, what)?;
        Ok(buffer)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once. A failure leaves memory behind, no more.
        let _ = unsafe { (self.library.destroy)(&mut self.raw) };
    }
}

fn c_strings<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<CString>> {
    let zero = |_| CudaError::refused("an option or header with a zero in it");
    texts.map(|text| CString::new(text).map_err(zero)).collect()
}

fn open() -> std::result::Result<Library, Missing> {
    let mut candidates = find::candidates(&NAMES, LIBRARY_VARIABLE);
    if let Ok(cuda) = Cuda::load() {
        candidates = find::of_generation(candidates, cuda.version().major);
    }
    let mut first_error = None;
    for candidate in candidates {
        match open_file(&candidate) {
            Ok(library) => return Ok(library),
            Err(error) => {
                let name = candidate.display().to_string();
                // The linker begins with the name by itself, mostly.
                let is_named = error.starts_with(&name);
                let told = if is_named { error } else { format!("{name}: {error}") };
                first_error.get_or_insert(told);
            }
        }
    }
    let why = first_error.unwrap_or_else(|| String::from("no such file"));
    let named = std::env::var(LIBRARY_VARIABLE).ok().filter(|name| !name.is_empty());
    Err(Missing {
        why: match named {
            Some(name) => format!("{LIBRARY_VARIABLE}={name} has no NVRTC: {why}"),
            None => format!("no compiler of kernels (NVRTC): {why}"),
        },
        next_step: format!(
            "install CUDA's toolkit, or the Python package nvidia-cuda-nvrtc, and let \
             {LIBRARY_VARIABLE} name the file libnvrtc.so.* or a folder above it"
        ),
    })
}

fn open_file(path: &Path) -> std::result::Result<Library, String> {
    // SAFETY: loading NVRTC runs its initialisers, which any program that links it runs too.
    let file = unsafe { libloading::Library::new(path) }.map_err(|error| error.to_string())?;
    let name = path.display().to_string();
    let mut library = Library::find(&file, &name).map_err(|error| error.to_string())?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the pointers are to numbers that outlive the call.
    let code = unsafe { (library.ask_version)(&mut major, &mut minor) };
    library.ok(code, "asking for the version").map_err(|error| error.to_string())?;
    library.version = Version { major: major.max(0) as u32, minor: minor.max(0) as u32 };
    open_builtins(path, library.version);
    // What was found must stay where it is: its functions are called until the process ends.
    std::mem::forget(file);
    Ok(library)
}

/// Open what NVRTC keeps beside itself. It asks for that by name when it compiles, and that of
/// CUDA 13.0 finds it only where the linker looks, which is not where Python's packages are.
fn open_builtins(compiler: &Path, version: Version) {
    let beside = compiler.with_file_name(format!("libnvrtc-builtins.so.{version}"));
    // A name without a folder is for the linker to find, and so is what belongs to it.
    if compiler.components().count() > 1 && beside.exists() {
        // SAFETY: NVRTC would load it, and run its initialisers, by itself.
        let file = unsafe { libloading::Library::new(&beside) };
        // If it does not open, NVRTC says so when it compiles.
        std::mem::forget(file);
    }
}
