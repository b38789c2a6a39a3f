//! What the `brigade` command leaves in folders when it is interrupted or killed: nothing that is
//! not whole, and what cannot be helped until the next run only.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use brigade_tests::command::{Folder, bounded, brigade, text, words};
use brigade_tests::sys;

/// A training that goes on until it is ended, and whose checkpoint takes a while to write.
const LONG: &str = "train --ranks 1 --layers 2 --width 256 --heads 2 --context 8 --batch 1 \
                    --threads 1 --sample 0 --checkpoint-every 1";

/// One that is over at once.
const SHORT: &str = "train --ranks 1 --layers 1 --width 16 --heads 2 --context 8 --batch 1 \
                     --threads 1 --sample 0";

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// `brigade` itself, not under a `timeout` that would be ended in its place.
fn told(line: &str) -> Command {
    let mut command = Command::new(brigade());
    command.args(line.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::null());
    sys::with_usual_signals(&mut command);
    command
}

/// A command at work, which a failed test does not leave behind.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> std::io::Result<Self> {
        command.spawn().map(Self)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has mostly ended already.
        let _killed = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Wait until it prints something.
fn wait_for_words(child: &mut Running) {
    let mut line = String::new();
    BufReader::new(child.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "it ended without a word");
}

/// Wait until there is what is looked for.
fn wait_until(child: &mut Running, mut is_there: impl FnMut() -> bool) {
    let due = Instant::now() + Duration::from_secs(100);
    while !is_there() {
        assert!(child.0.try_wait().unwrap().is_none(), "it has ended");
        assert!(Instant::now() < due, "it never came to that");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Whether it has a file of this folder open, with a name or without.
fn writes_in(process: u32, folder: &Path) -> bool {
    let Ok(open) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let mut files = open.filter_map(|number| std::fs::read_link(number.ok()?.path()).ok());
    files.any(|file| file.starts_with(folder))
}

/// End it by a signal, and have it end by that.
fn end(mut child: Running, name: &str, number: i32) {
    let kill = Command::new("kill").args(["-s", name, &child.0.id().to_string()]).status();
    // A pipe that nobody reads could hold it up, and one that is closed end it by another signal.
    let printed = child.0.stdout.take();
    std::thread::spawn(|| printed.map(|mut pipe| std::io::copy(&mut pipe, &mut std::io::sink())));
    let status = child.0.wait().unwrap();
    assert!(kill.unwrap().success() && status.signal() == Some(number), "SIG{name}: {status}");
}

#[test]
fn files_that_are_written_at_the_end_are_not_there_before() {
    for line in [
        "tune --transport loopback -n 2 -b 64 -e 1K --rounds 99 --iters 200 --output NEW",
        "bench all-reduce --transport loopback -n 2 -e 16M --iters 20000 --plot NEW",
        "offload bench step --simulate 1/1 --params 1M --turns 1000 --json NEW --plot NEW.svg",
        "train --steps 1000000 --layers 1 --width 16 --heads 2 --context 8 --report NEW",
    ] {
        let folder = Folder::new("not-yet");
        let new = folder.0.join("new").display().to_string();
        let mut child = Running::start(&mut told(&line.replace("NEW", &new))).unwrap();
        wait_for_words(&mut child);
        end(child, "INT", libc::SIGINT);
        assert_eq!(names(&folder.0), [""; 0], "{line}");
    }
}

#[test]
fn a_training_says_by_what_it_was_ended_once_however_many_ranks_there_are() {
    for ranks in ["1", "2"] {
        let line = SHORT.replace("--ranks 1", &format!("--steps 1000000 --ranks {ranks}"));
        let line = line.replace("--batch 1", "--batch 2");
        let mut child = Running::start(told(&line).stderr(Stdio::piped())).unwrap();
        wait_for_words(&mut child);
        let mut errors = child.0.stderr.take().unwrap();
        let kill = Command::new("kill").args(["-s", "INT", &child.0.id().to_string()]).status();
        let status = child.0.wait().unwrap();
        assert!(kill.unwrap().success());
        // A launcher ends by a code, as a shell would tell it of the signal.
        let code = status.signal().map(|signal| 128 + signal).or(status.code());
        assert_eq!(code, Some(128 + libc::SIGINT), "{ranks}: {status}");
        let said = std::io::read_to_string(&mut errors).unwrap();
        assert_eq!(said.matches("stopped by SIGINT").count(), 1, "{ranks}: {said}");
    }
}

/// A rank that this launcher has started, which also has a guard.
fn rank_of(launcher: &str) -> String {
    let list = format!("/proc/{launcher}/task/{launcher}/children");
    let children = std::fs::read_to_string(list).unwrap();
    let is_rank = |child: &&str| {
        let variables = std::fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
        text(&variables).contains("BRIGADE_RANK=")
    };
    children.split_whitespace().find(is_rank).unwrap().to_string()
}

/// What a training says that is ended by a signal to itself, or to one of its ranks, once there is
/// `file` in the folder.
fn said_by_training(flags: &str, file: Option<&str>, (name, to_rank): (&str, bool)) -> String {
    let folder = Folder::new(&format!("saved-{name}-{}", flags.len()));
    let line = SHORT.replace("--ranks 1", "--steps 1000000").replace("--batch 1", "--batch 2");
    let line = format!("{line} {}", flags.replace("NEW", &folder.0.display().to_string()));
    let mut child = Running::start(told(&line).stderr(Stdio::piped())).unwrap();
    wait_for_words(&mut child);
    let mut printed = child.0.stdout.take().unwrap();
    std::thread::spawn(move || std::io::copy(&mut printed, &mut std::io::sink()));
    if let Some(file) = file {
        wait_until(&mut child, || folder.0.join(file).exists());
    }
    let process = child.0.id().to_string();
    let to = if to_rank { rank_of(&process) } else { process };
    let mut errors = child.0.stderr.take().unwrap();
    assert!(Command::new("kill").args(["-s", name, &to]).status().unwrap().success());
    let said = std::io::read_to_string(&mut errors).unwrap();
    said.replace(&folder.0.display().to_string(), "NEW")
}

#[test]
fn a_training_that_is_ended_says_what_it_leaves_and_how_to_go_on() {
    let (every, end) = ("--checkpoint NEW/a.gpt --checkpoint-every 3", "--checkpoint NEW/a.gpt");
    for ranks in ["--ranks 1", "--ranks 2"] {
        let said = said_by_training(&format!("{ranks} {every}"), Some("a.gpt"), ("INT", false));
        let told = said.lines().find_map(|line| line.strip_prefix("brigade train: NEW/a.gpt has "));
        let told = told.unwrap_or_else(|| panic!("{ranks}: {said}"));
        let (step, rest) = told.strip_prefix("step ").unwrap().split_once(':').unwrap();
        assert!(step.parse::<usize>().unwrap() % 3 == 0, "{told}");
        assert_eq!(rest, " --resume NEW/a.gpt goes on from there");
        let said = said_by_training(&format!("{ranks} {end}"), None, ("TERM", false));
        assert!(said.contains("nothing was saved: NEW/a.gpt is written at the end;"), "{said}");
        let said = said_by_training(ranks, None, ("INT", false));
        assert!(!said.contains("saved") && said.lines().count() == 1, "{said}");
    }
    let said = said_by_training(&format!("--ranks 2 {every}"), Some("a.gpt"), ("KILL", true));
    assert!(said.contains("brigade train: NEW/a.gpt has step "), "{said}");
}

/// What takes the place of fio: it tells how long the file is that it is given, and its own number,
/// and goes on.
const FIO: &str = "#!/bin/sh
if [ \"$1\" = --version ]; then echo fio-0; exit; fi
for flag; do case $flag in --filename=*) file=${flag#*=};; esac; done
echo $(stat -L -c %s \"$file\") $$ > \"$TOLD.part\" && mv \"$TOLD.part\" \"$TOLD\"
exec sleep 30\n";

/// Interrupt a bench beside fio: nothing of it is left, and nobody.
fn interrupt_beside_fio(name: &str, number: i32) {
    let folder = Folder::new(&format!("beside-fio-{name}"));
    let at = |name: &str| folder.0.join(name);
    std::fs::write(at("fio"), FIO).unwrap();
    std::fs::set_permissions(at("fio"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(at("drive")).unwrap();
    let mut bench = told("offload bench storage --bytes 4M --block 64K --tensors 64K --least 1");
    let path = format!("{}:{}", folder.0.display(), std::env::var("PATH").unwrap());
    bench.args(["--fio", "--path"]).arg(at("drive")).env("PATH", path).env("TOLD", at("told"));
    let mut child = Running::start(&mut bench).unwrap();
    wait_until(&mut child, || at("told").exists());
    let told = std::fs::read_to_string(at("told")).unwrap();
    let (bytes, fio) = told.trim().split_once(' ').unwrap();
    assert_eq!(bytes, "4194304");
    end(child, name, number);
    assert_eq!(names(&at("drive")), [""; 0]);
    // Who has ended and was not waited for has no command any more. The pretended one ends by
    // itself, but later.
    let command = format!("/proc/{fio}/cmdline");
    let due = Instant::now() + Duration::from_secs(20);
    while std::fs::read(&command).is_ok_and(|words| !words.is_empty()) {
        assert!(Instant::now() < due, "SIG{name} has left fio, process {fio}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_bench_beside_fio_leaves_neither_file_nor_fio_when_it_is_interrupted_or_killed() {
    interrupt_beside_fio("TERM", libc::SIGTERM);
    interrupt_beside_fio("KILL", libc::SIGKILL);
}

#[test]
fn a_training_that_is_killed_while_it_writes_its_first_checkpoint_leaves_nothing_of_it() {
    let folder = Folder::new("first-checkpoint");
    let mut train = told(LONG);
    let mut child = Running::start(train.arg("--checkpoint").arg(folder.0.join("saved"))).unwrap();
    wait_for_words(&mut child);
    let process = child.0.id();
    wait_until(&mut child, || writes_in(process, &folder.0));
    end(child, "KILL", libc::SIGKILL);
    assert!(names(&folder.0).iter().all(|name| name == "saved"), "{:?}", names(&folder.0));
}

/// A training that writes a checkpoint, which has to have a name meanwhile; none where the system
/// cannot be made to want that.
fn writes_by_name(folder: &Folder) -> Option<Running> {
    let mut train = told(LONG);
    sys::without_unnamed_files(&mut train);
    let mut child = match Running::start(train.arg("--checkpoint").arg(folder.0.join("saved"))) {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: the system does not refuse its own calls: {error}");
            return None;
        }
    };
    wait_for_words(&mut child);
    wait_until(&mut child, || folder.0.join("saved.partial").exists());
    Some(child)
}

#[test]
fn where_files_need_names_a_signal_leaves_no_part_of_a_checkpoint() {
    for (name, number) in [("INT", libc::SIGINT), ("TERM", libc::SIGTERM), ("HUP", libc::SIGHUP)] {
        let folder = Folder::new(&format!("by-name-{name}"));
        let Some(child) = writes_by_name(&folder) else { return };
        end(child, name, number);
        let left = names(&folder.0);
        assert!(left.iter().all(|name| name == "saved"), "SIG{name}: {left:?}");
    }
}

#[test]
fn the_next_run_removes_what_a_killed_one_has_left_and_nothing_that_somebody_writes() {
    let folder = Folder::new("left-over");
    let (saved, left) = (folder.0.join("saved"), folder.0.join("saved.partial"));
    if let Some(child) = writes_by_name(&folder) {
        end(child, "KILL", libc::SIGKILL);
    }
    let train = |flags: &str| {
        let mut train = bounded(brigade());
        train.args(SHORT.split_whitespace()).args(flags.split_whitespace()).arg(&saved);
        train.output().unwrap()
    };
    for flags in ["--steps 2 --checkpoint", "--steps 3 --resume"] {
        // It may have been whole just before the signal came.
        std::fs::OpenOptions::new().append(true).create(true).open(&left).unwrap();
        let output = train(flags);
        assert!(output.status.success(), "{flags}: {}", words(&output));
        assert_eq!(names(&folder.0), ["saved"], "{flags}");
    }
    let writer = std::fs::File::create(&left).unwrap();
    writer.lock().unwrap();
    let output = train("--steps 3 --resume");
    assert!(output.status.success(), "{}", words(&output));
    let output = train("--steps 2 --checkpoint");
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("saved.partial"), "{}", words(&output));
    let owner = format!("process {}", std::process::id());
    assert!(said.contains(&owner) && !text(&output.stdout).contains("step "), "{said}");
    assert_eq!(names(&folder.0), ["saved", "saved.partial"]);
}
