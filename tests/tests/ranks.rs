//! What `brigade run` owes to ranks that are programs of any kind: their last words are passed on,
//! their exit codes are told, and nobody whom they have left goes on after a world that failed.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use brigade_tests::command::{Folder, bounded, brigade, text, words};

/// `brigade run` of so many ranks of this script.
fn run(flags: &str, script: &str) -> Command {
    let mut command = bounded(brigade());
    command.arg("run").args(flags.split_whitespace()).args(["--", "sh", "-c", script]);
    command
}

/// Whether the process whose number is in this file still does anything.
fn lives(file: &Path) -> bool {
    let number = std::fs::read_to_string(file).expect("it has told its number");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", number.trim()));
    let state = |stat: &str| stat.rsplit_once(')')?.1.split_whitespace().next().map(str::to_owned);
    stat.is_ok_and(|stat| state(&stat).is_some_and(|state| state != "Z" && state != "X"))
}

#[test]
fn who_reads_slowly_gets_all_that_was_printed() {
    let mut command = bounded(brigade());
    command.args("run -n 1 --prefix -- seq 20000".split_whitespace());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    assert_eq!(printed.lines().count(), 20_000);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_program_that_a_rank_left_behind_holds_nobody_up() {
    let start = Instant::now();
    let folder = Folder::new("left-behind");
    let pid = folder.0.join("pid");
    let script = format!("sleep 60 & echo $! > {}; echo done", pid.display());
    let output = run("-n 1 --prefix", &script).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), "[0] done\n"));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    // It is what the rank wanted; the test does not.
    assert!(lives(&pid));
    let number = std::fs::read_to_string(&pid).unwrap();
    assert!(Command::new("kill").arg(number.trim()).status().unwrap().success());
}

#[test]
fn one_that_goes_on_printing_holds_nobody_up_either() {
    let start = Instant::now();
    let folder = Folder::new("left-talking");
    let pid = folder.0.join("pid");
    let talk = "while sleep 0.2; do echo more || exit; done";
    let script = format!("sh -c '{talk}' & echo $! > {}; echo done", pid.display());
    let output = run("-n 1 --prefix", &script).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("[0] done\n"), "{}", text(&output.stdout));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    let number = std::fs::read_to_string(&pid).unwrap();
    // It may have ended by itself, as nobody reads on.
    let _gone = Command::new("kill").arg(number.trim()).status().unwrap();
}

#[test]
fn nobody_outlives_a_world_that_failed() {
    let folder = Folder::new("outlive");
    let pid = folder.0.join("pid");
    // Of a rank that is told to end, and of the one that fails.
    let holds_out = format!(
        "if [ $BRIGADE_RANK = 0 ]; then while [ ! -s {pid} ]; do sleep 0.05; done; exit 3; fi; \
         sh -c 'trap \"\" TERM; echo $$ > {pid}; exec sleep 60'; true",
        pid = pid.display()
    );
    let crashes = format!("sleep 60 & echo $! > {}; kill -SEGV $$", pid.display());
    for (flags, script, code) in
        [("-n 2 --grace-s 0", &holds_out, 3), ("-n 1 --grace-s 0", &crashes, 139)]
    {
        let output = run(flags, script).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}: {}", words(&output));
        let due = Instant::now() + Duration::from_secs(5);
        while lives(&pid) {
            assert!(Instant::now() < due, "{script}: it goes on; {}", words(&output));
            std::thread::sleep(Duration::from_millis(10));
        }
        std::fs::remove_file(&pid).unwrap();
    }
}

#[test]
fn ranks_that_end_alike_are_told_of_in_one_line_and_who_was_killed_by_whom() {
    // Rank 0 ends on no signal, rank 1 fails, and all others end on the first one.
    let folder = Folder::new("alike");
    let script = "case $RANK in 0) trap '' TERM; : >set; while :; do sleep 0.1; done;; \
                  1) until [ -e set ]; do sleep 0.1; done; exit 3;; *) exec sleep 60;; esac";
    let mut command = run("-n 9 --grace-s 0", script);
    let output = command.current_dir(&folder.0).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", words(&output));
    let said = text(&output.stderr);
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("brigade: ")).collect();
    // On a busy machine they may end apart, and then in so many lines.
    let [failed, ending, others @ .., last] = &lines[..] else { panic!("four lines: {said}") };
    assert!(
        failed.starts_with("brigade: rank 1 (pid ") && failed.ends_with(" with code 3"),
        "{said}"
    );
    assert_eq!(*ending, "brigade: ending the 8 ranks that still run");
    assert!((1..7).contains(&others.len()), "{said}");
    assert!(others.iter().all(|line| line.contains("killed by signal 15 (SIGTERM)")), "{said}");
    assert!(last.starts_with("brigade: rank 0 (pid "), "{said}");
    assert!(last.ends_with(" did not end within 2 s of SIGTERM and was killed"), "{said}");
}

