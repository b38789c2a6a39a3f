//! What the `brigade` command exits with, as its help says: 2 where nothing came of it, 1 where it
//! failed on the way. And words that are to be clear to whoever has no terminal, no driver, or an
//! environment that contradicts itself.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use brigade_tests::command::{Folder, bounded, brigade, text, words};

/// A training of next to nothing.
const SMALL: &str = "train --steps 1 --sample 0 --layers 1 --width 16 --heads 2 --context 8 \
                     --threads 1 --quiet";

/// `brigade` told this, with these variables.
fn told(line: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = bounded(brigade());
    command.args(line.split_whitespace()).envs(variables.iter().copied());
    command.output().unwrap()
}

/// That it exits with `code` after saying so, once.
fn check(line: &str, variables: &[(&str, &str)], code: i32, wanted: &str) {
    let output = told(line, variables);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{line} {variables:?}: {}", words(&output));
    assert_eq!(said.matches(wanted).count(), 1, "{line} {variables:?}: {wanted:?} once: {said}");
    assert!(!said.contains("panicked"), "{line} {variables:?}: {said}");
}

/// Where there is a limit, an allocation beyond it would end each rank by an abort.
#[test]
fn buffers_beyond_the_limit_of_a_process_are_refused_with_a_sentence() {
    let line = "bench all-reduce -n 2 -b 1G -e 1G --iters 1";
    let script = format!("ulimit -v 1000000; exec '{}' {line}", brigade().display());
    let refused = bounded("sh").args(["-c", &script]).output().unwrap();
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("1G: the buffers of a process take 2.00 GiB or more"), "{said}");
}

#[test]
fn the_help_says_what_exit_codes_mean() {
    let output = told("--help", &[]);
    let help = text(&output.stdout);
    let (_, codes) = help.split_once("Exit codes:\n").expect("a list of them");
    let (codes, _) = codes.split_once("\n\n").expect("its end");
    for code in ["  0 ", "  1 ", "  2 ", "  126 ", "  128 "] {
        assert!(codes.contains(code), "{code}: {codes}");
    }
}

#[test]
fn help_is_as_wide_as_ever_where_columns_are_none() {
    for line in ["--help", "bench --help", "offload bench step --help"] {
        let help = |columns: &str| text(&told(line, &[("COLUMNS", columns)]).stdout);
        assert_eq!(help("0"), help(""), "{line}");
        assert_ne!(help("0"), help("60"), "{line}");
    }
}

#[test]
fn lists_without_a_word_in_them_are_refused() {
    for line in ["compare --only=", "compare --only ,", "compare --only ddp,"] {
        check(line, &[], 2, "without --only all are compared");
    }
}

