//! `brigade offload bench` from its flags to its lines of JSON, on files that are gone afterwards.

use std::path::{Path, PathBuf};

use brigade_bench::offload::{Command, Failure, measure, run};
use clap::Parser;
use serde_json::Value;

#[derive(Parser)]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

/// A folder that is removed with everything in it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn run_with(words: &str, path: &Path) -> Result<(), Failure> {
    let path = path.display().to_string();
    let words: Vec<String> = words.split(' ').map(|word| word.replace("DIR", &path)).collect();
    let flags = [String::from("bench")].into_iter().chain(words);
    run(&Flags::try_parse_from(flags).unwrap().command)
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn storage_writes_a_line_for_each_case_and_leaves_no_file() {
    for engine in ["", " --threads"] {
        let folder = Folder::new(&format!("storage{}", engine.len()));
        let words = "storage --path DIR --bytes 8M --block 64K --tensors 64K,128K --batch 8 \
                     --turns 2 --least 1 --json DIR/out.jsonl --plot DIR/out.svg";
        run_with(&format!("{words}{engine}"), &folder.0).unwrap();
        let lines = lines(&folder.0.join("out.jsonl"));
        assert_eq!(lines.len(), 6);
        for line in &lines {
            assert!(line["gb_s"]["median"].as_f64().unwrap() > 0.0, "{line}");
            assert_eq!(line["sync_ms"].is_null(), line["op"] == "read", "{line}");
            assert!(line["us_p50"].as_f64() <= line["us_max"].as_f64(), "{line}");
        }
        let svg = std::fs::read_to_string(folder.0.join("out.svg")).unwrap();
        assert!(svg.contains("read, 8 tensors at once"), "{svg}");
        let mut names = folder.names();
        names.sort();
        assert_eq!(names, ["out.jsonl", "out.svg"]);
    }
}

