//! The `brigade` command told nonsense: it ends at once, with a sentence that says what to do. And
//! what it leaves when it is interrupted, and hands on to what it starts.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use brigade_tests::command::{Folder, bounded, brigade, text, words};
use brigade_tests::tidy::Tree;

/// Flags that make a training short.
const SMALL: &str = "--steps 2 --sample 0 --layers 1 --width 16 --heads 2 --context 8 --threads 1";

#[test]
fn nonsense_is_refused_once_with_a_sentence_and_without_a_panic() {
    for (line, wanted) in [
        ("train --threads 100000", "--threads: 100000 is not in 1 to 512"),
        ("train --ranks 99999 --batch 99999", "--ranks: 99999 is more than 4096"),
        ("train --text /dev/zero", "cannot read /dev/zero: it is a device or a pipe"),
        ("train --schedule /dev/zero --ranks 2", "cannot read /dev/zero: it is a device or a pipe"),
        ("train --batch 16777216 --context 20000", "a smaller --batch"),
        ("train --layers 4096 --width 65536", "a smaller --width"),
        ("train --layers 4096 --width 65536 --plan", "`brigade offload plan` counts without any"),
        ("train --offload nvme:/nonexistent --ranks 2", "mkdir -p /nonexistent"),
        ("train --offload-activations nvme:/dev/null", "there is no folder /dev/null"),
        ("train --strategy 2d --ranks 3", "4, 16 would"),
        ("train --strategy tp --ranks 3", "--heads: 3 ranks cannot share 4 heads"),
        ("train --transport loopback --ranks 2", "processes have shm, tcp and rdma"),
        ("train --stop-at 9 --steps 8", "--stop-at: 9 comes after the last of --steps 8"),
        ("train --top 0 --experts 4", "--top: 0 of 4 experts is none or too many"),
        ("train --strategy 1f1b --mesh dp=2 --ranks 2", "has no pp: a pipeline wants pp=2"),
        ("train --compress topk:5 --ranks 2", "such as topk:0.01"),
        ("train --budget 4X", "write bytes such as 8, 64K, 1.5M, 4GiB or 1T"),
        ("train --top 2", "provided:\n  --experts <EXPERTS>"),
        ("train --link 9", "provided:\n  --plan"),
        ("train --lanes 8", "provided:\n  --ordered"),
        ("train --chunks 3 --strategy 1f1b --ranks 2", "--chunks: are asked of --strategy interl"),
        ("train --gather int4 --strategy fsdp --ranks 2", "[possible values: f32, int8]"),
        ("compare --ranks 18446744073709551615", "--ranks: must be 1 to 4096"),
        ("compare --only ddp -- --bad", "refuses its flags: unexpected argument '--bad'"),
        ("compare --only ddp -- --batch 5", "refuses its flags: --batch: 4 lanes cannot share 5"),
        ("compare --only ddp --json /nonexistent/x", "cannot write /nonexistent/x"),
        ("bench all-reduce -b 17179869183G -e 17179869183G", "are available here; a smaller size"),
        ("bench all-reduce -np 0", "'0' for '--ranks <RANKS>': from 1 to 4096"),
        ("bench all-reduce --algorithm hierarchical", "hierarchical:4 for nodes of 4 ranks"),
        ("bench all-reduce --transport loopback,shm", "processes have shm, tcp and rdma"),
        ("bench all-reduce --transport auto,shm", "auto stands alone"),
        ("bench all-reduce --transport cuda,shm", "there are auto, loopback, or any of shm, "),
        ("bench all-reduce --transport shm,cuda", "cuda stands alone, and not in \"shm,cuda\""),
        ("bench all-reduce --algorithm ring --ordered", "leave one of the two out"),
        ("schedule check all-reduce -n 4 --algorithm bruck", "names those that do"),
        ("offload bench step", "provided:\n  <--path <DIR>|--simulate <READ/WRITE>>"),
        (
            "offload bench storage --path / --bytes 17179869183G --tensors 8589934591G --batch 2",
            "--bytes 17179869183G: no drive has so many",
        ),
        ("offload plan --params 1B --device 0 --host 17179869183G", "host: 18446744072635809792 "),
        (
            "offload plan --params 1B --device 0 --host 6G --path /a=1e308/1 --path /b=1e308/1e308",
            "/a read: 1e308 is no rate",
        ),
        (
            "offload plan --params 1B --device 0 --host 6G --path /proc=1/1 --path /proc/self=1/1",
            "/proc/self is on the same file system as /proc",
        ),
        ("schedule show all-reduce -n 4 --bytes 17179869183G", "at most 1048576G"),
        ("offload plan --device 0 --host 1G --params 1K --width 64", "cannot be used with"),
        ("offload plan --params 7 --device 0 --host 1G", "did you mean 7B?"),
        ("offload plan --params 7B --device 24 --host 1G", "did you mean 24G?"),
        ("offload plan --device 0 --host 1G", "provided:\n  <--params <N>|--layers <N>>"),
        ("tune barrier -n 2", "barrier has nothing to choose"),
        ("tune -n 2 --transport cuda", "rules are for memory of the host"),
        ("bench all-reduce -n 2 --keep-open", "--keep-open is for buffers on devices"),
        ("tune -n 2 --output /nonexistent/x", "cannot write /nonexistent/x"),
        ("offload bench transfers --device 4096", "offload bench: "),
        ("offload bench direct --path / --device 4096", "offload bench: "),
        ("offload bench step --simulate 1e-300/1 --params 1K", "from 0.001 to 1e6"),
        ("run -n 2 --grace-s 18446744073709551615 false", "from 0 to 86400"),
    ] {
        refuse_once(line, wanted);
    }
}