/// Only where somebody waits is it worth a word.
#[test]
fn a_rank_that_ends_well_before_it_has_joined_is_told_of_to_those_who_wait() {
    let brigade = brigade();
    let script = format!(
        "[ $RANK = 1 ] && exit 0; exec {} bench barrier --iters 1 --warmup 1",
        brigade.display()
    );
    let start = || {
        let mut command = run("-n 2", &script);
        let output = command.env("BRIGADE_JOIN_TIMEOUT_MS", "5000").output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = start();
    assert_eq!(code, Some(1), "{said}");
    let told = " has ended with code 0, and others still wait for all ranks to join\n";
    assert_eq!(said.matches(told).count(), 1, "{said}");
    assert!(said.contains("brigade: rank 1 (pid "), "{said}");
    let alone = run("-n 2", "[ $RANK = 1 ] && exit 0; sleep 3").output().unwrap();
    assert_eq!((alone.status.code(), text(&alone.stderr)), (Some(0), String::new()));
}

/// Its launcher knows that nobody comes in its place, so they need not wait for who may.
#[test]
fn who_waits_for_a_rank_that_was_killed_is_told_at_once() {
    let brigade = brigade();
    let script = format!(
        "[ $RANK = 2 ] && exec sleep 60; [ $RANK = 1 ] && {{ sleep 3; kill -KILL $$; }} & \
         exec {} bench barrier --iters 1 --warmup 1",
        brigade.display()
    );
    let output = run("-n 3 --grace-s 5", &script).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(128 + libc::SIGKILL), "{said}");
    let waited = said.lines().find(|line| line.contains("nobody starts another")).expect(&said);
    assert!(waited.contains("rank 1 (pid ") && waited.contains("by signal 9 (SIGKILL)"), "{said}");
    assert!(waited.contains("rank 2 of 3 never came; rank 1 (process "), "{said}");
    let (in_time, late) = said.split_once("brigade: ending the rank that still runs").expect(&said);
    assert!(in_time.contains(waited) && late.contains("rank 2 (pid "), "{said}");
}

/// However late: the root is there as long as its launcher, and does not count them as missing.
#[test]
fn who_comes_after_a_rank_has_failed_is_told_why_it_waits_in_vain() {
    let late = format!("sleep 7; exec {} bench barrier --iters 1", brigade().display());
    let script = format!("[ $RANK = 0 ] && exit 3; {late}");
    let output = run("-n 2 --grace-s 30", &script).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let told = said.lines().find(|line| line.contains("nobody starts another")).expect(&said);
    assert!(told.contains("rank 0 (pid ") && !told.contains("came"), "{said}");
}

#[test]
fn a_program_that_is_not_found_is_told_where_it_was_looked_for() {
    let folder = Folder::new("not-found");
    let start = || {
        let mut command = bounded(brigade());
        command.args(["run", "-n", "2", "--", "brigade-none"]).current_dir(&folder.0);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(127), "{}", words(&output));
        text(&output.stderr)
    };
    let said = start();
    assert!(said.ends_with("; a name without a / is looked for in PATH only\n"), "{said}");
    std::fs::write(folder.0.join("brigade-none"), "").unwrap();
    let said = start();
    assert!(said.ends_with(" in PATH only: the file in this folder is ./brigade-none\n"), "{said}");
}

/// It cannot end anybody any more, and the system ends its children only.
#[test]
fn nobody_outlives_a_launcher_that_is_killed() {
    let folder = Folder::new("orphans");
    let pid = folder.0.join("pid");
    let script = format!("sleep 60 & echo $! > {0}.new; mv {0}.new {0}; wait", pid.display());
    let mut command = Command::new(brigade());
    command.args(["run", "-n", "1", "--", "sh", "-c", &script]).stdin(Stdio::null());
    let mut launcher = command.spawn().unwrap();
    let due = Instant::now() + Duration::from_secs(20);
    while !pid.exists() && Instant::now() < due {
        std::thread::sleep(Duration::from_millis(10));
    }
    launcher.kill().and_then(|()| launcher.wait()).unwrap();
    let due = Instant::now() + Duration::from_secs(5);
    while lives(&pid) {
        assert!(Instant::now() < due, "what the rank has started goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn exit_codes_are_told_wherever_the_launcher_was_started() {
    for (script, code) in [("true", 0), ("exit 7", 7)] {
        let mut command = bounded("sh");
        let line =
            format!("trap '' CHLD; exec {} run -n 2 -- sh -c '{script}'", brigade().display());
        let output = command.args(["-c", &line]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}: {}", words(&output));
    }
}

#[test]
fn who_asks_for_an_end_again_and_again_gets_it() {
    let mut command = Command::new(brigade());
    let script = "trap '' INT; echo ready; exec sleep 60";
    command.args(["run", "-n", "1", "--", "sh", "-c", script]).stdout(Stdio::piped());
    brigade_tests::sys::with_usual_signals(&mut command);
    let mut child = command.spawn().unwrap();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    let start = Instant::now();
    let number = child.id().to_string();
    let ended = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            break Some(ended);
        }
        if start.elapsed() > Duration::from_secs(20) {
            break None;
        }
        // It may end in between.
        let _sent = Command::new("kill").args(["-INT", &number]).stderr(Stdio::null()).status();
        std::thread::sleep(Duration::from_millis(300));
    };
    if ended.is_none() {
        child.kill().and_then(|()| child.wait()).unwrap();
    }
    assert!(ended.is_some_and(|ended| !ended.success()), "it goes on and on");
}
