//! The programs in `tests/c`: compiled in every way, and run in several.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::{Installed, bounded, brigade, has, run, source};

/// All that is written in C against brigade.h.
const C_PROGRAMS: [&str; 8] = [
    "layout.c",
    "collectives.c",
    "fuzz.c",
    "hostile.c",
    "ids.c",
    "latency.c",
    "survivors.c",
    "works.c",
];
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];

#[test]
fn c_programs_compile_as_every_standard_by_every_compiler() {
    let library = Installed::get();
    for compiler in ["gcc", "clang"].into_iter().filter(|compiler| has(compiler)) {
        for standard in ["c99", "c11", "c17"] {
            for program in C_PROGRAMS {
                compile(&library, compiler, standard, program);
            }
        }
    }
}

#[test]
fn cpp_programs_compile_as_every_standard_by_every_compiler() {
    let library = Installed::get();
    for compiler in ["g++", "clang++"].into_iter().filter(|compiler| has(compiler)) {
        for standard in ["c++11", "c++14", "c++17", "c++20"] {
            compile(&library, compiler, standard, "gradients.cpp");
        }
    }
}

#[test]
fn ranks_of_the_launcher_run_programs_with_the_shared_library() {
    if !has("gcc") || !has("g++") {
        return;
    }
    let library = Installed::get();
    for (compiler, program) in
        [("gcc", "collectives.c"), ("gcc", "works.c"), ("g++", "gradients.cpp")]
    {
        let binary = link(&library, compiler, program, "launched", &[]);
        for ranks in [1, 2, 4] {
            let mut launch = bounded(brigade());
            launch.args(["run", "-n", &ranks.to_string(), "--"]).arg(&binary);
            expect_ranks(&run(&mut launch), ranks);
        }
    }
}

#[test]
fn ranks_run_programs_with_the_library_inside() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let archive = library.lib().join("libbrigade.a");
    let extra = [archive.to_str().expect("a path in UTF-8"), "-lgcc_s", "-lpthread", "-ldl", "-lm"];
    let binary = library.prefix.join("static-collectives");
    let mut command = Command::new("gcc");
    command.arg("-I").arg(library.include()).arg(source("collectives.c"));
    run(command.args(extra).arg("-o").arg(&binary));
    let mut launch = bounded(brigade());
    expect_ranks(&run(launch.args(["run", "-n", "2", "--"]).arg(&binary)), 2);
}

#[test]
fn ranks_of_mpirun_run_programs() {
    if !has("mpirun") || !has("g++") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "g++", "gradients.cpp", "mpirun", &[]);
    let mut launch = bounded("mpirun");
    launch.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    launch.args(["--oversubscribe", "-n", "2"]).arg(&binary);
    expect_ranks(&run(&mut launch), 2);
}

#[test]
fn whatever_a_program_gets_wrong_it_is_told_so() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "hostile.c", "plain", &[]);
    assert_eq!(run(&mut bounded(&binary)), "all refused as it should be\n");
}

#[test]
fn unique_ids_lead_threads_and_forked_processes_together() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "ids.c", "plain", &[]);
    assert_eq!(run(&mut bounded(&binary)), "ids led where they should\n");
}

#[test]
fn those_who_are_left_go_on_without_a_killed_rank() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "survivors.c", "plain", &[]);
    assert_eq!(run(&mut bounded(&binary)), "those who were left went on\n");
}

/// The seed is what the program prints first.
#[test]
fn whatever_is_called_at_random_comes_back() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "fuzz.c", "plain", &[]);
    for _ in 0..3 {
        let said = run(&mut bounded(&binary));
        print!("{said}");
        assert!(said.ends_with("every call came back\n"), "{said}");
    }
}

/// Of the library only what it does with the program's memory is seen, for it is compiled without.
#[test]
fn address_and_undefined_behaviour_sanitizers_have_nothing_to_say() {
    if !has("gcc") || !has("g++") {
        return;
    }
    let library = Installed::get();
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"];
    let probe = library.prefix.join("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").expect("a folder of ours");
    let mut command = Command::new("gcc");
    command.args(flags).arg(&probe).arg("-o").arg(library.prefix.join("probe"));
    if !command.output().is_ok_and(|output| output.status.success()) {
        println!("skipped: gcc has no sanitizers here");
        return;
    }
    for alone in ["hostile.c", "fuzz.c"] {
        run(&mut bounded(link(&library, "gcc", alone, "sanitized", &flags)));
    }
    for (compiler, program) in [("gcc", "works.c"), ("g++", "gradients.cpp")] {
        let binary = link(&library, compiler, program, "sanitized", &flags);
        let mut launch = bounded(brigade());
        expect_ranks(&run(launch.args(["run", "-n", "2", "--"]).arg(&binary)), 2);
    }
}

#[test]
fn valgrind_has_nothing_to_say() {
    if !has("valgrind") || !has("gcc") {
        return;
    }
    let library = Installed::get();
    let valgrind =
        ["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"];
    let hostile = link(&library, "gcc", "hostile.c", "valgrind", &["-g"]);
    run(bounded("valgrind").args(valgrind).arg(&hostile).arg("without-fork"));
    let binary = link(&library, "gcc", "collectives.c", "valgrind", &["-g"]);
    let mut launch = bounded(brigade());
    launch.args(["run", "-n", "2", "--", "valgrind"]).args(valgrind).arg(&binary);
    expect_ranks(&run(&mut launch), 2);
}

/// Each rank says so when everything was right.
#[track_caller]
fn expect_ranks(said: &str, ranks: usize) {
    for rank in 0..ranks {
        let line = format!("rank {rank} of {ranks}: all as it should be");
        assert!(said.contains(&line), "{line:?} is not in {said:?}");
    }
}

/// Compile without a word.
#[track_caller]
fn compile(library: &Installed, compiler: &str, standard: &str, program: &str) {
    let mut command = Command::new(compiler);
    command.arg(format!("-std={standard}")).args(STRICT).args(["-O1", "-c", "-o", "/dev/null"]);
    run(command.arg("-I").arg(library.include()).arg(source(program)));
}

/// A program linked to the shared library.
#[track_caller]
pub(crate) fn link(
    library: &Installed,
    compiler: &str,
    program: &str,
    name: &str,
    flags: &[&str],
) -> PathBuf {
    let stem = Path::new(program).file_stem().unwrap_or_default().to_string_lossy();
    let binary = library.prefix.join(format!("{name}-{stem}"));
    let mut command = Command::new(compiler);
    let standard = if compiler.ends_with("++") { "-std=c++11" } else { "-std=c99" };
    command.args([standard, "-O2"]).args(flags).arg("-I").arg(library.include());
    command.arg(source(program)).arg("-L").arg(library.lib()).args(["-lbrigade", "-lpthread"]);
    let rpath = format!("-Wl,-rpath,{}", library.lib().display());
    run(command.arg(rpath).arg("-o").arg(&binary));
    binary
}