#[test]
fn what_has_no_prediction_is_refused_once() {
    for (line, wanted) in [
        ("explain all-gather-v", "all-gather-v has no choice of algorithms; these have: "),
        ("explain all-reduce --dtype f32,f16", "name one type, one operator and one root"),
        ("explain all-reduce --transport cuda", "leave --transport cuda out"),
        ("explain all-reduce -n 1", "from 2 to 256"),
        ("explain reduce --root 2", "--root 2 is no rank of 2"),
        ("schedule simulate all-reduce -n 4 --inside 5", "write microseconds and GB/s"),
        ("schedule simulate all-reduce -n 4 --inside 5,nan", "from 1e-6 to 1e9 GB/s"),
        ("schedule simulate all-reduce -n 4 --across 5,1", "provided:\n  --node-ranks"),
        ("schedule simulate all-reduce -n 4 -f 2", "7 sizes fit into a line"),
        ("schedule simulate all-reduce -n 4 -b 2K -e 1K", "no size is between"),
    ] {
        refuse_once(line, wanted);
    }
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is_started() {
    for (line, wanted) in [
        (
            "train -n 2 --checkpoint /nonexistent/x",
            "cannot write /nonexistent/x: there is no folder",
        ),
        ("train --checkpoint /dev", "cannot write /dev: is a directory"),
        (
            "train -n 2 --log /nonexistent/x",
            "cannot write /nonexistent/x: there is no folder /none",
        ),
        ("train --report /dev/null/x", "cannot write /dev/null/x: Not a directory"),
        ("train --tensorboard /dev/null/x", "cannot write /dev/null/x: not a directory"),
        ("compare --plot /nonexistent/x", "cannot write /nonexistent/x"),
        ("bench all-reduce -n 2 --json /nonexistent/x", "cannot write /nonexistent/x"),
        (
            "bench all-reduce --transport loopback --plot /nonexistent/x",
            "cannot write /nonexistent",
        ),
        ("offload bench step --simulate 1/1 --json /nonexistent/x", "cannot write /nonexistent/x"),
        (
            "offload plan --device 0 --host 1G --params 1K --json /nonexistent/x",
            "cannot write /non",
        ),
        (
            "schedule show all-reduce -n 2 --algorithm ring --svg /nonexistent/x",
            "cannot write /non",
        ),
        ("schedule show all-reduce -n 2 --algorithm ring --svg -", "cannot write -: that is stand"),
        ("bench all-reduce -n 2 --json - --plot -", "cannot write -: that is standard output for"),
        ("train -n 2 --log -", "cannot write -: that is standard output for --json only"),
    ] {
        refuse_once(line, wanted);
    }
}

#[test]
fn a_flag_that_run_does_not_have_is_told_from_a_program() {
    for line in ["run -n 2 --prefx true", "run -n 2 -- --prefx true"] {
        let output = bounded(brigade()).args(line.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(127), "{}", words(&output));
        assert!(text(&output.stderr).contains("it is no flag of this"), "{}", words(&output));
    }
}

/// A line that is refused at once, with these words.
fn refuse_once(line: &str, wanted: &str) {
    // It may have to be built first, which takes minutes.
    let mut command = bounded(brigade());
    let start = Instant::now();
    let output = command.args(line.split_whitespace()).output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{line}: {}", words(&output));
    assert_eq!(said.matches(wanted).count(), 1, "{line} must say {wanted:?} once: {said}");
    assert!(!said.contains("panicked"), "{line}: {said}");
    assert!(text(&output.stdout).is_empty(), "{line}: {}", words(&output));
    assert!(start.elapsed() < Duration::from_secs(60), "{line}: {:?}", start.elapsed());
}

#[test]
fn what_is_refused_leaves_files_as_they_were() {
    let folder = Folder::new("refused");
    let kept = folder.0.join("kept");
    let words_kept = "kept ".repeat(400);
    std::fs::write(&kept, &words_kept).unwrap();
    for (line, wanted) in [
        ("compare --only ddp --json OLD --plot NEW -- --bad", "refuses its flags"),
        ("compare --only ddp --json NEW --plot OLD -- --bad", "refuses its flags"),
        ("train --log OLD --report OLD --draw OLD --strategy 1f1b -n 2 --batch 3", "--batch"),
        (
            "train --log NEW1 --trace NEW2 --tensorboard NEW3 --checkpoint NEW --resume /none",
            "/none",
        ),
        ("train -n 2 --log OLD --trace NEW1 --checkpoint NEW --resume /none", "/none"),
        ("train --text OLD --checkpoint OLD --steps 1", ": --text reads it"),
        ("train --text OLD --log OLD --steps 1", ": --text reads it"),
        ("train --log OLD --checkpoint OLD --steps 1", "two flags name it"),
        ("bench all-reduce --json OLD --plot OLD", "two flags name it"),
        ("bench all-reduce --json OLD --plot NEW --transport loopback,shm", "processes have shm"),
        ("bench all-reduce --json NEW --plot /nonexistent/x", "cannot write /nonexistent/x"),
        ("tune -n 2 --output NEW --transport cuda", "rules are for memory"),
        ("offload bench step --simulate 1/1 --json OLD --plot /nonexistent/x", "/nonexistent/x"),
    ] {
        let paths = line.replace("OLD", &kept.display().to_string());
        let paths = paths.replace("NEW", &folder.0.join("new").display().to_string());
        let output = bounded(brigade()).args(paths.split_whitespace()).output().unwrap();
        assert!(!output.status.success() && text(&output.stdout).is_empty(), "{}", words(&output));
        assert!(text(&output.stderr).contains(wanted), "{line}: {}", words(&output));
        let names = std::fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["kept"], "{line}");
        assert_eq!(std::fs::read_to_string(&kept).unwrap(), words_kept, "{line}");
    }
}

