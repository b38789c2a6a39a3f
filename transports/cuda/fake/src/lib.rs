//! A CUDA driver and a compiler of kernels without a device, for tests. It is a library with
//! libcuda's and libnvrtc's names: whatever loads those at run time loads this instead, and runs
//! as it is, in any number of processes. It has the few names of cuBLAS too that are used here,
//! for tests that name it as that (`BRIGADE_CUBLAS_LIBRARY`), and those of cuFile.
//!
//! Memory of "devices" is memory of the host that other processes can map; streams are threads, so
//! what is given to them is done later and in order; kernels are compiled by g++ or clang++ from
//! the same source (`cpu.h` says how), and where ThreadSanitizer looks on it sees what they do in
//! no order ([`races`]). It is no measure of speed, and kinder than a device in two ways: the host
//! can follow a device's address, and a kernel that goes astray ends the process, as does memory
//! that is freed while another process has it open.
//!
//! Variables that tests set:
//!
//! * `BRIGADE_FAKE_CUDA=off`: tests use the machine's own driver instead.
//! * `BRIGADE_FAKE_CUDA_DEVICES`: how many devices there are (1).
//! * `BRIGADE_FAKE_CUDA_MEMORY`: bytes of memory of each, for each process (1 GiB).
//! * `BRIGADE_FAKE_CUDA_ARCH`: what kernels are compiled for (90).
//! * `BRIGADE_FAKE_CUDA_VERSION`: what the driver says that it speaks (12080).
//! * `BRIGADE_FAKE_CUDA_CONTRACTS`: 1: products are added unrounded, where kernels allow it.
//! * `BRIGADE_FAKE_CUDA_NVRTC`: the file of NVIDIA's NVRTC, which then compiles the kernels: what
//!   it makes (PTX) is translated for the processor (`ptx.rs`).
//! * `BRIGADE_FAKE_CUDA_NEWEST`: the newest architecture that the compiler knows (90).
//! * `BRIGADE_FAKE_CUDA_PEERS`: `yes`; `no`: devices do not reach each other; `broken`: memory of
//!   others opens, but what is written does not arrive.
//! * `BRIGADE_FAKE_CUDA_FAULTS`: `cuMemAlloc_v2@3=2,...`: the third call of this function returns
//!   2, and without a place every one does; errors from 700 to 719 stick. Of `cuFileRead` and
//!   `cuFileWrite` it is what errno says, and 0 lets them move half of their blocks.
//! * `BRIGADE_FAKE_CUDA_STREAMS`: `apart`, where ThreadSanitizer looks on: see [`watched`].
//! * `BRIGADE_FAKE_CUDA_FREES`: `at-once`: freeing memory waits for nothing, and what still uses it
//!   ends the process.
//! * `BRIGADE_FAKE_CUFILE`: how bytes go: by nvidia-fs, `p2p` without it (`p2p-late` as versions
//!   of CUDA 13 tell it), or not at all (`none`,
//!   where only the compatibility mode is left). `forced`: that mode always; `old`: a version that
//!   cannot be told to leave it.
#![warn(missing_docs)]

mod access;
mod blas;
mod compiler;
mod cufile;
mod device;
mod event;
mod fault;
mod folder;
mod graph;
mod kernel;
mod memory;
mod nvrtc;
mod ptx;
mod races;
mod rewrite;
mod share;
mod stream;
mod table;

use std::path::PathBuf;
use std::sync::Once;

pub use folder::Folder;
pub use races::{races, watched};

/// The library, built beside the test that asks. Tests get it by naming this crate among their
/// `dev-dependencies`.
///
/// # Panics
///
/// Where there is none: the program is no test of cargo's.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a running program has a path");
    let folder = program.parent().expect("a program lies in a folder");
    let name = "libbrigade_cuda_fake.so";
    // Tests lie in `deps`, examples and the command beside it.
    let places = [folder.join(name), folder.join("deps").join(name), folder.join("..").join(name)];
    let places = places.into_iter().chain([folder.join("../deps").join(name)]);
    let mut places = places.filter(|place| place.exists());
    places.next().unwrap_or_else(|| panic!("{name} is not built beside {}", program.display()))
}

/// The variable that sends tests to the machine's own driver, when it is `off`: so what was tried
/// on the fake can be tried on a device, by the same programs.
pub const OFF_VARIABLE: &str = "BRIGADE_FAKE_CUDA";

/// Whether tests are to use the machine's own driver.
pub fn is_off() -> bool {
    std::env::var(OFF_VARIABLE).is_ok_and(|value| value == "off")
}

/// What a process needs in its environment to meet this driver and this compiler; nothing where
/// tests are to use the machine's own.
pub fn environment() -> Vec<(&'static str, PathBuf)> {
    if is_off() {
        return Vec::new();
    }
    let cache = std::env::temp_dir().join("brigade-fake-cuda-kernels");
    vec![
        ("BRIGADE_CUDA_LIBRARY", library()),
        ("BRIGADE_NVRTC", library()),
        ("BRIGADE_CUFILE_LIBRARY", library()),
        ("BRIGADE_CACHE", cache),
    ]
}

/// Whether kernels can be compiled here: there is a C++ compiler, and the processor is known.
pub fn is_usable() -> bool {
    let is_known = cfg!(all(target_arch = "x86_64", target_os = "linux"));
    is_off() || (is_known && compiler::program().is_some())
}

/// Let a test meet this driver; false, and a line that says why, where there is none.
pub fn has_device() -> bool {
    install();
    let usable = is_usable();
    if !usable {
        eprintln!("skipped: the fake device needs x86-64 Linux and a C++ compiler");
    }
    usable
}

/// Let this process, and those that it starts, meet this driver. Tests call it first of all.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (name, value) in environment() {
            // SAFETY: tests call this before they start threads that read the environment through
            // C; Rust's own readers are locked out meanwhile.
            unsafe { std::env::set_var(name, value) };
        }
    });
}