#[test]
fn tensors_that_nobody_named_are_those_of_which_a_batch_fits() {
    let folder = Folder::new("fitting");
    let words = "storage --path DIR --bytes 8M --turns 1 --least 1 --json DIR/out.jsonl";
    run_with(words, &folder.0).unwrap();
    let lines = lines(&folder.0.join("out.jsonl"));
    let batches = lines.iter().filter(|line| line["pattern"] == "batch");
    let sizes: Vec<u64> = batches.map(|line| line["request_bytes"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [64 << 10, 64 << 10, 256 << 10, 256 << 10]);
    let refused = run_with("storage --path DIR --bytes 8M --tensors 1M", &folder.0).unwrap_err();
    let wanted = "--tensors 1M: 32 of them do not fit in a file of 8M; --bytes 32M is the least";
    assert!(refused.to_string().starts_with(wanted), "{refused}");
}

#[test]
fn what_makes_no_sense_is_refused_before_a_file_is_made() {
    let folder = Folder::new("refused");
    for words in [
        "storage --path DIR --block 5000",
        "storage --path DIR --block 8M",
        "storage --path DIR --bytes 1M",
        "storage --path DIR --bytes 8M --tensors 1M",
        "storage --path DIR --tensors 1000",
        "storage --path DIR --bytes 8388608G",
        "step --path DIR --params 0",
        "storage --path DIR/none",
        "step --path DIR/none --params 1K",
    ] {
        let refused = run_with(words, &folder.0);
        assert!(matches!(refused, Err(Failure::Usage(_))), "{words}: {refused:?}");
        assert_eq!(folder.names(), [""; 0], "{words}");
    }
}

#[test]
fn an_optimizer_is_measured_in_every_format() {
    let folder = Folder::new("optimizer");
    let words = "optimizer --rule adamw,sgd --params 10K --threads 1,2 --turns 2 --least 1 \
                 --json DIR/out.jsonl";
    run_with(words, &folder.0).unwrap();
    let lines = lines(&folder.0.join("out.jsonl"));
    assert_eq!(lines.len(), 12);
    let bytes = |op: &str, format: &str| {
        let mut of = lines.iter().filter(|line| line["op"] == op && line["format"] == format);
        of.next().unwrap()["bytes_per_param"].as_u64().unwrap()
    };
    assert_eq!([bytes("adamw", "f32"), bytes("adamw", "mixed")], [28, 28]);
    assert_eq!([bytes("adamw", "bf16-moments"), bytes("sgd", "f32")], [20, 20]);
    assert!(lines.iter().all(|line| line["of_limit"].as_f64().unwrap() > 0.0));
}

#[test]
fn a_step_moves_what_its_state_weighs() {
    let folder = Folder::new("step");
    for place in ["--path DIR", "--simulate 0.5/0.5"] {
        let words = "--rule adamw,lion --format mixed,bf16-moments --params 100K --turns 2 \
                     --threads 1 --json DIR/out.jsonl --plot DIR/out.svg";
        run_with(&format!("step {place} {words}"), &folder.0).unwrap();
        let lines = lines(&folder.0.join("out.jsonl"));
        assert_eq!(lines.len(), 4);
        for line in &lines {
            let width = match (line["rule"].as_str(), line["format"].as_str()) {
                (Some("adamw"), Some("mixed")) => 12,
                (Some("adamw"), _) | (_, Some("mixed")) => 8,
                _ => 6,
            };
            assert_eq!(line["read_bytes"], 100 * 1024 * width, "{line}");
            assert_eq!(line["written_bytes"], line["read_bytes"], "{line}");
            assert!(line["of_max"].as_f64().unwrap() > 0.0, "{line}");
        }
        let mut names = folder.names();
        names.sort();
        assert_eq!(names, ["out.jsonl", "out.svg"]);
    }
}

#[test]
fn a_drive_is_measured_and_nothing_is_left_of_it() {
    let folder = Folder::new("measured");
    let found = measure(&folder.0).unwrap();
    assert!(found.read > 0.0 && found.write > 0.0 && found.both > 0.0, "{found:?}");
    assert_eq!(folder.names(), [""; 0]);
    assert!(measure(&folder.0.join("nowhere")).is_err());
}

const DIRECT: &str = "direct --path DIR --bytes 8K,64K --file 1M --depth 2 --turns 2 --least 1 \
                      --json DIR/out.jsonl --plot DIR/out.svg";

#[test]
fn files_and_a_device_are_timed_both_ways_beside_each_other() {
    if !brigade_cuda_fake::has_device() || brigade_cuda_fake::is_off() {
        return;
    }
    let folder = Folder::new("direct");
    // A child of the test below has a folder to write to.
    let told = std::env::var_os("BRIGADE_TEST_FOLDER").map(PathBuf::from);
    let place = told.as_ref().unwrap_or(&folder.0);
    run_with(DIRECT, place).unwrap();
    let lines = lines(&place.join("out.jsonl"));
    let ops: Vec<_> = lines.iter().map(|line| line["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["write", "read", "write", "read"]);
    for line in &lines {
        assert!(line["pinned_gb_s"]["median"].as_f64().unwrap() > 0.0, "{line}");
        let is_direct = line["why_not"].is_null();
        assert_eq!([line["direct_gb_s"].is_null(), line["ratio"].is_null()], [!is_direct; 2]);
    }
    let mut names: Vec<String> = folder.names();
    names.sort();
    assert!(told.is_some() || names == ["out.jsonl", "out.svg"], "{names:?}");
    for words in ["--bytes 5000", "--bytes 8K --file 4K"] {
        let refused = run_with(&format!("direct --path DIR {words}"), place).unwrap_err();
        assert!(refused.to_string().starts_with("--"), "{refused}");
    }
}

#[test]
fn what_fails_on_its_way_is_not_timed_as_direct() {
    if !brigade_cuda_fake::has_device() || brigade_cuda_fake::is_off() {
        return;
    }
    let folder = Folder::new("indirect");
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "files_and_a_device_are_timed_both_ways_beside_each_other"]);
    child.env("BRIGADE_TEST_FOLDER", &folder.0);
    child.env("BRIGADE_FAKE_CUDA_FAULTS", "cuFileRead@1=5");
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let lines = lines(&folder.0.join("out.jsonl"));
    let why = |at: usize| lines[at]["why_not"].as_str().map(str::to_owned);
    if why(0).is_some() {
        return eprintln!("skipped: nothing goes past the page cache here");
    }
    assert!(why(1).unwrap().starts_with("it failed once: "), "{lines:?}");
    // The next size has files of its own, and they are fine.
    assert_eq!([why(2), why(3)], [None, None]);
}
