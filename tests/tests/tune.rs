//! `brigade tune`, and the rules that it writes: what becomes of them where they are not what they
//! should be, or cannot be written.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use brigade_tests::command::{Folder, bounded, brigade, text, words};

/// Flags that make a tuning short, of as many rounds as it takes to write rules.
const SHORT: &str = "tune all-reduce -b 64 -e 1K --rounds 7 --iters 2";

/// `brigade` told this.
fn told(line: &str) -> Command {
    let mut command = bounded(brigade());
    command.args(line.split_whitespace());
    command
}

#[test]
fn rules_that_were_tuned_are_what_calls_go_by() {
    let folder = Folder::new("tuned");
    let rules = folder.0.join("rules");
    let flags = "tune all-reduce,gather -n 3 --transport shm -b 64 -e 64K --rounds 7 --iters 3";
    let tuned = told(flags).arg("--output").arg(&rules).output().unwrap();
    assert!(tuned.status.success(), "{}", words(&tuned));
    let text_of_rules = std::fs::read_to_string(&rules).unwrap();
    let rule = |collective: &str| text_of_rules.lines().any(|line| line.starts_with(collective));
    assert!(rule("all-reduce") && rule("gather"), "{text_of_rules}");

    // Not what would be chosen otherwise.
    std::fs::write(&rules, "all-reduce 3 1024 ring\nall-reduce 3 * server:2\n").unwrap();
    let bench = |line: &str| told(line).env("BRIGADE_TUNING", &rules).output().unwrap();
    let sizes = "bench all-reduce -n 3 --transport shm -b 1K -e 4K --iters 1 --check --json -";
    let output = bench(sizes);
    assert!(output.status.success(), "{}", words(&output));
    let algorithms: Vec<bool> =
        text(&output.stdout).lines().map(|line| line.contains("\"algorithm\":\"ring\"")).collect();
    assert_eq!(algorithms, [true, true, false, false], "{}", words(&output));
    assert_eq!(text(&output.stdout).matches("\"algorithm\":\"server:2\"").count(), 2);

    std::fs::write(&rules, "all-reduce 3 1024 rong\n").unwrap();
    let output = bench(sizes);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("BRIGADE_TUNING=") && said.contains("line 1: "), "{said}");
}

#[test]
fn what_is_being_timed_is_told_before_it_has_been() {
    let mut tune = told("tune all-gather -n 2 --transport shm -e 16M --rounds 99");
    let mut tune = tune.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(tune.stdout.take().unwrap()).lines();
    let told: Vec<String> = lines.take(6).map(Result::unwrap).collect();
    assert!(told.contains(&"# all-gather".into()) && told[5].contains("fastest"), "{told:?}");
    // Asked to, it ends its ranks before itself.
    assert!(Command::new("kill").arg(tune.id().to_string()).status().unwrap().success());
    tune.wait().unwrap();
}

/// Whoever interrupts a tuning has the rules of what was tuned by then, and was told so.
#[test]
fn rules_of_what_is_done_are_kept_before_all_is() {
    let folder = Folder::new("rules-so-far");
    let rules = folder.0.join("rules");
    let flags = "tune all-reduce,all-gather -n 2 --transport loopback -b 256K -e 256K --rounds 99";
    let mut tune = told(flags);
    tune.args(["--iters", "2", "--output"]).arg(&rules);
    let mut tune = tune.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(tune.stdout.take().unwrap()).lines().map(Result::unwrap);
    let said = format!("# {} has the rules so far", rules.display());
    let mut lines = lines.inspect(|line| assert!(!line.contains("BRIGADE_TUNING="), "{line}"));
    assert!(lines.any(|line| line == said));
    let so_far = std::fs::read_to_string(&rules).unwrap();
    assert!(so_far.contains("# not tuned yet: all-gather\n"), "{so_far}");
    assert!(Command::new("kill").arg(tune.id().to_string()).status().unwrap().success());
    tune.wait().unwrap();
    assert!(bench_by(&rules).status.success(), "they are rules");
}

