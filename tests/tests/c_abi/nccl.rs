//! libbrigade_nccl as programs for NCCL meet it: in C, CuPy's binding on the memory of numpy,
//! cudarc's on that of Rust, and PyTorch, which only looks the names up here.
//!
//! `CUPY_PYTHON` and `TORCH_PYTHON` may name the Pythons that have them; else it is `python3`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::library::{bounded, has, root, run, source, words};

/// The functions of nccl.h of version 2.30.7, without the `nccl` in front. What PyTorch 2.15,
/// JAX 0.12 and CuPy 14.2 look up is among them and those below.
const NAMES: &str = "\
    AllGather AllReduce AlltoAll Bcast Broadcast CommAbort CommCount CommCuDevice CommDeregister \
    CommDestroy CommFinalize CommGetAsyncError CommGetUniqueId CommGrow CommInitAll CommInitRank \
    CommInitRankConfig CommInitRankScalable CommMemStats CommRegister CommResume CommRevoke \
    CommShrink CommSplit CommSuspend CommUserRank CommWindowDeregister CommWindowRegister Gather \
    GetErrorString GetLastError GetUniqueId GetVersion GroupEnd GroupSimulateEnd GroupStart \
    MemAlloc MemFree ParamBind ParamDumpAll ParamGet ParamGetAllParameterKeys ParamGetI16 \
    ParamGetI32 ParamGetI64 ParamGetI8 ParamGetParameter ParamGetStr ParamGetU16 ParamGetU32 \
    ParamGetU64 ParamGetU8 PutSignal Recv RedOpCreatePreMulSum RedOpDestroy Reduce ReduceScatter \
    ResetDebugInit Scatter Send Signal WaitSignal WinGetUserPtr";

/// The functions of the host in its nccl_device.h.
const DEVICE_NAMES: &str = "\
    CommQueryProperties DevCommCreate DevCommDestroy GetLsaDevicePointer \
    GetLsaMultimemDevicePointer GetMultimemDevicePointer GetPeerDevicePointer \
    GinBarrierCreateRequirement GinInboxA2ACreateRequirement GinOutboxCreateRequirement \
    LLA2ACalcSlots LLA2ACreateRequirement LsaBarrierCreateRequirement TeamLsa TeamRail \
    TeamRankToLsa TeamRankToWorld TeamWorld";

/// The library, installed in a folder that goes with this.
struct Nccl(PathBuf);

impl Nccl {
    fn install(name: &str) -> Self {
        let folder = format!("brigade-nccl-{name}-{}", std::process::id());
        let installed = Self(std::env::temp_dir().join(folder));
        let mut install = Command::new("sh");
        install.arg(root().join("ffi/nccl/install.sh")).arg("--libdir").arg(&installed.0);
        run(install.arg("--from").arg(brigade_built::folder()));
        installed
    }

    fn library(&self) -> PathBuf {
        self.0.join("libnccl.so.2")
    }

    fn link(&self, program: &str) -> PathBuf {
        let binary = self.0.join(program).with_extension("");
        let mut compiler = Command::new("gcc");
        compiler.args(["-std=c99", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
        compiler.arg(source(program)).arg("-L").arg(&self.0).args(["-lnccl", "-lpthread"]);
        let rpath = format!("-Wl,-rpath,{}", self.0.display());
        run(compiler.arg(rpath).arg("-o").arg(&binary));
        binary
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // Nothing is left to do about a folder that cannot be removed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_names_are_all_of_nccls_twice_and_no_others() {
    if !has("nm") || !has("readelf") {
        return;
    }
    let nccl = Nccl::install("names");
    let library = nccl.library();
    let listed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let exported = listed.lines().filter_map(|line| line.split_whitespace().last());
    let exported: BTreeSet<String> = exported.map(str::to_owned).collect();
    assert_eq!([NAMES, DEVICE_NAMES].map(|names| names.split_whitespace().count()), [64, 18]);
    let names = NAMES.split_whitespace().chain(DEVICE_NAMES.split_whitespace());
    // The second ones are for tools that take the place of the first.
    let wanted: BTreeSet<String> =
        names.flat_map(|name| [format!("nccl{name}"), format!("pnccl{name}")]).collect();
    assert_eq!(exported, wanted);
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library));
    assert!(dynamic.contains("[libnccl.so.2]"), "{dynamic}");
    // Its threads outlive a dlclose.
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

#[test]
fn a_program_in_c_makes_every_call_and_every_mistake() {
    if !has("gcc") {
        return;
    }
    let nccl = Nccl::install("program");
    let binary = nccl.link("nccl.c");
    assert_eq!(run(&mut bounded(&binary)), "NCCL's calls did what they should\n");
    let binary = nccl.link("nccl_groups.c");
    assert_eq!(run(&mut bounded(&binary)), "groups went as they should\n");
    let binary = nccl.link("nccl_names.c");
    assert_eq!(run(&mut bounded(&binary)), "NCCL's names did what they should\n");
    let binary = nccl.link("nccl_grow.c");
    assert_eq!(run(&mut bounded(&binary)), "communicators grew as they should\n");
}

/// A Python that has a module; says so if there is none.
fn python_with(variable: &str, module: &str) -> Option<String> {
    let python = std::env::var(variable).unwrap_or("python3".into());
    let find = format!("import importlib.util as u; exit(u.find_spec('{module}') is None)");
    let found = bounded(&python).args(["-c", &find]).stderr(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        return Some(python);
    }
    println!("skipped: {python} has no {module}; name one that has it in {variable}");
    None
}

#[test]
fn cupys_binding_makes_all_its_collectives_on_host_memory() {
    let Some(python) = python_with("CUPY_PYTHON", "cupy_backends") else { return };
    let nccl = Nccl::install("cupy");
    for ranks in [2, 4] {
        let id_file = nccl.0.join(format!("id-{ranks}"));
        let start = |rank: usize| {
            let mut program = bounded(&python);
            // Found before the library that a package of Python's may carry.
            program.arg(root().join("tests/python/cupy_nccl.py")).env("LD_PRELOAD", nccl.library());
            program.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
            program.env("ID_FILE", &id_file).stdout(Stdio::piped()).stderr(Stdio::piped());
            program.spawn().expect("there is a Python")
        };
        let processes: Vec<_> = (0..ranks).map(start).collect();
        for (rank, process) in processes.into_iter().enumerate() {
            let output = process.wait_with_output().expect("it was started");
            let wanted = format!("rank {rank} of {ranks}: all of 23007 as it should be");
            assert!(words(&output).contains(&wanted), "{}", words(&output));
        }
    }
}

#[test]
fn cudarcs_binding_makes_its_calls_on_host_memory() {
    let folder = brigade_built::folder();
    let nccl = Nccl::install("cudarc");
    let mut program = bounded(folder.join("examples/cudarc_nccl"));
    let said = run(program.env("LD_LIBRARY_PATH", &nccl.0));
    assert_eq!(said, "cudarc made its calls on host memory\n");
}

#[test]
fn pytorch_finds_all_names_that_it_looks_up() {
    let Some(python) = python_with("TORCH_PYTHON", "torch") else { return };
    let nccl = Nccl::install("torch");
    let mut program = bounded(&python);
    program.env("LD_PRELOAD", nccl.library());
    assert_eq!(run(program.args(["-c", "import torch; print('imported')"])), "imported\n");
}
