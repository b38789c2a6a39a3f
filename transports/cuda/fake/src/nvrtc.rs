//! The compiler of NVIDIA, if a test names one (`BRIGADE_FAKE_CUDA_NVRTC`): it needs no device, and
//! what it makes for one is translated for the processor ([`crate::ptx`]).

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

use libloading::{Library, Symbol};

type Program = *mut c_void;

/// How it is asked, so that caches tell what was asked otherwise.
pub(crate) const SOURCE: &str = include_str!("nvrtc.rs");

/// The file that a test names.
pub(crate) fn named() -> Option<&'static str> {
    static NAMED: OnceLock<Option<String>> = OnceLock::new();
    let ask = || std::env::var("BRIGADE_FAKE_CUDA_NVRTC").ok().filter(|name| !name.is_empty());
    NAMED.get_or_init(ask).as_deref()
}

/// What the named compiler makes of a source, as portable code (PTX); or what it wrote.
pub(crate) fn compile(
    path: &str,
    source: &str,
    headers: &[(String, String)],
    options: &[String],
) -> Result<String, String> {
    let library = open(path)?;
    let zero = |_| String::from("a source with a zero in it");
    let texts = |texts: &mut dyn Iterator<Item = &String>| {
        texts.map(|text| CString::new(text.as_str()).map_err(zero)).collect::<Result<Vec<_>, _>>()
    };
    let names = texts(&mut headers.iter().map(|header| &header.0))?;
    let contents = texts(&mut headers.iter().map(|header| &header.1))?;
    let portable = options.iter().map(|option| option.replace("=sm_", "=compute_"));
    let options = texts(&mut portable.collect::<Vec<_>>().iter())?;
    let source = CString::new(source).map_err(zero)?;
    let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).collect::<Vec<_>>();
    let mut program: Program = ptr::null_mut();
    // SAFETY: the names and types are those of `nvrtc.h`; texts and arrays of pointers to them
    // outlive the calls, and are as many as is said.
    unsafe {
        type Create = unsafe extern "C" fn(
            *mut Program,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> c_int;
        type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
        type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;
        let (create, compile, destroy): (
            Symbol<'_, Create>,
            Symbol<'_, Compile>,
            Symbol<'_, Destroy>,
        ) = (
            function(library, "nvrtcCreateProgram")?,
            function(library, "nvrtcCompileProgram")?,
            function(library, "nvrtcDestroyProgram")?,
        );
        let (named, contained, wanted) =
            (pointers(&names), pointers(&contents), pointers(&options));
        let count = names.len() as c_int;
        let created = create(
            &mut program,
            source.as_ptr(),
            c"kernels.cu".as_ptr(),
            count,
            contained.as_ptr(),
            named.as_ptr(),
        );
        if created != 0 {
            return Err(format!("{path} takes no source: {created}"));
        }
        let code = compile(program, wanted.len() as c_int, wanted.as_ptr());
        let text = match code {
            0 => filled(library, program, "nvrtcGetPTX"),
            _ => filled(library, program, "nvrtcGetProgramLog"),
        };
        destroy(&mut program);
        if code == 0 { text } else { Err(text?) }
    }
}

fn open(path: &str) -> Result<&'static Library, String> {
    static OPENED: OnceLock<Result<Library, String>> = OnceLock::new();
    let open_one = |path: &Path| {
        // SAFETY: loading NVRTC runs its initialisers, which any program that links it runs too.
        unsafe { Library::new(path) }.map_err(|error| error.to_string())
    };
    let opened = OPENED.get_or_init(|| {
        let library = open_one(Path::new(path))?;
        // It asks by name for what lies beside it.
        let folder = Path::new(path).parent().and_then(|folder| folder.read_dir().ok());
        for entry in folder.into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so") {
                std::mem::forget(open_one(&entry.path())?);
            }
        }
        Ok(library)
    });
    opened.as_ref().map_err(Clone::clone)
}

/// SAFETY: the type is that of the function in `nvrtc.h`.
unsafe fn function<'a, T>(library: &'a Library, name: &str) -> Result<Symbol<'a, T>, String> {
    // SAFETY: as the caller says.
    unsafe { library.get(name.as_bytes()) }.map_err(|error| error.to_string())
}

/// The text that a pair of functions gives.
///
/// SAFETY: the program is alive, and the name that of such a function.
unsafe fn filled(library: &Library, program: Program, name: &str) -> Result<String, String> {
    type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
    type Fill = unsafe extern "C" fn(Program, *mut u8) -> c_int;
    let mut bytes = 0;
    // SAFETY: the types are those of `nvrtc.h`, and the buffer is as long as was just said.
    unsafe {
        let sized = function::<Size>(library, &format!("{name}Size"))?(program, &mut bytes);
        let mut text = vec![0; bytes];
        let filled = function::<Fill>(library, name)?(program, text.as_mut_ptr());
        if (sized, filled) != (0, 0) {
            return Err(format!("{name}: {sized}, {filled}"));
        }
        text.truncate(bytes.saturating_sub(1));
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}