/// What a bench of two threads says of a file of rules.
fn bench_by(rules: impl AsRef<OsStr>) -> Output {
    let mut bench = told("bench all-reduce -n 2 --transport loopback -e 64 --iters 1");
    bench.env("BRIGADE_TUNING", rules).output().unwrap()
}

#[test]
fn rules_for_other_numbers_of_ranks_are_told_once() {
    let folder = Folder::new("other-rules");
    let rules = folder.0.join("rules");
    std::fs::write(&rules, "all-reduce 3 * ring\n").unwrap();
    let bench = bench_by(&rules);
    let said = text(&bench.stderr);
    assert_eq!(bench.status.code(), Some(0), "{said}");
    assert_eq!(said.matches("has rules for 3 ranks, none for 2").count(), 1, "{said}");
}

#[test]
fn what_is_no_file_of_rules_is_refused_at_once_with_a_sentence() {
    let folder = Folder::new("no-rules");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let pipe = folder.0.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let all = [
        (pipe, "it is no file"),
        (folder.0.clone(), "it is no file"),
        ("/dev/zero".into(), "it is no file"),
        (folder.0.join("nothing"), "No such file"),
        (folder.0.join(OsStr::from_bytes(b"\xff")), "No such file"),
        (file("long", "# much\n".repeat(200_000).as_bytes()), "more than 1048576 bytes"),
        (file("binary", &[0x7f, b'E', b'L', b'F', 0xff]), "it is no text"),
        (file("zeros", &[0; 5000]), "line 1: "),
        (file("cut", b"all-reduce 2 64 ring\nall-reduce 2 10"), "line 2: "),
        (file("twice", b"all-reduce 2 64 ring\nall-reduce 2 64 ring"), "line 2: an earlier rule"),
        (file("few", b"all-reduce 2 * hierarchical:2"), "cannot do all-reduce among 2 ranks"),
        (file("none", b"all-reduce 2 * server:0"), "cannot do all-reduce among 2 ranks"),
    ];
    for (path, wanted) in all {
        let start = Instant::now();
        let output = bench_by(&path);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{path:?}: {}", words(&output));
        assert_eq!(said.matches("BRIGADE_TUNING=").count(), 1, "{path:?}: {said}");
        assert!(said.contains(wanted) && said.len() < 700, "{path:?}: {said}");
        assert!(start.elapsed() < Duration::from_secs(60), "{path:?}: {:?}", start.elapsed());
    }
    let ours = bench_by(file("mended", b"# ours\r\n\tall-reduce\t2 * ring\r\n"));
    assert!(ours.status.success(), "{}", words(&ours));
}

#[test]
fn rules_stay_until_there_are_others() {
    let folder = Folder::new("kept-rules");
    let rules = folder.0.join("rules");
    std::fs::write(&rules, "all-reduce 2 * ring\n").unwrap();
    let mut tune = told(SHORT);
    tune.args(["-n", "2", "--transport", "loopback", "--output"]).arg(&rules);
    // The table cannot be printed.
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = tune.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(text(&output.stderr).contains("cannot write the table"), "{}", words(&output));
    assert_eq!(std::fs::read_to_string(&rules).unwrap(), "all-reduce 2 * ring\n");
}

#[test]
fn rules_that_cannot_be_written_are_told_of_before_the_work_also_under_a_launcher() {
    let folder = Folder::new("unwritable-rules");
    let nowhere = folder.0.join("nothing/rules");
    let mut run = told("run -n 2 --");
    run.arg(brigade()).args(SHORT.split(' ')).args(["--transport", "shm", "--output"]);
    let output = run.arg(&nowhere).output().unwrap();
    assert!(!output.status.success(), "{}", words(&output));
    let said = text(&output.stderr);
    let wanted = format!("cannot write {}", nowhere.display());
    assert_eq!(said.matches(&wanted).count(), 1, "{said}");
    assert!(!text(&output.stdout).contains("without rules"), "{}", words(&output));

    // What was measured has been said by then.
    let full = told(SHORT).args("-n 2 --transport loopback --output /dev/full".split(' ')).output();
    let full = full.unwrap();
    assert_eq!(full.status.code(), Some(1), "{}", words(&full));
    assert!(text(&full.stderr).contains("cannot write /dev/full"), "{}", words(&full));
    assert!(text(&full.stdout).contains("without rules"), "{}", words(&full));
}

