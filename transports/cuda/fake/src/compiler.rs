//! A compiler with NVRTC's names, which lets g++ or clang++ do it.

use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, OnceLock};

use crate::fault::number;
use crate::folder::Folder;
use crate::nvrtc;
use crate::ptx;
use crate::races;
use crate::rewrite::rewrite;
use crate::table::{Handle, Table, lock, put};

/// What images begin with; their length follows.
pub(crate) const IMAGE_MAGIC: &[u8] = b"\x7fbrigade-fake-cuda";

/// What is put in front of kernels: the first of these takes in the others.
const CPU: [(&str, &str); 7] = [
    ("cpu.h", include_str!("cpu.h")),
    ("cpu_types.h", include_str!("cpu_types.h")),
    ("cpu_races.h", include_str!("cpu_races.h")),
    ("cpu_fibers.h", include_str!("cpu_fibers.h")),
    ("cpu_blocks.h", include_str!("cpu_blocks.h")),
    ("cpu_intrinsics.h", include_str!("cpu_intrinsics.h")),
    ("cpu_ptx.h", include_str!("cpu_ptx.h")),
];

const SUCCESS: c_int = 0;
const INVALID_INPUT: c_int = 3;
const INVALID_PROGRAM: c_int = 4;
const COMPILATION: c_int = 6;

struct Program {
    source: String,
    headers: Vec<(String, String)>,
    made: Mutex<Made>,
}

#[derive(Default)]
struct Made {
    log: String,
    image: Vec<u8>,
    /// Whether it was asked for as portable code (PTX), which here is the same.
    is_portable: bool,
}

static PROGRAMS: Table<Program> = Table::new();

/// The C++ compiler of this machine.
pub(crate) fn program() -> Option<&'static str> {
    static PROGRAM: OnceLock<Option<&str>> = OnceLock::new();
    *PROGRAM.get_or_init(|| {
        let works = |name: &&str| {
            let tried = Command::new(name).arg("--version").output();
            tried.is_ok_and(|output| output.status.success())
        };
        ["g++", "clang++", "c++"].into_iter().find(works)
    })
}

/// Operations as they stand: each is rounded, and so it is in tests' references. NVRTC makes one
/// rounding of a product that is added, unless it is told not to (`--fmad=false`): what is compiled
/// without that may differ from this in the last bits, and does here when a test asks for it
/// ([`contraction`]). Short loops are unrolled, as NVRTC does it: products take half the time, and
/// compiling no longer.
const OPTIONS: [&str; 7] =
    ["-O2", "-fpeel-loops", "-g1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing"];

/// Of what is translated there is much, and the compiler that made it has made it fast.
const TRANSLATED: [&str; 1] = ["-O1"];

/// The newest architecture that it knows.
fn newest() -> c_int {
    number("BRIGADE_FAKE_CUDA_NEWEST", 90) as c_int
}

/// Whether code for the architecture is portable; or that there is no such architecture.
fn is_portable(options: &[String]) -> Result<bool, String> {
    let named = options.iter().find_map(|option| option.strip_prefix("--gpu-architecture="));
    let (kind, arch) = named.and_then(|name| name.split_once('_')).unwrap_or(("sm", "52"));
    let is_known = arch.parse().is_ok_and(|arch: c_int| arch <= newest());
    match kind {
        "sm" | "compute" if is_known => Ok(kind == "compute"),
        _ => Err(String::from("nvrtc: error: invalid value for --gpu-architecture (-arch)")),
    }
}

