//! The programs in `tests/c`: compiled in every way, and run in several.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::library::{Installed, bounded, brigade, has, root, run, source};

/// All that is written in C against brigade.h.
const C_PROGRAMS: [&str; 16] = [
    "layout.c",
    "collectives.c",
    "device.c",
    "device_hostile.c",
    "exhausted.c",
    "fuzz.c",
    "groups.c",
    "hostile.c",
    "ids.c",
    "interrupts.c",
    "latency.c",
    "losses.c",
    "offload.c",
    "survivors.c",
    "windows.c",
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
            for program in ["device.cpp", "gradients.cpp", "owners.cpp"] {
                compile(&library, compiler, standard, program);
            }
        }
    }
}

#[test]
fn ranks_of_the_launcher_run_programs_with_the_shared_library() {
    if !has("gcc") || !has("g++") {
        return;
    }
    let library = Installed::get();
    for (compiler, program) in [
        ("gcc", "collectives.c"),
        ("gcc", "works.c"),
        ("gcc", "windows.c"),
        ("g++", "gradients.cpp"),
    ] {
        let binary = link(&library, compiler, program, "launched", &[]);
        for ranks in [1, 2, 4] {
            let mut launch = bounded(brigade());
            launch.args(["run", "-n", &ranks.to_string(), "--"]).arg(&binary);
            expect_ranks(&run(&mut launch), ranks);
            if program == "windows.c" {
                // There ranks cannot reach each other's memory by themselves.
                expect_ranks(&run(launch.env("BRIGADE_TRANSPORT", "tcp")), ranks);
            }
        }
    }
}

#[test]
fn the_program_at_the_top_of_the_header_runs() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let header = std::fs::read_to_string(root().join("include/brigade.h")).expect("it is there");
    let program = header.lines().filter_map(|line| line.strip_prefix(" *     "));
    let path = library.prefix.join("shown.c");
    let text = program.collect::<Vec<_>>().join("\n") + "\n";
    std::fs::write(&path, text).expect("a folder of ours");
    let path = path.to_str().expect("a path in UTF-8");
    let binary = link(&library, "gcc", path, "header", &STRICT);
    let mut launch = bounded(brigade());
    assert_eq!(run(launch.args(["run", "-n", "2", "--"]).arg(&binary)), "2 ranks\n2 ranks\n");
}

#[test]
fn what_the_header_for_cpp_owns_does_what_it_should_and_ends() {
    if !has("g++") {
        return;
    }
    let library = Installed::get();
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"];
    let flags = if sanitizes(&library) { &flags[..] } else { &[] };
    let binary = link(&library, "g++", "owners.cpp", "owners", flags);
    let folder = library.prefix.join("owned");
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    for transport in ["auto", "tcp"] {
        let mut launch = bounded(brigade());
        launch.args(["run", "-n", "2", "--"]).arg(&binary).arg(&folder);
        expect_ranks(&run(launch.env("BRIGADE_TRANSPORT", transport)), 2);
    }
}

#[test]
fn who_has_finalized_may_end_before_the_others_have() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "endings.c", "plain", &[]);
    for round in 0..20 {
        let mut launch = bounded(brigade());
        launch.args(["run", "-n", "8", "--"]).arg(&binary);
        expect_ranks(&run(launch.env("BRIGADE_TRANSPORT", ["shm", "tcp"][round % 2])), 8);
    }
}

#[test]
fn ranks_run_programs_with_the_library_inside() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let archive = library.lib().join("libbrigade.a");
    let extra = [archive.to_str().expect("a path in UTF-8"), "-lpthread", "-ldl", "-lm"];
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
    let binary = link(&library, "gcc", "groups.c", "plain", &[]);
    assert_eq!(run(&mut bounded(&binary)), "groups went as they should\n");
}

#[test]
fn a_system_without_threads_or_files_is_told_and_leaves_all_as_it_was() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "exhausted.c", "plain", &[]);
    for transport in ["loopback", "shm", "tcp"] {
        let mut alone = bounded(&binary);
        alone.env("BRIGADE_TRANSPORT", transport).env("BRIGADE_JOIN_TIMEOUT_MS", "5000");
        assert_eq!(run(&mut alone), "exhausted as it should be\n");
    }
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
fn a_call_that_waits_asks_whether_to_go_on() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "interrupts.c", "plain", &[]);
    for transport in ["shm", "tcp"] {
        let mut launch = bounded(brigade());
        launch.args(["run", "-n", "2", "--"]).arg(&binary);
        expect_ranks(&run(launch.env("BRIGADE_TRANSPORT", transport)), 2);
    }
}

#[test]
fn those_who_are_left_go_on_without_a_killed_rank() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "survivors.c", "plain", &[]);
    assert_eq!(run(&mut bounded(&binary)), "those who were left went on, and were as many again\n");
}

#[test]
fn a_second_loss_is_told_of_and_survived() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let binary = link(&library, "gcc", "losses.c", "plain", &[]);
    for transport in ["shm", "tcp"] {
        let mut program = bounded(&binary);
        program.env("BRIGADE_TRANSPORT", transport);
        assert_eq!(run(&mut program), "those who were left went on without both\n", "{transport}");
    }
}

#[test]
fn state_is_offloaded_and_a_full_device_says_so() {
    if !has("gcc") {
        return;
    }
    let library = Installed::get();
    let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g", "-lm"];
    let flags = if sanitizes(&library) { &flags[..] } else { &flags[3..] };
    let binary = link(&library, "gcc", "offload.c", "plain", flags);
    let folder = library.prefix.join("offloaded");
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    let said = "offloaded as it should be\n";
    assert_eq!(run(bounded(&binary).arg(&folder)), said);
    // A file system of its own, which goes with the program; only root may make one.
    let mount = "mount -t tmpfs -o size=2m none \"$1\" && exec \"$0\" \"$1\" full";
    let mut alone = Command::new("unshare");
    alone.args(["--mount", "sh", "-c", "mount -t tmpfs none \"$0\""]).arg(&folder);
    if !alone.output().is_ok_and(|output| output.status.success()) {
        println!("skipped: no file system can be mounted here");
        return;
    }
    let mut full = bounded("unshare");
    full.args(["--mount", "sh", "-c", mount]).arg(&binary).arg(&folder);
    assert_eq!(run(&mut full), said);
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
    if !sanitizes(&library) {
        println!("skipped: gcc has no sanitizers here");
        return;
    }
    for alone in ["hostile.c", "groups.c", "fuzz.c"] {
        run(&mut bounded(link(&library, "gcc", alone, "sanitized", &flags)));
    }
    for (compiler, program) in [("gcc", "works.c"), ("gcc", "windows.c"), ("g++", "gradients.cpp")]
    {
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
    for alone in ["hostile.c", "groups.c"] {
        let binary = link(&library, "gcc", alone, "valgrind", &["-g"]);
        run(bounded("valgrind").args(valgrind).arg(&binary).arg("without-fork"));
    }
    let binary = link(&library, "gcc", "collectives.c", "valgrind", &["-g"]);
    let mut launch = bounded(brigade());
    launch.args(["run", "-n", "2", "--", "valgrind"]).args(valgrind).arg(&binary);
    expect_ranks(&run(&mut launch), 2);
}

/// Whether gcc has sanitizers.
fn sanitizes(library: &Installed) -> bool {
    let probe = library.prefix.join("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").expect("a folder of ours");
    let mut command = Command::new("gcc");
    command.arg("-fsanitize=address,undefined").arg(&probe);
    command.arg("-o").arg(library.prefix.join("probe"));
    command.output().is_ok_and(|output| output.status.success())
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
