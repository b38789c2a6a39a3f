//! Kill -9 in mid-write: a child, which is this very program, commits for as long as it is let.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use brigade_offload::layout::{Directory, Dtype, Tensor};
use brigade_offload::store::StateFile;

use crate::world::{Folder, found, real_carrier, save};

const CHILD: &str = "BRIGADE_CRASH_CHILD";
const COMMITTED: &str = "committed ";
const ROUNDS: u64 = 16;
/// Far more than a round takes; a child that hangs fails the test.
const COMMITS_MAX: u64 = 100_000;

/// The child's part: nothing, unless it is started as one.
#[test]
fn the_child_commits_until_it_is_killed() {
    let Ok(stripes) = std::env::var(CHILD) else { return };
    let paths: Vec<PathBuf> = stripes.split(':').map(PathBuf::from).collect();
    let carrier = real_carrier();
    let (mut version, mut state) = match found(&carrier, &paths) {
        Ok(found) => found,
        Err(_) => {
            let tensor = Tensor::whole("t", Dtype::U8, &[300_000]);
            let tensors = Directory::pack([tensor], 64).unwrap();
            (0, StateFile::create(&carrier, &paths, tensors, 16384).unwrap())
        }
    };
    for _ in 0..COMMITS_MAX {
        version += 1;
        save(&mut state, version).unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "{COMMITTED}{version}").and_then(|()| out.flush()).unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_the_last_commit_or_the_one_under_way() {
    let folder = Folder::new("kill");
    let paths = folder.paths(2);
    let joined: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
    let mut before = 0;
    for seed in 0..ROUNDS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::the_child_commits_until_it_is_killed", "--nocapture"])
            .env(CHILD, joined.join(":"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let version = |line: String| line.split_once(COMMITTED)?.1.parse::<u64>().ok();
        let mut last = before;
        for _ in 0..rng.usize(1..5) {
            last = lines.by_ref().find_map(version).expect("the child commits");
        }
        std::thread::sleep(Duration::from_micros(rng.u64(..4000)));
        child.kill().unwrap();
        child.wait().unwrap();
        last = lines.filter_map(version).last().unwrap_or(last);
        let (version, _) = found(&real_carrier(), &paths)
            .unwrap_or_else(|error| panic!("seed {seed}, after {last}: {error}"));
        assert!((last..=last + 1).contains(&version), "seed {seed}: {version} after {last}");
        before = version;
    }
    assert!(before >= ROUNDS, "{before} commits in all");
}
