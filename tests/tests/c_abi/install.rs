//! How programs find the installed library: pkg-config and CMake.

use std::path::Path;
use std::process::Command;

use crate::library::{Installed, bounded, brigade, has, root, run, source};

#[test]
fn pkg_config_finds_the_library() {
    if !has("pkg-config") || !has("gcc") {
        return;
    }
    let library = Installed::get();
    let ask = |what: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", library.lib().join("pkgconfig"));
        run(command.args(what).arg("brigade")).trim().to_owned()
    };
    assert_eq!(ask(&["--modversion"]), env!("CARGO_PKG_VERSION"));
    let compiled = |program: &Path, flags: &str| {
        let name = program.file_stem().expect("a file of C").to_owned();
        let binary = library.prefix.join(name);
        let mut compiler = Command::new("gcc");
        compiler.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"]).arg(program);
        run(compiler.arg("-o").arg(&binary).args(flags.split_whitespace()));
        binary
    };
    let shared = ask(&["--cflags", "--libs"]);
    let mut program = bounded(compiled(&source("collectives.c"), &shared));
    assert!(run(program.env("LD_LIBRARY_PATH", library.lib())).contains("rank 0 of 1"));
    // The program that the README begins with, in each way that it names.
    let inside = shared.replace("-lbrigade", "-l:libbrigade.a");
    let whole = format!("-static {}", ask(&["--static", "--cflags", "--libs"]));
    // Not every system has a libc for programs without shared libraries: its path is a name then.
    let libc = run(Command::new("gcc").arg("-print-file-name=libc.a"));
    let has_libc = Path::new(libc.trim()).is_absolute();
    let ways = [Some(shared), Some(inside), Some(whole).filter(|_| has_libc)];
    for flags in ways.into_iter().flatten() {
        let hello = compiled(&root().join("examples/hello.c"), &flags);
        let mut world = bounded(brigade());
        world.args(["run", "-n", "3", "--"]).arg(&hello);
        let is_shared = flags.contains("-lbrigade") && !flags.contains("-static");
        world.envs(is_shared.then(|| ("LD_LIBRARY_PATH", library.lib())));
        let said = run(&mut world);
        assert_eq!(said.matches("of 3: every number is now 6\n").count(), 3, "{flags}: {said}");
    }
}

#[test]
fn cmake_finds_the_library() {
    if !has("cmake") || !has("g++") {
        return;
    }
    let library = Installed::get();
    let folder = library.prefix.join("cmake-project");
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    let version = env!("CARGO_PKG_VERSION");
    let lists = format!(
        "cmake_minimum_required(VERSION 3.10)\nproject(example C CXX)\n\
         find_package(brigade {version} REQUIRED)\n\
         add_executable(shared {})\ntarget_link_libraries(shared brigade::brigade)\n\
         add_executable(inside {})\ntarget_link_libraries(inside brigade::static)\n",
        source("gradients.cpp").display(),
        source("collectives.c").display(),
    );
    std::fs::write(folder.join("CMakeLists.txt"), lists).expect("a folder of ours");
    let build = folder.join("build");
    let mut configure = bounded("cmake");
    configure.arg("-S").arg(&folder).arg("-B").arg(&build);
    run(configure.arg(format!("-DCMAKE_PREFIX_PATH={}", library.prefix.display())));
    run(bounded("cmake").arg("--build").arg(&build));
    for program in ["shared", "inside"] {
        assert!(run(&mut bounded(build.join(program))).contains("rank 0 of 1"));
    }
}
