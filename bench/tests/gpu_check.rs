//! `bench/gpu-check` itself: what it does with checks that pass, fail, hang or find no time. The
//! program that it runs is a script here; on the fake device `.ci/run` rehearses the real one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A command whose limits take long or fail when the test says so, and which starts a process in a
/// session of its own, which no signal to the command reaches.
const COMMAND: &str = r#"#!/bin/sh
case "$1 $2" in
"doctor ") echo "GPU"; [ -n "$NO_GPU" ] || echo "  device 0       Stub One, sm_90, 1 GiB" ;;
"gpu compile") echo "no compiler"; exit 69 ;;
"gpu limits")
    echo "{\"what\":\"copy on the device\",\"gb_s\":$GB_S}" >>"$4"
    setsid sleep "$LIMITS_S" & echo $! >"$CHILD"; wait
    exit "$LIMITS_STATUS" ;;
train*)
    echo "step 1/2 loss 5.0"; echo "step 2/2 loss 4.0"
    case "$*" in *"--device cuda"*) exit "${TRAIN_STATUS:-0}" ;; esac ;;
*) exit 0 ;;
esac
"#;

/// A folder as `--pack` makes it, removed with what is in it.
struct Packed(PathBuf);

impl Drop for Packed {
    fn drop(&mut self) {
        // A test that fails has more to say than this.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Packed {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("gpu-check-{name}-{}", std::process::id()));
        fs::create_dir_all(folder.join("tests")).expect("a folder");
        let packed = Self(folder);
        packed.program("brigade", COMMAND);
        packed
            .program("tests/brigade-cuda-driver", "#!/bin/sh\necho 'test result: ok. 0 passed'\n");
        packed
    }

    fn program(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
    }

    /// Run it with these arguments and `NAME=value`s in an environment with nothing else.
    fn check(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu-check");
        let mut command = Command::new(script);
        command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin");
        command.env("BRIGADE", self.0.join("brigade")).env("RECORD", &self.0);
        command.env("CHILD", self.0.join("child"));
        let usual = [("GB_S", "1"), ("LIMITS_S", "0"), ("LIMITS_STATUS", "0"), ("WITHIN", "40")];
        command.envs(usual).envs(variables.iter().copied());
        command.output().expect("the script runs")
    }