#[test]
fn what_it_starts_has_a_queue_of_cuda_for_each_of_many_streams_unless_told_otherwise() {
    const NAME: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    for (asked, told) in [(None, "32"), (Some("4"), "4")] {
        let mut command = bounded(brigade());
        command.args(["run", "-n", "1", "--", "sh", "-c", &format!("echo queues: ${NAME}")]);
        command.env_remove(NAME).envs(asked.map(|asked| (NAME, asked)));
        let output = command.output().unwrap();
        assert!(text(&output.stdout).contains(&format!("queues: {told}")), "{}", words(&output));
    }
}

#[test]
fn bound_ranks_divide_the_cores_that_the_launcher_has() {
    const ASK: [&str; 3] = ["grep", "Cpus_allowed_list", "/proc/self/status"];
    let asked = |flags: &[&str]| {
        let mut command = bounded(brigade());
        let output = command.arg("run").args(flags).arg("--").args(ASK).output().unwrap();
        assert!(output.status.success(), "{}", words(&output));
        let said = text(&output.stdout);
        said.lines().map(|line| list(line.split_whitespace().last().unwrap())).collect::<Vec<_>>()
    };
    let all = asked(&["-n", "1"]).concat();
    assert_eq!(asked(&["-n", "1", "--bind"]).concat(), all);
    for ranks in [2, all.len(), all.len() + 1] {
        let parts = asked(&["-n", &ranks.to_string(), "--bind"]);
        let mut covered = parts.concat();
        covered.sort_unstable();
        let shared = ranks.saturating_sub(all.len());
        assert_eq!((parts.len(), covered.len()), (ranks, all.len() + shared), "{parts:?}");
        covered.dedup();
        assert_eq!(covered, all, "{parts:?}");
    }
}