#[test]
fn what_cannot_be_tuned_is_told_by_what_can() {
    for line in ["tune foo", "tune all-reduce,", "tune all-gather-v,foo"] {
        let output = told(line, &[]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", words(&output));
        assert!(said.contains("all-reduce, reduce-scatter, all-gather, broadcast"), "{said}");
        assert!(!said.contains("barrier") && !said.contains("send-recv"), "{line}: {said}");
    }
}

#[test]
fn a_driver_that_is_missing_is_the_same_to_every_command() {
    let nowhere = [("BRIGADE_CUDA_LIBRARY", "/nonexistent/libcuda.so.1")];
    for line in [
        &format!("{SMALL} --device cuda"),
        &format!("{SMALL} --device cuda -n 2"),
        &format!("run -n 2 -- {} {SMALL} --device cuda", brigade().display()),
        "bench all-reduce -n 2 --transport cuda",
        "offload bench transfers",
        "offload bench direct --path /",
    ] {
        check(line, &nowhere, 2, "unset BRIGADE_CUDA_LIBRARY, or name the driver's");
    }
}

#[test]
fn ranks_that_cannot_begin_exit_as_the_command_that_starts_them_would() {
    let alone = [("BRIGADE_RANK", "0"), ("BRIGADE_WORLD_SIZE", "1")];
    for (line, wanted) in [
        ("train --lr -1", "rank 0: --lr: must be a number above 0"),
        ("train --transport nope", "no transport is named \"nope\""),
        ("train --log /nonexistent/x", "there is no folder /nonexistent"),
        (&format!("{SMALL} --resume /nonexistent"), "rank 0: cannot read /nonexistent"),
        ("bench all-reduce --root 7", "--root 7 is no rank of 1"),
        ("bench all-reduce --transport nope", "no transport is named \"nope\""),
        ("bench all-reduce --json /nonexistent/x", "there is no folder /nonexistent"),
        ("tune barrier", "barrier has nothing to choose"),
        ("explain send-recv", "send-recv has no choice of algorithms"),
        ("tune --output /nonexistent/x", "there is no folder /nonexistent"),
        ("compare", "cannot be a rank"),
    ] {
        check(line, &alone, 2, wanted);
    }
    for line in [SMALL, "bench all-reduce -n 2", "tune -n 2", "explain barrier"] {
        for (name, value, wanted) in [
            ("BRIGADE_RANK", "-1", "BRIGADE_RANK=\"-1\" is not a whole number from 0 on"),
            ("BRIGADE_WORLD_SIZE", "many", "\"many\" is not a whole number from 0 on"),
            (
                "BRIGADE_STORE",
                "a:1",
                "the environment has BRIGADE_STORE=a:1, but BRIGADE_RANK is not set",
            ),
            ("BRIGADE_TIMEOUT_MS", "-1", "\"-1\" is not a whole number from 0 on"),
            ("BRIGADE_ORDERED", "maybe", "BRIGADE_ORDERED=\"maybe\" is not 1 or 0"),
        ] {
            check(line, &[(name, value)], 2, wanted);
        }
    }
    // They began, and waited in vain.
    let folder = Folder::new("in-vain");
    let id = folder.0.join("id").display().to_string();
    let first = [
        ("BRIGADE_RANK", "0"),
        ("BRIGADE_WORLD_SIZE", "2"),
        ("BRIGADE_JOIN_TIMEOUT_MS", "300"),
        ("BRIGADE_ID_FILE", id.as_str()),
    ];
    for line in [SMALL, "bench all-reduce", "tune", "explain barrier"] {
        check(line, &first, 1, "rank 1 of 2 never came");
    }
}

#[test]
fn what_a_run_cannot_go_on_from_is_refused_before_any_rank_starts() {
    let folder = Folder::new("resumed-from");
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.0.join(name), bytes).unwrap();
        folder.0.join(name).display().to_string()
    };
    let nothing = folder.0.join("nothing").display().to_string();
    let (empty, garbage) = (file("empty", b""), file("garbage", &[0xa5; 5000]));
    let folder = folder.0.display().to_string();
    let model = file_of_a_model(Path::new(&folder));
    for ranks in ["1", "2"] {
        for (path, flags, wanted) in [
            (&nothing, "", "brigade train: cannot read "),
            (&empty, "", "damaged, cut short or no safetensors file"),
            (&garbage, "", "damaged, cut short or no safetensors file"),
            (&folder, "", "no file of a checkpoint"),
            (&model, "", "the checkpoint has 1 behind it: ask for more"),
            (&model, "--optimizer lion", "the checkpoint has the moments of adamw"),
        ] {
            check(&format!("{SMALL} -n {ranks} --resume {path} {flags}"), &[], 2, wanted);
        }
    }
}

#[test]
fn what_cannot_be_saved_after_the_last_step_is_no_refusal() {
    let folder = Folder::new("unsound");
    let path = folder.0.join("state").display().to_string();
    for ranks in ["1", "2"] {
        let line = SMALL.replace("--steps 1", "--steps 2 --lr 1e38 --checkpoint-every 1");
        let line = format!("{line} -n {ranks} --checkpoint {path}");
        check(&line, &[], 1, "try a smaller --lr");
    }
}

/// The checkpoint of a small model after a step.
fn file_of_a_model(folder: &Path) -> String {
    let path = folder.join("model.gpt").display().to_string();
    let output = told(&format!("{SMALL} --checkpoint {path}"), &[]);
    assert!(output.status.success(), "{}", words(&output));
    path
}