    /// The record's file with this ending.
    fn record(&self, ending: &str) -> PathBuf {
        let entries = fs::read_dir(&self.0).expect("the folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let mut paths = paths.filter(|path| path.extension().is_some_and(|is| is == ending));
        paths.next().expect("a record")
    }

    /// The record's lines for this check: its row, and its numbers.
    fn lines(&self, name: &str) -> (String, Vec<String>) {
        let read = |ending| fs::read_to_string(self.record(ending)).expect("a record");
        let (text, json) = (read("md"), read("jsonl"));
        let row = text.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let start = format!("{{\"check\":\"{name}\",");
        let numbers = json.lines().filter(|line| line.starts_with(&start)).map(From::from);
        (row.unwrap_or_default().to_owned(), numbers.collect())
    }
}

#[track_caller]
fn ends(output: &Output, status: i32, words: &str) {
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{said}{errors}");
    assert!(said.contains(words), "{said}{errors}");
}

#[test]
fn a_check_that_hangs_is_ended_and_what_it_left_no_time_for_is_done_later() {
    let packed = Packed::new("late");
    let hangs = [("LIMIT", "4"), ("LIMITS_S", "600")];
    ends(&packed.check(&["--only", "doctor,limits"], &hangs), 1, "1 failed");
    assert!(packed.lines("doctor").0.starts_with("| doctor | ok | "));
    assert!(packed.lines("limits").0.starts_with("| limits | LATE | "));
    let child = fs::read_to_string(packed.0.join("child")).expect("its number");
    let command_line = Path::new("/proc").join(child.trim()).join("cmdline");
    let alive = fs::read_to_string(command_line).unwrap_or_default();
    assert!(!alive.starts_with("sleep"), "what it started is left behind");

    // No time at all: what was found before stays, and the rest is named.
    let record = packed.record("md");
    let record = record.to_str().expect("text");
    let resume = ["--only", "doctor,limits,bench-bulk", "--resume", record];
    let hurried = packed.check(&resume, &[("WITHIN", "1")]);
    ends(&hurried, 1, "left: bench-bulk; go on with --resume");
    assert!(packed.lines("limits").0.starts_with("| limits | LATE | "));
    assert!(packed.lines("bench-bulk").0.contains("no time was left of 1 s"));

    // Later: what was right is kept, what was late is done again, what was left is done.
    let output = packed.check(&resume, &[("GB_S", "2")]);
    ends(&output, 1, "1 failed");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("doctor"), "it was done already");
    assert!(packed.lines("doctor").0.starts_with("| doctor | ok | "));
    let (row, numbers) = packed.lines("limits");
    assert!(row.contains("| ok |") && row.contains("GB/s: 2.0 |"), "{row}");
    assert_eq!(numbers, [r#"{"check":"limits","what":"copy on the device","gb_s":2}"#]);
    assert!(packed.lines("bench-bulk").0.starts_with("| bench-bulk | FAILED | "));

    // Once more: numbers of what was right stay, and stay one line.
    let resume = ["--only", "limits", "--resume", record];
    ends(&packed.check(&resume, &[("GB_S", "3")]), 1, "1 failed");
    assert_eq!(packed.lines("limits").1, numbers);
    let text = fs::read_to_string(record).expect("the record");
    assert_eq!(text.matches("## limits").count(), 1, "{text}");
}

/// Which of its tests hangs is the one thing to know of a program that had to be ended.
#[test]
fn what_a_test_program_said_before_it_hung_is_in_the_record() {
    let packed = Packed::new("said");
    packed.program(
        "tests/brigade-cuda-driver",
        "#!/bin/sh\necho 'test good ... ok'\nprintf 'test bad ... '\nsleep 600\n",
    );
    ends(&packed.check(&["--only", "wall-driver"], &[("LIMIT", "4")]), 1, "1 failed");
    assert!(packed.lines("wall-driver").0.starts_with("| wall-driver | LATE | "));
    let text = fs::read_to_string(packed.record("md")).expect("the record");
    assert!(text.contains("test good ... ok\ntest bad ..."), "{text}");
}

#[test]
fn failures_are_told_and_tests_that_did_nothing_are_failures() {
    let packed = Packed::new("failed");
    let output = packed.check(&["--only", "wall,limits"], &[("LIMITS_STATUS", "3")]);
    ends(&output, 1, "3 failed");
    // A device without a compiler of kernels is no check that cannot be had: it is what was found.
    for (name, verdict) in [
        ("limits", "FAILED"),
        ("wall-driver", "FAILED"),
        ("wall-kernels", "FAILED"),
        ("wall-processes", "skipped"),
    ] {
        let (row, _) = packed.lines(name);
        assert!(row.starts_with(&format!("| {name} | {verdict} | ")), "{row}");
    }
    assert!(packed.lines("wall-kernels").0.contains("no compiler of kernels"));
    ends(&packed.check(&["--only", "limits"], &[]), 0, "0 failed");
}

/// As `--pack` leaves it.
#[test]
fn programs_that_were_packed_are_unpacked() {
    let packed = Packed::new("packed");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&packed.0).arg("-czf").arg(packed.0.join("programs.tgz"));
    assert!(tar.args(["brigade", "tests"]).status().expect("tar runs").success());
    fs::remove_file(packed.0.join("brigade")).expect("it was there");
    fs::remove_dir_all(packed.0.join("tests")).expect("they were there");
    fs::write(packed.0.join("commit"), "1234567").expect("a file");
    ends(&packed.check(&["--only", "doctor,limits"], &[]), 0, "0 failed");
    assert!(packed.lines("limits").0.contains("| 1234567 |"));
}

/// Losses that are right are no success of a run that then ends in an error.
#[test]
fn a_training_that_fails_behind_its_losses_is_a_failure() {
    let packed = Packed::new("losses");
    ends(&packed.check(&["--only", "trainer-loss"], &[]), 0, "0 failed");
    let output = packed.check(&["--only", "trainer-loss,trainer-ranks"], &[("TRAIN_STATUS", "1")]);
    ends(&output, 1, "2 failed");
}

/// A test that fails early says why far from the end of what all say.
#[test]
fn what_a_test_said_as_it_failed_is_in_the_record_and_all_that_was_said_beside_it() {
    let packed = Packed::new("panicked");
    packed.program(
        "tests/brigade-cuda-driver",
        "#!/bin/sh\necho \"thread 'early' panicked at test.rs:7:\"\necho 'five is not six'\n\
         seq -f 'line %.0f' 300\nexit 1\n",
    );
    ends(&packed.check(&["--only", "wall-driver"], &[]), 1, "1 failed");
    let text = fs::read_to_string(packed.record("md")).expect("the record");
    assert!(text.contains("panicked at test.rs:7:\nfive is not six"), "{text}");
    assert!(text.contains("line 300") && !text.contains("line 150"), "{text}");
    let is_whole = || {
        let mut tar = Command::new("tar");
        let logs = tar.arg("-xzOf").arg(packed.record("tgz")).arg("logs/wall-driver").output();
        String::from_utf8_lossy(&logs.expect("tar runs").stdout).contains("line 150")
    };
    assert!(is_whole());
    // Also behind a call that does the rest.
    let record = packed.record("md");
    let record = record.to_str().expect("text");
    ends(&packed.check(&["--only", "doctor", "--resume", record], &[]), 1, "1 failed");
    assert!(is_whole());
}

/// Asking about the device takes a second on some machines, and the record is written often.
#[test]
fn the_record_tells_of_device_and_host_and_asks_once() {
    let packed = Packed::new("told");
    packed.program("nvidia-smi", "#!/bin/sh\necho asked >>\"$0.log\"\necho 'Stub One, 580.1'\n");
    let path = format!("{}:/usr/bin:/bin", packed.0.display());
    ends(&packed.check(&["--only", "doctor,limits"], &[("PATH", &path)]), 0, "0 failed");
    let text = fs::read_to_string(packed.record("md")).expect("the record");
    assert!(text.contains("clocks.max.memory): Stub One, 580.1.\nHost: Linux "), "{text}");
    let asked = fs::read_to_string(packed.0.join("nvidia-smi.log")).expect("it was asked");
    assert_eq!(asked, "asked\n");
}

#[test]
fn no_device_and_wrong_words_have_statuses_of_their_own() {
    let packed = Packed::new("none");
    let hurried = packed.check(&["--only", "limits"], &[("WITHIN", "1")]);
    ends(&hurried, 75, "left: limits; go on with --resume");
    ends(&packed.check(&[], &[("NO_GPU", "1")]), 69, "no GPU here");
    ends(&packed.check(&["--resume", "no-such-file.md"], &[]), 2, "is no record");
    ends(&packed.check(&["--no-such"], &[]), 2, "--rehearse LIBRARY");
    ends(&packed.check(&["--list"], &[]), 0, "bench-bulk");
}
