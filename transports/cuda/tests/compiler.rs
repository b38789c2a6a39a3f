//! A compiler that lies where the linker does not look, in a process that meets no other one.

use std::ffi::c_int;
use std::fs;
use std::path::Path;

use brigade_cuda::nvrtc::Compiler;
use brigade_cuda_fake::Folder;

/// The version that the fake compiler tells.
fn version(file: &Path) -> (c_int, c_int) {
    type Ask = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the fake's initialisers want nothing, and this is the type of its function, whose
    // pointers are to numbers that outlive the call.
    unsafe {
        let library = libloading::Library::new(file).expect("the fake");
        library.get::<Ask>(b"nvrtcVersion\0").expect("its version")(&mut major, &mut minor);
    }
    (major, minor)
}

/// NVRTC of CUDA 13.0 asks the linker for its other half when it compiles, and says that it is
/// missing where it lies in the same folder.
#[test]
fn what_lies_beside_a_compiler_is_open_before_it_compiles() {
    let fake = brigade_cuda_fake::library();
    let folder = Folder::new().expect("a folder");
    let (major, minor) = version(&fake);
    let builtins = folder.path().join(format!("libnvrtc-builtins.so.{major}.{minor}"));
    for copy in [&folder.path().join("libnvrtc.so.13"), &builtins] {
        fs::copy(&fake, copy).expect("a copy of the fake");
    }
    // SAFETY: nobody else reads the environment: this is the only test of the process.
    unsafe { std::env::set_var("BRIGADE_NVRTC", folder.path()) };
    let compiler = Compiler::find().expect("a compiler");
    assert!(Path::new(compiler.file()).starts_with(folder.path()), "{}", compiler.file());
    let maps = fs::read_to_string("/proc/self/maps").expect("a list of what is open");
    assert!(maps.contains(builtins.to_str().expect("a name in UTF-8")), "{maps}");
}