#[test]
fn what_rounds_do_not_prove_is_marked_and_stays_as_it_is_without_rules() {
    let folder = Folder::new("unsure-rules");
    let rules = folder.0.join("rules");
    let flags = "tune all-reduce -n 3 --transport loopback -b 64 -e 16K --iters 3";
    let few = told(flags).args(["--rounds", "6"]).output().unwrap();
    assert!(few.status.success(), "{}", words(&few));
    let table = text(&few.stdout);
    let said = marked_are_told(&table);
    assert_eq!(table.contains("no number of 6 is enough"), said.is_some(), "{table}");

    let output = told(flags).args(["--rounds", "7", "--output"]).arg(&rules).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let table = text(&output.stdout);
    let said = marked_are_told(&table);
    // Columns: what is chosen without rules, and what seems to be the fastest.
    let choice = |row: &str| {
        let column = if row.ends_with('?') { 1 } else { 3 };
        row.split_whitespace().nth(column).map(String::from)
    };
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let mut choices: Vec<String> = rows.filter_map(choice).collect();
    choices.dedup();
    let written = std::fs::read_to_string(&rules).unwrap();
    assert!(said.is_none_or(|said| written.contains(said)), "{written}");
    let kept = written.lines().filter(|line| !line.starts_with('#'));
    let kept: Vec<_> = kept.filter_map(|rule| rule.split_whitespace().nth(3)).collect();
    assert_eq!(kept, choices, "{table}{written}");
}

/// The line behind a table that names the sizes of marked rows, if there are any.
fn marked_are_told(table: &str) -> Option<&str> {
    let marked: Vec<&str> = table.lines().filter(|line| line.ends_with('?')).collect();
    let sizes: Vec<&str> = marked.iter().filter_map(|row| row.split_whitespace().next()).collect();
    let said = table.lines().find(|line| line.starts_with("# ? "));
    let wanted = format!("# ? all-reduce at {}:", sizes.join(", "));
    assert_eq!(said.is_some(), !marked.is_empty(), "{table}");
    assert!(said.is_none_or(|said| said == wanted), "{table}");
    said
}

#[test]
fn rounds_that_prove_nothing_leave_the_rules_that_there_are() {
    let folder = Folder::new("unproved-rules");
    let rules = folder.0.join("rules");
    std::fs::write(&rules, "all-reduce 2 * ring\n").unwrap();
    let mut tune = told("tune all-reduce -n 2 --transport loopback --rounds 6 --output");
    let output = tune.arg(&rules).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", words(&output));
    let said = text(&output.stderr);
    assert!(said.contains("no number of 6 rounds proves a rule"), "{said}");
    assert_eq!(std::fs::read_to_string(&rules).unwrap(), "all-reduce 2 * ring\n");
}

#[test]
fn what_is_chosen_without_rules_is_told_also_where_calls_are_ordered() {
    let mut tune = told(SHORT);
    tune.args("-n 3 --transport loopback".split(' ')).env("BRIGADE_ORDERED", "1");
    let output = tune.output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
    let table = text(&output.stdout);
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    let usual: Vec<&str> = rows.filter_map(|row| row.split_whitespace().nth(1)).collect();
    assert_eq!(usual, ["doubling"; 3], "{table}");
}

#[test]
fn a_rank_alone_and_a_collective_named_twice_have_rules_that_are_read() {
    let folder = Folder::new("odd-rules");
    let rules = folder.0.join("rules");
    let twice = "tune gather,all-reduce,gather -b 0 -e 64 --rounds 7 --iters 1";
    for ranks in ["1", "2"] {
        let mut run = told("run -n");
        run.args([ranks, "--"]).arg(brigade()).args(twice.split(' ')).arg("--output").arg(&rules);
        let output = run.output().unwrap();
        assert!(output.status.success(), "{}", words(&output));
        let written = std::fs::read_to_string(&rules).unwrap();
        assert!(written.contains(&format!("gather          {ranks} ")), "{written}");
        let bench = bench_by(&rules);
        assert!(bench.status.success(), "{written}: {}", words(&bench));
    }
}