/// The numbers of a list such as `0-2,5`.
fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        from.parse().unwrap()..=to.parse().unwrap()
    };
    text.split(',').flat_map(range).collect()
}

#[test]
fn a_comparison_that_is_interrupted_leaves_the_rows_that_have_ended_and_nothing_else() {
    for (name, number) in [("TERM", libc::SIGTERM), ("INT", libc::SIGINT), ("HUP", libc::SIGHUP)] {
        let folder = Folder::new(&format!("interrupted-{name}"));
        let (json, temporary) = (folder.0.join("rows.jsonl"), folder.0.join("temporary"));
        std::fs::create_dir(&temporary).unwrap();
        let mut command = bounded(brigade());
        command.args("compare --steps 2 --only ddp --ranks 2 --json".split_whitespace());
        command.arg(&json).args(["--", "--batch", "12"]).env("TMPDIR", &temporary);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let due = Instant::now() + Duration::from_secs(200);
        let rows = || std::fs::read_to_string(&json).unwrap_or_default();
        let mut is_on = || Instant::now() < due && child.try_wait().unwrap().is_none();
        while !rows().ends_with('\n') && is_on() {
            std::thread::sleep(Duration::from_millis(5));
        }
        // `timeout` passes it on, and ends as what it has started.
        let kill = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
        let status = child.wait().unwrap();
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert!(kill.unwrap().success() && status.signal() == Some(number), "{status} {errors}");
        assert!(errors.contains(&format!("stopped by SIG{name} while ddp")), "{errors}");
        let left = rows();
        let first = left.lines().next().unwrap_or_default();
        assert!(first.starts_with(r#"{"strategy":"one process""#), "{left:?} {errors}");
        let ended = format!("rows that had ended: {}", left.lines().count());
        assert!(errors.contains(&ended), "{left:?} {errors}");
        let left: Vec<_> = std::fs::read_dir(&temporary).unwrap().collect();
        assert!(left.is_empty(), "{left:?} {errors}");
    }
}

#[test]
fn a_training_that_is_killed_leaves_nothing_of_what_it_kept_in_files() {
    let folder = Folder::new("offloaded");
    let nvme = format!("nvme:{}", folder.0.display());
    let mut train = bounded(brigade());
    train.args("train --ranks 2 --batch 8 --threads 1 --strategy fsdp --quiet".split_whitespace());
    train.args(["--offload", &nvme, "--offload-activations", &nvme]).stdout(Stdio::piped());
    let mut child = train.stderr(Stdio::null()).spawn().unwrap();
    let mut step = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut step).unwrap();
    // `timeout` passes it on, and ranks end where they are.
    let kill = Command::new("kill").args(["-s", "TERM", &child.id().to_string()]).status();
    let status = child.wait().unwrap();
    assert!(kill.unwrap().success() && step.starts_with("step "), "{status}: {step:?}");
    let left: Vec<_> = std::fs::read_dir(&folder.0).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_signal_that_is_to_be_ignored_ends_no_run() {
    let script = r#"trap '' HUP; exec "$0" run -n 1 -- sh -c 'kill -s HUP "$PPID"; sleep 0.3'"#;
    let output = bounded("sh").args(["-c", script]).arg(brigade()).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
}

#[test]
fn what_takes_long_to_prove_is_told_before_it_is() {
    let line = "schedule show all-reduce -n 2048 --algorithm halving --rank 0";
    let mut command = bounded(brigade());
    command.args(line.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let is_on = child.try_wait().unwrap().is_none();
    // `timeout` passes it on.
    let ended = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    child.wait().unwrap();
    assert!(is_on && ended.success() && said.starts_with("this takes some "), "{said}");
}

/// Names of variables that sources have as literals, outside of tests.
fn variables_read() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let tree = Tree::read();
    let is_source = |path: &str| {
        // C's names begin so, too; the device of tests has variables of its own.
        let is_other =
            ["ffi/", "tests/", "transports/cuda/fake/"].iter().any(|at| path.starts_with(at));
        path.ends_with(".rs") && !is_other && !path.contains("/tests")
    };
    for file in tree.files.iter().filter(|file| is_source(&file.path)) {
        let code = file.text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for word in code.split("\"BRIGADE_").skip(1) {
            let name = word.split('"').next().unwrap_or_default();
            let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            if !name.is_empty() && name.chars().all(is_name) {
                found.insert(format!("BRIGADE_{name}"));
            }
        }
    }
    found
}

#[test]
fn the_doctor_lists_every_variable_that_is_read() {
    let read = variables_read();
    for known in ["BRIGADE_RANK", "BRIGADE_ID", "BRIGADE_TRANSPORT", "BRIGADE_NVRTC"] {
        assert!(read.contains(known), "{known} is not among {read:?}");
    }
    let mut doctor = bounded(brigade());
    doctor.args(["doctor", "--settings"]).env("BRIGADE_SECRET", "xyzzy").env("RANK", "0");
    let output = doctor.env("WORLD_SIZE", "1").output().unwrap();
    let list = text(&output.stdout);
    for name in &read {
        let is_told = list.lines().any(|line| line.split_whitespace().next() == Some(name));
        assert!(is_told, "{name} is read, but `brigade doctor --settings` does not say so: {list}");
    }
    assert!(list.contains("MASTER_ADDR") && list.contains("RANK=0"), "{list}");
    assert!(!list.contains("xyzzy"), "secrets are not shown: {list}");
    assert!(list.lines().all(|line| line.chars().count() <= 110), "{list}");
}

#[test]
fn a_trace_of_nowhere_is_found_out_before_the_first_step() {
    for flag in ["draw", "report", "trace"] {
        let mut train = bounded(brigade());
        train.arg("train").args(SMALL.split_whitespace()).args(["--strategy", "1f1b", "--batch"]);
        let output =
            train.args(["8", "--ranks", "2", &format!("--{flag}=/nonexistent/x")]).output();
        let output = output.unwrap();
        assert!(!output.status.success() && !text(&output.stdout).contains("step "), "{flag}");
        assert!(text(&output.stderr).contains("cannot write /nonexistent/x"), "{}", words(&output));
    }
}

#[test]
fn python_says_what_it_lacks_without_the_library() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3 here");
        return;
    }
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/../python/tests/loading.py");
    let output = bounded("python3").args(["-B", suite]).output().unwrap();
    assert!(output.status.success(), "{}", words(&output));
}
