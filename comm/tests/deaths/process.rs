//! One rank as a process, and what it says.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use brigade_comm::bootstrap::UniqueId;

/// A process of this test binary. It does not outlive this value, not even when a test panics.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

/// One line of a rank.
#[derive(Debug, PartialEq)]
pub(crate) enum Said {
    /// It is in the world.
    Joined,
    /// Its call has ended with an error that names a lost rank.
    Lost {
        /// Whom it names.
        rank: usize,
        /// When the call returned.
        at: SystemTime,
        /// The error.
        text: String,
    },
    /// From now on it calls something else than the others.
    Misled(SystemTime),
    /// Its call has ended with an error that names two calls.
    Mismatch {
        /// When the call returned.
        at: SystemTime,
        /// The error.
        text: String,
    },
    /// Anything else.
    Other(String),
    /// It has ended, or the time has passed.
    Nothing,
}

impl Process {
    /// Start `test` of this binary.
    pub(crate) fn start(test: &str, variables: Vec<(&str, String)>) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("our own path"))
            .args(["--exact", test, "--ignored", "--nocapture"])
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            let ours = stdout.lines().map_while(Result::ok);
            for line in ours.filter(|line| line.starts_with("rank: ")) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Start `test` of this binary as a rank of so many that meet at the root of `id`, which may
    /// take `join_ms`.
    pub(crate) fn rank(
        test: &str,
        (rank, ranks): (usize, usize),
        id: &UniqueId,
        (transport, join_ms): (&str, u64),
        more: &[(&'static str, String)],
    ) -> Self {
        let mut variables = vec![
            ("BRIGADE_RANK", rank.to_string()),
            ("BRIGADE_WORLD_SIZE", ranks.to_string()),
            ("BRIGADE_ID", id.to_string()),
            ("BRIGADE_TRANSPORT", transport.to_owned()),
            ("BRIGADE_JOIN_TIMEOUT_MS", join_ms.to_string()),
        ];
        variables.extend_from_slice(more);
        Self::start(test, variables)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Have it read a line.
    pub(crate) fn order(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{line}").expect("it listens");
    }

    /// Stop it; it goes on when somebody says so, or ends with this value. Its threads stop one
    /// after the other, as the system lets each of them run: when this returns all have.
    pub(crate) fn stop(&self) {
        const STOP: &str = "kill -STOP $0 && for stat in /proc/$0/task/*/stat; do \
                            until grep -q ') T' $stat; do sleep 0.01; done; done";
        let mut command = Command::new("timeout");
        command.args(["20", "sh", "-c", STOP]).arg(self.child.id().to_string());
        assert!(command.status().expect("a shell").success(), "process {} goes on", self.id());
    }

    /// The next thing that it says.
    pub(crate) fn said(&self, timeout: Duration) -> Said {
        match self.line(timeout) {
            Some(line) => parse(&line).unwrap_or(Said::Other(line)),
            None => Said::Nothing,
        }
    }

    /// The next thing that it says, word for word, if it says something in time.
    pub(crate) fn line(&self, timeout: Duration) -> Option<String> {
        self.lines.recv_timeout(timeout).ok()
    }

    /// End it as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is ours and not reaped yet");
    }

    /// Wait until it ends by itself.
    pub(crate) fn end(mut self, timeout: Duration) -> ExitStatus {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.child.try_wait().expect("it is ours") {
                return status;
            }
            assert!(Instant::now() < deadline, "process {} does not end", self.child.id());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has mostly ended already; a failed test must not leave it behind, and one that is
        // stopped ends in no other way.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn parse(line: &str) -> Option<Said> {
    let words = line.strip_prefix("rank: ")?;
    let (kind, rest) = words.split_once(' ').unwrap_or((words, ""));
    let (first, text) = rest.split_once(' ').unwrap_or((rest, ""));
    match kind {
        "joined" => Some(Said::Joined),
        "misled" => Some(Said::Misled(time(first)?)),
        "mismatch" => Some(Said::Mismatch { at: time(first)?, text: text.to_owned() }),
        "lost" => {
            let (at, text) = text.split_once(' ')?;
            Some(Said::Lost { rank: first.parse().ok()?, at: time(at)?, text: text.to_owned() })
        }
        _ => None,
    }
}

fn time(ns: &str) -> Option<SystemTime> {
    Some(SystemTime::UNIX_EPOCH + Duration::from_nanos(ns.parse().ok()?))
}
