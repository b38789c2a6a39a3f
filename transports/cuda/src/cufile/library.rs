//! Loading libcufile, once, when it is first needed, and what it must be to be GPUDirect.

use std::ffi::{c_int, c_long, c_void};
use std::path::Path;
use std::sync::OnceLock;

use super::LIBRARY_VARIABLE;
use super::code::FileCode;
use super::sys::{
    CU_FILE_ALLOW_COMPAT_MODE, CU_FILE_DRIVER_ALREADY_OPEN, CU_FILE_NVME_P2P_SUPPORTED,
    CU_FILE_P2P_SUPPORTED, CU_FILE_SUCCESS, CUFILE_PARAM_FORCE_COMPAT_MODE,
    CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, CUfileDescr, CUfileDrvProps, CUfileError,
    CUfileHandle,
};
use crate::{Cuda, Missing, find};

/// What the linker may know, newest first.
const NAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];

/// Declare the functions that are looked up by name, with their C types: those that every version
/// has, and those of later ones.
macro_rules! functions {
    (
        every { $($name:ident = $symbol:literal: fn($($type:ty),*) $(-> $result:ty)?;)* }
        later { $($late:ident = $late_symbol:literal: fn($($late_type:ty),*) -> $late_result:ty;)* }
    ) => {
        pub(super) struct Library {
            pub(super) file: String,
            $(pub(super) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
            $($late: Option<unsafe extern "C" fn($($late_type),*) -> $late_result>,)*
        }

        impl Library {
            fn find(
                file: &libloading::Library,
                path: &Path,
            ) -> std::result::Result<Self, libloading::Error> {
                Ok(Self {
                    file: path.display().to_string(),
                    $(
                        // SAFETY: the type is that of the function in `cufile.h`, and the library
                        // stays loaded for ever.
                        $name: unsafe { *file.get(concat!($symbol, "\0").as_bytes())? },
                    )*
                    $(
                        // SAFETY: as above.
                        $late: unsafe { file.get(concat!($late_symbol, "\0").as_bytes()) }
                            .ok()
                            .map(|found| *found),
                    )*
                })
            }
        }
    };
}

functions! {
    every {
        driver_open = "cuFileDriverOpen": fn() -> CUfileError;
        properties = "cuFileDriverGetProperties": fn(*mut CUfileDrvProps) -> CUfileError;
        handle_register = "cuFileHandleRegister":
            fn(*mut CUfileHandle, *mut CUfileDescr) -> CUfileError;
        handle_deregister = "cuFileHandleDeregister": fn(CUfileHandle);
        buf_register = "cuFileBufRegister": fn(*const c_void, usize, c_int) -> CUfileError;
        buf_deregister = "cuFileBufDeregister": fn(*const c_void) -> CUfileError;
        read = "cuFileRead": fn(CUfileHandle, *mut c_void, usize, c_long, c_long) -> isize;
        write = "cuFileWrite": fn(CUfileHandle, *const c_void, usize, c_long, c_long) -> isize;
    }
    later {
        driver_close = "cuFileDriverClose_v2": fn() -> CUfileError;
        version = "cuFileGetVersion": fn(*mut c_int) -> CUfileError;
        set_parameter = "cuFileSetParameterBool": fn(c_int, bool) -> CUfileError;
        get_parameter = "cuFileGetParameterBool": fn(c_int, *mut bool) -> CUfileError;
    }
}

/// A library whose driver is open, and which reads and writes straight or not at all.
pub(super) struct Opened {
    pub(super) library: Library,
    /// By what bytes go, for people.
    pub(super) by: String,
}

/// The one of this process.
pub(super) fn opened() -> std::result::Result<&'static Opened, Missing> {
    static OPENED: OnceLock<std::result::Result<Opened, Missing>> = OnceLock::new();
    OPENED.get_or_init(open).as_ref().map_err(Clone::clone)
}

fn open() -> std::result::Result<Opened, Missing> {
    // cuFile loads the driver itself, and complains aloud where there is none.
    Cuda::load()?;
    let library = load()?;
    // With it, bytes would go through the host's memory and nobody would be told. Older versions
    // lack the function, newer ones refuse it once somebody has opened cuFile: what holds is asked
    // below.
    if let Some(set) = library.set_parameter {
        // SAFETY: the call takes any number.
        let _asked_below = unsafe { set(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, false) };
    }
    // SAFETY: the call has no conditions.
    let answer = unsafe { (library.driver_open)() };
    if ![CU_FILE_SUCCESS, CU_FILE_DRIVER_ALREADY_OPEN].contains(&answer.err) {
        let code = FileCode::of(answer).expect("it is no success");
        return Err(refused(&library, "cuFileDriverOpen", code));
    }
    let found = straight(&library);
    if found.is_err()
        && answer.err == CU_FILE_SUCCESS
        && let Some(close) = library.driver_close
    {
        // SAFETY: opened by us, and nothing was registered. What it says matters to nobody.
        let _ = unsafe { close() };
    }
    let by = found?;
    Ok(Opened { library, by })
}

