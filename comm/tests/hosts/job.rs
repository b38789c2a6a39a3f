//! A job whose ranks are processes on several hosts: this test binary, started again with a part.
//!
//! A rank tells its parent what happens by lines with the mark `> `, which tells them apart from
//! those of the test harness.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::net::Hosts;

/// What a rank is to do.
pub(crate) const PART: &str = "BRIGADE_TEST_PART";
/// On which host each rank is, for the ranks to know what to expect: `0 0 1 1`.
pub(crate) const PLACES: &str = "BRIGADE_TEST_PLACES";
/// Where the job may write files.
pub(crate) const FOLDER: &str = "BRIGADE_TEST_FOLDER";
const LIMIT: Duration = Duration::from_secs(100);

/// A running job; its processes are killed and its files removed when it is dropped.
pub(crate) struct Job {
    ranks: Vec<Rank>,
    folder: PathBuf,
}

struct Rank {
    child: Child,
    lines: Receiver<String>,
}

impl Job {
    /// Start a rank on host `places[rank]` for each rank, to play `part` with these variables set.
    pub(crate) fn start(
        hosts: &Hosts,
        places: &[usize],
        part: &str,
        settings: &[(&str, &str)],
    ) -> Self {
        static JOBS: AtomicU32 = AtomicU32::new(0);
        let number = JOBS.fetch_add(1, Ordering::Relaxed);
        let name = format!("brigade-hosts-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let mut job = Self { ranks: Vec::new(), folder };
        let words: Vec<String> = places.iter().map(usize::to_string).collect();
        for (rank, &place) in places.iter().enumerate() {
            let mut command = Command::new("ip");
            command
                .args(["netns", "exec", &hosts.names[place]])
                .arg(std::env::current_exe().unwrap())
                .args(["--exact", "rank::play_a_part", "--nocapture", "--test-threads=1"])
                .env(PART, part)
                .env(PLACES, words.join(" "))
                .env(FOLDER, &job.folder)
                .env("BRIGADE_RANK", rank.to_string())
                .env("BRIGADE_WORLD_SIZE", places.len().to_string())
                .env("BRIGADE_ID_FILE", job.folder.join("id"))
                .envs(settings.iter().copied());
            job.ranks.push(Rank::start(command));
        }
        job
    }

    /// The rest of the next line of `rank` that begins with `word`.
    pub(crate) fn hear(&self, rank: usize, word: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.ranks[rank].lines.recv_timeout(left);
            let line = line.unwrap_or_else(|end| panic!("rank {rank} says no `{word}`: {end}"));
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().into();
            }
        }
    }

    /// All ranks say `word`; what each adds to it.
    pub(crate) fn hear_all(&self, word: &str) -> Vec<String> {
        (0..self.ranks.len()).map(|rank| self.hear(rank, word)).collect()
    }

    /// What the kernel does when it kills.
    pub(crate) fn kill(&mut self, rank: usize) {
        self.ranks[rank].child.kill().unwrap();
    }

    /// Nothing is left in the job's folder.
    pub(crate) fn check_nothing_left(&self) {
        let entries: Vec<_> = fs::read_dir(&self.folder).unwrap().flatten().collect();
        assert!(entries.is_empty(), "{entries:?}");
    }
}

impl Rank {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (tell, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, line)) = line.split_once("> ")
                    && tell.send(line.to_string()).is_err()
                {
                    return;
                }
            }
        });
        Self { child, lines }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for Rank { child, .. } in &mut self.ranks {
            // It has mostly ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Tell the parent.
pub(crate) fn say(line: &str) {
    // Not `println!`, which the test harness may keep to itself.
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n> {line}").unwrap();
    out.flush().unwrap();
}