/// Options by which products are added unrounded, if a test asks for what NVRTC does and kernels
/// do not forbid it; nothing changes on a processor that cannot.
fn contraction(options: &[String]) -> &'static [&'static str] {
    if !contracts() || options.iter().any(|option| option == "--fmad=false") {
        return &[];
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("fma") {
        return &["-ffp-contract=fast", "-mfma"];
    }
    &["-ffp-contract=fast"]
}

fn contracts() -> bool {
    number("BRIGADE_FAKE_CUDA_CONTRACTS", 0) != 0
}

/// The image, or what the compiler wrote. What NVRTC makes of it where a test wants that, in whose
/// portable code drivers find what they need.
fn compile(program: &Program, options: &[String], is_portable: bool) -> Result<Vec<u8>, String> {
    let Some(path) = nvrtc::named() else {
        let folder = Folder::new().map_err(io)?;
        let text = preprocessed(program, options, &folder)?;
        return build(&folder, "rewritten.ii", &text, contraction(options));
    };
    let ptx = nvrtc::compile(path, &program.source, &program.headers, options)?;
    if is_portable { Ok(ptx.into_bytes()) } else { translated(&ptx) }
}

/// The image of portable code (PTX).
pub(crate) fn translated(ptx: &str) -> Result<Vec<u8>, String> {
    build(&Folder::new().map_err(io)?, "translated.cpp", &ptx::translate(ptx)?, &TRANSLATED)
}

/// The image of a source for the processor.
fn build(folder: &Folder, name: &str, text: &str, more: &[&str]) -> Result<Vec<u8>, String> {
    let folder = folder.path();
    for (name, text) in CPU.iter().copied().chain([(name, text)]) {
        fs::write(folder.join(name), text).map_err(io)?;
    }
    let mut all: Vec<String> = OPTIONS.iter().chain(more).map(|one| String::from(*one)).collect();
    if races::is_seen() {
        all.extend(races::OPTIONS.map(String::from));
    }
    run(folder, &all, name, "kernels.so")?;
    let code = fs::read(folder.join("kernels.so")).map_err(io)?;
    let length = (code.len() as u64).to_le_bytes();
    Ok([IMAGE_MAGIC, &length, &code].concat())
}

/// The source as C++ for the processor.
fn preprocessed(program: &Program, options: &[String], folder: &Folder) -> Result<String, String> {
    let path = |name: &str| folder.path().join(name);
    let headers = program.headers.iter().map(|(name, text)| (name.as_str(), text.as_str()));
    let all = headers.chain(CPU).chain([("kernels.cpp", program.source.as_str())]);
    for (name, text) in all {
        fs::write(path(name), text).map_err(io)?;
    }
    let mut first = vec![String::from("-E"), String::from("-include"), String::from("cpu.h")];
    first.extend(options.iter().filter(|option| option.starts_with("-D")).cloned());
    if races::is_seen() {
        first.extend(races::OPTIONS.map(String::from));
    }
    run(folder.path(), &first, "kernels.cpp", "kernels.ii")?;
    Ok(rewrite(&fs::read_to_string(path("kernels.ii")).map_err(io)?))
}

fn io(error: std::io::Error) -> String {
    format!("the fake compiler needs a folder: {error}")
}

fn run(folder: &Path, options: &[String], source: &str, target: &str) -> Result<(), String> {
    let name = program().ok_or("neither g++ nor clang++ is here, and the fake needs one")?;
    let output = Command::new(name)
        .current_dir(folder)
        // Whoever looks on here is not to look on there.
        .env_remove("LD_PRELOAD")
        .args(["-std=c++17", "-I.", "-w"])
        .args(options)
        .args([source, "-o", target])
        .output()
        .map_err(|error| format!("{name} cannot be run: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn text(pointer: *const c_char) -> String {
    // SAFETY: the caller owes a C string.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// As many C strings as there are said to be.
fn texts(count: c_int, pointers: *const *const c_char) -> Vec<String> {
    // SAFETY: the caller owes an array of this length.
    (0..count.max(0) as usize).map(|at| text(unsafe { *pointers.add(at) })).collect()
}

fn fill(bytes: &[u8], target: *mut u8) -> c_int {
    for (at, byte) in bytes.iter().enumerate() {
        if put(target.wrapping_add(at), *byte).is_err() {
            return INVALID_INPUT;
        }
    }
    SUCCESS
}

fn with(program: Handle, look: impl FnOnce(&Made) -> c_int) -> c_int {
    PROGRAMS.find(program).map_or(INVALID_PROGRAM, |program| look(&lock(&program.made)))
}

fn or_invalid(put: Result<(), u32>) -> c_int {
    put.map_or(INVALID_INPUT, |()| SUCCESS)
}

/// The minor version changes with what is put in front of kernels and how they are compiled, so
/// that caches tell.
#[unsafe(no_mangle)]
extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    let mut hasher = DefaultHasher::new();
    (CPU, OPTIONS, races::OPTIONS, races::is_seen(), contracts()).hash(&mut hasher);
    (nvrtc::named(), nvrtc::SOURCE, ptx::SOURCES, TRANSLATED).hash(&mut hasher);
    let ours = (hasher.finish() & 0xf_ffff) as c_int;
    or_invalid(put(major, 99).and_then(|()| put(minor, ours)))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetErrorString(code: c_int) -> *const c_char {
    match code {
        SUCCESS => c"NVRTC_SUCCESS".as_ptr(),
        COMPILATION => c"NVRTC_ERROR_COMPILATION".as_ptr(),
        _ => c"NVRTC_ERROR_INVALID_INPUT".as_ptr(),
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcCreateProgram(
    target: *mut Handle,
    source: *const c_char,
    _name: *const c_char,
    count: c_int,
    headers: *const *const c_char,
    names: *const *const c_char,
) -> c_int {
    let headers = texts(count, names).into_iter().zip(texts(count, headers)).collect();
    let made = Mutex::new(Made::default());
    or_invalid(put(target, PROGRAMS.add(Program { source: text(source), headers, made })))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcDestroyProgram(program: *mut Handle) -> c_int {
    // SAFETY: the caller owes a pointer to a program's handle.
    PROGRAMS.remove(unsafe { *program }).map_or(INVALID_PROGRAM, |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcCompileProgram(
    program: Handle,
    count: c_int,
    options: *const *const c_char,
) -> c_int {
    let Ok(program) = PROGRAMS.find(program) else { return INVALID_PROGRAM };
    let options = texts(count, options);
    let result = is_portable(&options)
        .and_then(|is_portable| Ok((compile(&program, &options, is_portable)?, is_portable)));
    let mut made = lock(&program.made);
    match result {
        Ok((image, is_portable)) => {
            *made = Made { log: String::new(), image, is_portable };
            SUCCESS
        }
        Err(log) => {
            *made = Made { log, ..Made::default() };
            COMPILATION
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLogSize(program: Handle, target: *mut usize) -> c_int {
    with(program, |made| or_invalid(put(target, made.log.len() + 1)))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLog(program: Handle, target: *mut u8) -> c_int {
    with(program, |made| fill(&[made.log.as_bytes(), &[0]].concat(), target))
}

/// Code of this kind, if that was asked for.
fn code(made: &Made, is_portable: bool) -> &[u8] {
    if made.is_portable == is_portable { &made.image } else { &[] }
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetCUBINSize(program: Handle, target: *mut usize) -> c_int {
    with(program, |made| or_invalid(put(target, code(made, false).len())))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetCUBIN(program: Handle, target: *mut u8) -> c_int {
    with(program, |made| fill(code(made, false), target))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetPTXSize(program: Handle, target: *mut usize) -> c_int {
    with(program, |made| or_invalid(put(target, code(made, true).len())))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetPTX(program: Handle, target: *mut u8) -> c_int {
    with(program, |made| fill(code(made, true), target))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetNumSupportedArchs(target: *mut c_int) -> c_int {
    or_invalid(put(target, 2))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetSupportedArchs(target: *mut c_int) -> c_int {
    let archs = [52, newest()];
    or_invalid((0..).zip(archs).try_for_each(|(at, arch)| put(target.wrapping_add(at), arch)))
}
