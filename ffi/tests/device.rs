//! Memory of devices through C: programs that are compiled here, against the header and the library
//! of this build, on a driver that needs no device, or on the machine's own with
//! `BRIGADE_FAKE_CUDA=off`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use brigade_cuda_fake::{environment, has_device};

/// The programs, with what they include: a machine with a GPU may have a compiler and no sources.
const SOURCES: [(&str, &str); 8] = [
    ("brigade.h", include_str!("../../include/brigade.h")),
    ("brigade.hpp", include_str!("../../include/brigade.hpp")),
    ("check.h", include_str!("../../tests/c/check.h")),
    ("cuda.h", include_str!("../../tests/c/cuda.h")),
    ("device.c", include_str!("../../tests/c/device.c")),
    ("device.cpp", include_str!("../../tests/c/device.cpp")),
    ("device_rank.h", include_str!("../../tests/c/device_rank.h")),
    ("device_hostile.c", include_str!("../../tests/c/device_hostile.c")),
];
const FLAGS: [&str; 6] = ["-O2", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

#[test]
fn threads_on_one_device_make_every_call() {
    for compiler in compilers() {
        let program = Program::compile(compiler, "device.c");
        for ranks in ["2", "4"] {
            expect_ranks(&program.run(&["threads", ranks]), ranks);
        }
    }
}

#[test]
fn processes_on_one_device_make_every_call() {
    for compiler in compilers() {
        let program = Program::compile(compiler, "device.c");
        expect_ranks(&program.run(&["processes", "2"]), "2");
    }
}

#[test]
fn one_rank_needs_no_other() {
    for compiler in compilers().into_iter().take(1) {
        expect_ranks(&Program::compile(compiler, "device.c").run(&["threads", "1"]), "1");
    }
}

#[test]
fn whatever_a_program_gets_wrong_it_is_told_so() {
    for compiler in compilers() {
        let program = Program::compile(compiler, "device_hostile.c");
        assert_eq!(program.run(&[]), "all refused as it should be\n");
    }
}

#[test]
fn cpp_has_owners_for_it() {
    for compiler in compilers() {
        let compiler = if compiler == "gcc" { "g++" } else { "clang++" };
        let program = Program::compile(compiler, "device.cpp");
        assert_eq!(program.run(&[]), "as it should be in C++\n");
    }
}

/// The libraries that the program has mapped are what it looks at.
#[test]
fn whoever_has_nothing_to_do_with_devices_loads_no_driver() {
    for compiler in compilers().into_iter().take(1) {
        let program = Program::compile(compiler, "device.c");
        assert_eq!(program.run(&["without"]), "no driver was opened\n");
        let nowhere = [("BRIGADE_CUDA_LIBRARY", "/nowhere/libcuda.so.1"), ("NO_DRIVER", "1")];
        assert_eq!(program.run_with(&["without"], &nowhere), "no driver was opened\n");
    }
}

/// A program in a folder of its own, which goes with this.
struct Program {
    folder: PathBuf,
}

impl Program {
    fn compile(compiler: &str, name: &str) -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = format!("brigade-c-device-{}-{count}", std::process::id());
        let made = Self { folder: std::env::temp_dir().join(folder) };
        let folder = &made.folder;
        std::fs::create_dir_all(folder).expect("a folder of ours");
        for (file, text) in SOURCES {
            std::fs::write(folder.join(file), text).expect("a folder of ours");
        }
        for linked in ["libbrigade.so", "libbrigade.so.0"] {
            std::os::unix::fs::symlink(library(), folder.join(linked)).expect("a folder of ours");
        }
        let mut command = Command::new(compiler);
        command.arg(if name.ends_with(".c") { "-std=c99" } else { "-std=c++11" });
        command.args(FLAGS).arg("-I").arg(folder).arg(folder.join(name));
        command.arg("-o").arg(folder.join("program")).arg("-L").arg(folder);
        command.args(["-lbrigade", "-lpthread", "-ldl"]);
        said(command.arg(format!("-Wl,-rpath,{}", folder.display())));
        made
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> String {
        self.run_with(arguments, &[])
    }

    #[track_caller]
    fn run_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", "240"]).arg(self.folder.join("program")).args(arguments);
        if !brigade_cuda_fake::is_off() {
            // Kernels are compiled in the first call, on a machine that may be busy.
            command.env("BRIGADE_TIMEOUT_MS", "120000").envs(environment());
        }
        said(command.envs(variables.iter().copied()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Nothing is left to do about a folder that cannot be removed.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// What a command printed; it must succeed.
#[track_caller]
fn said(command: &mut Command) -> String {
    let output = command.output().expect("the command can be started");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let why = text(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{why}", output.status);
    text(&output.stdout)
}

/// Each rank says so when everything was right.
#[track_caller]
fn expect_ranks(said: &str, ranks: &str) {
    for rank in 0..ranks.parse().expect("a number") {
        let line = format!("rank {rank} of {ranks}: all as it should be");
        assert!(said.contains(&line), "{line:?} is not in {said:?}");
    }
}

/// The compilers that are here; none without a device to try programs on.
fn compilers() -> Vec<&'static str> {
    let here = |compiler: &&str| Command::new(compiler).arg("--version").output().is_ok();
    let found: Vec<&str> = ["gcc", "clang"].into_iter().filter(here).collect();
    if found.is_empty() {
        println!("skipped: neither gcc nor clang is here");
    }
    if has_device() { found } else { Vec::new() }
}

/// The library of this build: made anew by a test that cargo runs, as all tests of C make it (a
/// package that is built by itself gets fewer features of what it shares with others); else packed
/// beside the test, or where cargo puts it.
fn library() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| {
        let test = std::env::current_exe().expect("a running program has a path");
        let folder = test.parent().expect("a program lies in a folder");
        let above = folder.parent().expect("it is in target/PROFILE/deps, or packed");
        let places = [folder.join("libbrigade.so"), above.join("libbrigade.so")];
        let found = || places.iter().find(|place| place.exists()).cloned();
        if let (None, Some(found)) = (std::env::var_os("CARGO"), found()) {
            return found;
        }
        brigade_built::folder().join("libbrigade.so")
    })
}