#[test]
fn places_that_take_no_file_are_named_with_what_to_do() {
    let folder = Folder::new("no-files");
    let file = folder.0.join("file");
    std::fs::write(&file, "").unwrap();
    let (file, name) = (file.display(), folder.0.display());
    for (line, wanted) in [
        (format!("offload bench storage --path {file}"), "it is a file; name the folder"),
        (format!("offload bench storage --path {name} --bytes 1"), "four blocks are the least, "),
        (format!("offload bench step --path {name} --params 1024G"), "does not fit: "),
        (format!("{SMALL} --text {file}"), "a longer text, or a smaller --context"),
    ] {
        check(&line, &[], 2, wanted);
    }
    let nowhere = [("TMPDIR", "/nonexistent")];
    check("compare --only ddp --steps 2", &nowhere, 2, "TMPDIR names another place");

    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o555)).unwrap();
    let is_root = std::fs::write(folder.0.join("new"), "").is_ok();
    if is_root && !nobody().arg("--version").output().is_ok_and(|output| output.status.success()) {
        return println!("skipped: root may write anywhere, and nobody else can be asked here");
    }
    for line in [
        format!("offload bench storage --path {name}"),
        format!("{SMALL} --offload nvme:{name}"),
        format!("{SMALL} -n 2 --offload-activations nvme:{name}"),
    ] {
        let mut command = if is_root { nobody() } else { bounded(brigade()) };
        let output = command.args(line.split_whitespace()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {}", words(&output));
        let wanted = format!("no file can be made in {name}: Permission denied");
        assert_eq!(text(&output.stderr).matches(&wanted).count(), 1, "{}", words(&output));
    }
}

/// `brigade` of a user who may write nowhere that root has made.
fn nobody() -> Command {
    let mut command = bounded("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(brigade());
    command
}

#[test]
fn a_table_that_cannot_be_printed_is_no_refusal() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = bounded(brigade());
    command
        .args("compare --only ddp -n 2 --steps 2 -- --layers 1 --width 16 --context 8".split(' '));
    let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(text(&output.stderr).contains("cannot print: No space left"), "{}", words(&output));
}

#[test]
fn help_that_cannot_be_printed_is_a_failure() {
    for flag in ["--help", "--version"] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = bounded(brigade()).arg(flag).stdout(full).stderr(Stdio::piped()).output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(1), "{flag}: {}", words(&output));
        let said = text(&output.stderr);
        assert!(said.contains("cannot print: No space left"), "{flag}: {said}");
    }
}

#[test]
fn output_of_ranks_that_cannot_be_passed_on_is_a_failure() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = bounded(brigade());
    command.args("run -n 2 --prefix -- echo something".split(' ')).stdout(full);
    let output = command.stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    let said = text(&output.stderr);
    assert_eq!(said.matches("output lost: No space left").count(), 2, "{said}");
    // A rank's own failure is what it was.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = bounded(brigade());
    command.args(["run", "-n", "1", "--prefix", "--", "sh", "-c", "echo something; exit 7"]);
    let output = command.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", words(&output));
}

/// Also where it is not rank 0, as under launchers that give each rank flags of its own.
#[test]
fn flags_that_make_no_sense_are_told_by_one_of_the_ranks_that_have_them() {
    let (bench, end) = (brigade().display().to_string(), "-e 64 --iters 1");
    let bench = |flags: &str| format!("exec {bench} bench all-reduce {flags} {end}");
    let (bad, good) = (bench("--root 7"), bench(""));
    let tune = format!("exec {} tune barrier", brigade().display());
    for (line, wanted) in [
        (bad.clone(), "--root 7 is no rank of 3"),
        (format!("if [ $RANK = 1 ]; then {bad}; else {good}; fi"), "--root 7 is no rank of 3"),
        (format!("if [ $RANK = 0 ]; then {bad}; else {good}; fi"), "--root 7 is no rank of 3"),
        (
            format!("if [ $RANK = 2 ]; then {tune}; else {good}; fi"),
            "barrier has nothing to choose",
        ),
    ] {
        let mut command = bounded(brigade());
        command.args(["run", "-n", "3", "--", "sh", "-c", &line]);
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{line}: {}", words(&output));
        assert_eq!(said.matches(wanted).count(), 1, "{line}: {said}");
    }
}

/// Next to no training, with a table.
const SHORT: &str = "--steps 2 --sample 0 --layers 1 --width 16 --heads 2 --context 8 --threads 1";

