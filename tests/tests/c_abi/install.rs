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
    let compiled = |program: &Path| {
        let name = program.file_stem().expect("a file of C").to_owned();
        let binary = library.prefix.join(name);
        let mut compiler = Command::new("gcc");
        compiler.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror"]).arg(program);
        compiler.arg("-o").arg(&binary).args(ask(&["--cflags", "--libs"]).split_whitespace());
        run(&mut compiler);
        binary
    };
    let mut program = bounded(compiled(&source("collectives.c")));
    assert!(run(program.env("LD_LIBRARY_PATH", library.lib())).contains("rank 0 of 1"));
    // The program that the README begins with.
    let mut world = bounded(brigade());
    world.args(["run", "-n", "3", "--"]).arg(compiled(&root().join("examples/hello.c")));
    let said = run(world.env("LD_LIBRARY_PATH", library.lib()));
    assert_eq!(said.matches("of 3: every number is now 6\n").count(), 3, "{said}");
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
