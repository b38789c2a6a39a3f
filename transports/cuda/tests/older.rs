//! A compiler that is older than the device, in a process that meets no other one.

use brigade_cuda::nvrtc::{Compiler, Source, module};
use brigade_cuda::{Context, Cuda};
use brigade_cuda_fake::{Folder, has_device};

const NOTHING: Source =
    Source::new("nothing", "#include \"brigade.cuh\"\nextern \"C\" __global__ void nothing() {}\n");

/// It knows nothing of the device, but has portable code, which the driver takes.
#[test]
fn an_older_compiler_makes_portable_code_for_a_newer_device() {
    let folder = Folder::new().expect("a folder");
    for (name, value) in
        [("BRIGADE_FAKE_CUDA_NEWEST", "80".as_ref()), ("BRIGADE_CACHE", folder.path().as_os_str())]
    {
        // SAFETY: nobody else reads the environment: this is the only test of the process.
        unsafe { std::env::set_var(name, value) };
    }
    if !has_device() || brigade_cuda_fake::is_off() {
        return;
    }
    let device = Cuda::load().expect("the fake driver").devices().expect("devices").remove(0);
    assert_eq!(device.arch(), "sm_90");
    let context = Context::new(&device).expect("a context");
    let loaded = module(&context, &NOTHING).expect("portable code");
    loaded.function("nothing").expect("the kernel");
    let compiler = Compiler::find().expect("a compiler");
    assert!(!compiler.compile(&NOTHING, "sm_80").expect("code of its own").is_empty());
    let why = compiler.compile(&NOTHING, "sm_9x").expect_err("there is none").to_string();
    assert!(why.contains("--gpu-architecture"), "{why}");
}