#[test]
fn where_nobody_reads_on_all_end_as_by_the_signal_and_say_nothing() {
    for line in [
        "doctor --settings",
        "schedule show all-reduce -n 4",
        "offload plan --params 1B --device 0 --host 64G",
        "offload bench step --simulate 1/1 --params 1K --turns 1",
        "bench all-reduce -n 2 -e 1K --iters 1",
        "bench all-reduce -n 2 --transport loopback -e 1K --iters 1",
        "tune all-reduce -n 2 --transport loopback -b 64 -e 1K --rounds 1 --iters 2",
        "explain all-reduce -n 2 --transport loopback --bytes 64 --rounds 0",
        "run -n 2 -- yes",
        "run -n 2 --prefix -- yes",
        "--help",
        &format!("train {SHORT}"),
        &format!("train -n 2 {SHORT}"),
        &format!("train --plan {SHORT}"),
        "compare --only ddp -n 2 --steps 2 -- --layers 1 --width 16 --context 8",
    ] {
        let (status, said) = unread(line);
        assert_eq!(status, 128 + libc::SIGPIPE, "{line}: {said}");
        assert_eq!(said, "", "{line}");
    }
    // A rank whose own pipe broke, while all that it prints is read, has failed like any other.
    let output = told("run -n 1 -- sh -c kill${IFS}-PIPE${IFS}$$", &[]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + libc::SIGPIPE), "{said}");
    assert!(said.contains("(SIGPIPE)") && said.lines().count() == 1, "{said}");
}

/// `brigade` told this, with nobody behind its output: how it ended, as a shell says it, and what
/// it said.
fn unread(line: &str) -> (i32, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = bounded(brigade());
    let output = command.args(line.split_whitespace()).stdout(writer).stderr(Stdio::piped());
    let output = output.output().unwrap();
    let by_signal = output.status.signal().map(|signal| 128 + signal);
    (by_signal.or(output.status.code()).unwrap(), text(&output.stderr))
}

#[test]
fn a_file_for_the_id_that_cannot_be_used_is_refused_by_every_rank_at_once() {
    let folder = Folder::new("no-id");
    let folder = folder.0.display().to_string();
    for (path, why, ranks) in [
        (folder.as_str(), "irectory", &["0", "1"][..]),
        ("/dev/null/id", "Not a directory", &["0", "1"]),
        // Who waits for the file of another may see its folder come.
        ("/nonexistent/id", "No such file", &["0"]),
    ] {
        for rank in ranks {
            let variables =
                [("BRIGADE_RANK", *rank), ("BRIGADE_WORLD_SIZE", "2"), ("BRIGADE_ID_FILE", path)];
            for line in [SMALL, "bench all-reduce", "tune", "explain barrier"] {
                check(line, &variables, 2, &format!("the id file {path} cannot be used: "));
                check(line, &variables, 2, why);
            }
        }
    }
}

#[test]
fn variables_whose_names_are_no_text_are_unknown_as_others_are() {
    let strange = OsStr::from_bytes(b"BRIGADE_TIMEOUT\xff");
    let named = r#""BRIGADE_TIMEOUT\xFF""#;
    let mut command = bounded(brigade());
    let output = command.args(["doctor", "--settings"]).env(strange, "1").output().unwrap();
    let wanted = format!("warning: {named} is set but is not a setting");
    assert!(text(&output.stdout).contains(&wanted), "{}", words(&output));
    let mut command = bounded(brigade());
    command.args("bench all-reduce -n 2 --transport loopback -e 8 --iters 1".split(' '));
    let output = command.env(strange, "1").output().unwrap();
    let wanted = format!("{named} is not a setting of Brigade");
    assert!(text(&output.stderr).contains(&wanted), "{}", words(&output));
}

#[test]
fn the_doctor_says_that_an_environment_contradicts_itself() {
    for (variables, wanted) in [
        (&[("BRIGADE_RANK", "x")][..], "error: BRIGADE_RANK=\"x\" is not a whole number"),
        (&[("RANK", "5"), ("WORLD_SIZE", "2")], "error: torchrun says rank 5 of 2 ranks"),
        (
            &[("BRIGADE_STORE", "a:1")],
            "error: the environment has BRIGADE_STORE=a:1, but BRIGADE_RANK",
        ),
        (&[("BRIGADE_TRANSPORT", "tcp,udp")], "error: no transport is named \"udp\"; there are"),
    ] {
        for line in ["doctor", "doctor --settings"] {
            let output = told(line, variables);
            assert_eq!(output.status.code(), Some(1), "{line} {variables:?}: {}", words(&output));
            assert!(text(&output.stdout).contains(wanted), "{variables:?}: {}", words(&output));
        }
    }
    let rank = [("BRIGADE_RANK", "0"), ("BRIGADE_WORLD_SIZE", "1")];
    assert!(told("doctor --settings", &rank).status.success());
}