/// By what bytes go straight; or that they would not.
fn straight(library: &Library) -> std::result::Result<String, Missing> {
    // Where the call fails nothing is filled in.
    let mut found = CUfileDrvProps::default();
    // SAFETY: the pointer is to a structure with room behind it, which outlives the call.
    let answer = unsafe { (library.properties)(&mut found) };
    if let Some(code) = FileCode::of(answer) {
        return Err(refused(library, "cuFileDriverGetProperties", code));
    }
    let file = &library.file;
    if parameter(library, CUFILE_PARAM_FORCE_COMPAT_MODE) == Some(true) {
        return Err(missing(
            format!("cuFile ({file}) is told to use its compatibility mode always"),
            "take force_compat_mode out of cufile.json, and CUFILE_FORCE_COMPAT_MODE out of the \
             environment",
        ));
    }
    let nvfs = found.nvfs;
    // Where versions can be told otherwise, these bits go on saying what their configuration does.
    let is_allowed = parameter(library, CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE)
        .unwrap_or(nvfs.dcontrolflags >> CU_FILE_ALLOW_COMPAT_MODE & 1 == 1);
    if is_allowed {
        return Err(missing(
            format!(
                "cuFile ({file}) may use its compatibility mode, which goes through the host's \
                 memory and does not say so"
            ),
            "let nobody else in the process open cuFile first, and take its version 1.14 (CUDA \
             12.9) or later; or set allow_compat_mode to false in cufile.json, which \
             CUFILE_ENV_PATH_JSON names",
        ));
    }
    let has_module = (nvfs.major_version, nvfs.minor_version) != (0, 0);
    let has_p2p = nvfs.dstatusflags >> CU_FILE_NVME_P2P_SUPPORTED & 1 == 1
        || found.feature_flags >> CU_FILE_P2P_SUPPORTED & 1 == 1;
    match has_module {
        true => Ok(format!("nvidia-fs {}.{}", nvfs.major_version, nvfs.minor_version)),
        false if has_p2p => Ok(String::from("the kernel's PCI P2PDMA")),
        false => Err(missing(
            format!("cuFile ({file}) finds neither nvidia-fs nor the kernel's PCI P2PDMA"),
            "load the kernel's module nvidia-fs; gdscheck -p says what is missing",
        )),
    }
}

/// What holds now that cuFile is open, where the version tells.
fn parameter(library: &Library, which: c_int) -> Option<bool> {
    let mut holds = false;
    // SAFETY: the pointer is to a flag that outlives the call.
    let answer = unsafe { (library.get_parameter?)(which, &mut holds) };
    FileCode::of(answer).is_none().then_some(holds)
}

/// What cuFile calls itself, where it does: 1.14 as 1140.
pub(super) fn version(library: &Library) -> Option<String> {
    let mut number = 0;
    // SAFETY: the pointer is to a number that outlives the call.
    let answer = unsafe { (library.version?)(&mut number) };
    let is_told = FileCode::of(answer).is_none() && number > 0;
    is_told.then(|| format!("{}.{}", number / 1000, number % 1000 / 10))
}

fn load() -> std::result::Result<Library, Missing> {
    let mut first_error = None;
    for candidate in find::candidates(&NAMES, LIBRARY_VARIABLE) {
        match load_file(&candidate) {
            Ok(library) => return Ok(library),
            Err(error) => {
                first_error.get_or_insert(format!("{}: {error}", candidate.display()));
            }
        }
    }
    let why = first_error.unwrap_or_else(|| String::from("no such file"));
    let named = std::env::var(LIBRARY_VARIABLE).ok().filter(|name| !name.is_empty());
    Err(missing(
        match named {
            Some(name) => format!("{LIBRARY_VARIABLE}={name} has no cuFile: {why}"),
            None => format!("no cuFile: {why}"),
        },
        format!(
            "install CUDA's GPUDirect Storage (libcufile), or the Python package nvidia-cufile, \
             and let {LIBRARY_VARIABLE} name the file libcufile.so.0 or a folder above it"
        ),
    ))
}

fn load_file(path: &Path) -> std::result::Result<Library, libloading::Error> {
    // SAFETY: loading cuFile runs its initialisers, which any program that links it runs too.
    let file = unsafe { libloading::Library::new(path) }?;
    let library = Library::find(&file, path)?;
    // What was found must stay where it is: its functions are called until the process ends.
    std::mem::forget(file);
    Ok(library)
}

fn refused(library: &Library, call: &str, code: FileCode) -> Missing {
    let text = code.to_string();
    let (name, next) = text.split_once(": ").unwrap_or((&text, "cufile.log says more"));
    missing(format!("cuFile ({}) refuses: {call} said {name}", library.file), next)
}

fn missing(why: impl Into<String>, next_step: impl Into<String>) -> Missing {
    Missing { why: why.into(), next_step: next_step.into() }
}
