//! What a user reads on standard error while ranks do not come together: processes that wait for
//! others which never come, have died, or cannot be found. One that comes in time hears nothing.
//!
//! The processes are this test binary again, at [`one_rank`].

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use brigade_comm::Communicator;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nothing is told before a sixth of this, but for what hardly passes: a fifth of that.
const REPORT_MS: u64 = 3000;
const JOIN_TIMEOUT_MS: u64 = 2200;

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_rank() {
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    match Communicator::from_env() {
        Ok(comm) => {
            comm.barrier().unwrap();
            eprintln!("end: joined");
        }
        Err(error) => eprintln!("end: {error}"),
    }
}

/// A rank at work. What it says goes into a channel, each line with its time.
struct Rank {
    child: Child,
    lines: Receiver<(Instant, String)>,
    started: Instant,
}

impl Rank {
    fn start(rank: usize, ranks: usize, variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "one_rank", "--ignored", "--nocapture"])
            .env("BRIGADE_RANK", rank.to_string())
            .env("BRIGADE_WORLD_SIZE", ranks.to_string())
            .env("BRIGADE_SECRET", "of this test")
            .env("BRIGADE_REPORT_MS", REPORT_MS.to_string())
            .env("BRIGADE_JOIN_TIMEOUT_MS", JOIN_TIMEOUT_MS.to_string())
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Self { child, lines, started }
    }

    /// The next line, and after how many milliseconds it came.
    fn line(&self) -> (u128, String) {
        let (at, line) = self.lines.recv_timeout(PATIENCE).expect("it says something");
        ((at - self.started).as_millis(), line)
    }

    /// What it says until its end, which is the last line.
    fn all(mut self) -> Vec<String> {
        let lines = self.lines.iter().map(|(_, line)| line).collect();
        self.child.wait().unwrap();
        lines
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // It has mostly ended already; a failed test must not leave it behind.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// A port at which nobody listens for the moment.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

fn check(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
}

#[test]
fn a_world_that_comes_together_says_nothing() {
    let root = format!("127.0.0.1:{}", free_port());
    let ranks: Vec<_> =
        (0..4).map(|rank| Rank::start(rank, 4, &[("BRIGADE_ROOT", &root)])).collect();
    for rank in ranks {
        assert_eq!(rank.all(), ["end: joined"]);
    }
}

#[test]
fn the_root_alone_names_a_rank_that_never_comes_at_growing_intervals() {
    let root = format!("127.0.0.1:{}", free_port());
    let mut ranks: Vec<_> =
        [0, 1, 3].iter().map(|&rank| Rank::start(rank, 4, &[("BRIGADE_ROOT", &root)])).collect();
    let (first_ms, first) = ranks[0].line();
    assert!((500..1500).contains(&first_ms), "after {first_ms} ms: {first}");
    let so_far = format!("brigade: the root at {root} has waited 0.");
    check(&first, &[&so_far, ": rank 2 of 4 has not come; it gives up in 2 s"]);
    let rest = ranks.remove(0).all();
    let [second, end] = &rest[..] else { panic!("{rest:?}") };
    check(second, &["has waited 1.", ": rank 2 of 4 has not come; it gives up in 1 s"]);
    check(end, &["end: waited 2.", "rank 2 of 4 never came"]);
    for rank in ranks {
        let lines = rank.all();
        assert_eq!(lines.len(), 1, "{lines:?}");
    }
}

#[test]
fn whoever_wants_no_reports_gets_none() {
    let root = format!("127.0.0.1:{}", free_port());
    let rank = Rank::start(0, 2, &[("BRIGADE_ROOT", &root), ("BRIGADE_REPORT_MS", "600000")]);
    let lines = rank.all();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn the_end_of_a_rank_that_waits_is_told_at_once_and_another_may_take_its_place() {
    let root = format!("127.0.0.1:{}", free_port());
    let patient = [
        ("BRIGADE_ROOT", root.as_str()),
        ("BRIGADE_REPORT_MS", "120000"),
        ("BRIGADE_JOIN_TIMEOUT_MS", "60000"),
    ];
    let first = Rank::start(0, 3, &patient);
    let mut second = Rank::start(1, 3, &patient);
    // Where it has a seat, and nowhere else, it waits for an answer with a word to the root.
    std::thread::sleep(Duration::from_millis(1500));
    second.child.kill().unwrap();
    let killed = Instant::now();
    let (at, line) = first.lines.recv_timeout(PATIENCE).unwrap();
    assert!(at - killed < Duration::from_secs(2), "{line}");
    let gone = format!("rank 1 (process {} on ", second.child.id());
    check(&line, &["rank 2 of 3 has not come; ", &gone, ") came and went; it gives up in 5"]);
    let others = [1, 2].map(|rank| Rank::start(rank, 3, &patient));
    for rank in others.into_iter().chain([first]) {
        assert_eq!(rank.all(), ["end: joined"]);
    }
}

#[test]
fn a_rank_that_finds_nobody_says_where_it_looks_and_what_it_got() {
    let root = format!("127.0.0.1:{}", free_port());
    let rank = Rank::start(1, 2, &[("BRIGADE_ROOT", &root)]);
    let (after_ms, line) = rank.line();
    assert!((500..1500).contains(&after_ms), "after {after_ms} ms: {line}");
    let tried = format!("for the root at {root} (at last: {root}: Connection refused");
    check(&line, &["brigade: rank 1 has waited 0.", &tried, "; it gives up in 2 s"]);
    let rest = rank.all();
    assert_eq!(rest.len(), 2, "{rest:?}");
    check(&rest[1], &["end: rank 1 waited 2.", &root, "Connection refused"]);
}

#[test]
fn a_name_that_nobody_knows_is_told_early_by_both_ends() {
    let root = [("BRIGADE_ROOT", "no-such-host.invalid:29555")];
    for (rank, waits) in [(0, "for a place to listen"), (1, "for the root at no-such-host.invalid")]
    {
        let rank = Rank::start(rank, 2, &root);
        let (_, line) = rank.line();
        check(&line, &[waits, "no-such-host.invalid:29555", "failed to lookup address"]);
        let lines = rank.all();
        assert!(lines.len() <= 2, "{lines:?}");
    }
}

#[test]
fn another_secret_is_told_early() {
    let root = format!("127.0.0.1:{}", free_port());
    let _root = Rank::start(0, 2, &[("BRIGADE_ROOT", &root)]);
    std::thread::sleep(Duration::from_millis(300));
    let stranger =
        Rank::start(1, 2, &[("BRIGADE_ROOT", &root), ("BRIGADE_SECRET", "of another job")]);
    let (after_ms, line) = stranger.line();
    assert!(after_ms < 500, "after {after_ms} ms: {line}");
    check(&line, &["rank 1 has waited 0.", &root, "the root knows another secret"]);
}

#[test]
fn a_place_to_listen_that_somebody_else_has_is_told_early() {
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let root = other.local_addr().unwrap().to_string();
    let rank = Rank::start(0, 2, &[("BRIGADE_ROOT", &root)]);
    let (after_ms, line) = rank.line();
    assert!(after_ms < 500, "after {after_ms} ms: {line}");
    check(&line, &["rank 0 has waited 0.", "for a place to listen", &root, "in use"]);
}

#[test]
fn a_file_that_nobody_writes_is_named() {
    let name = format!("brigade-joining-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let path = path.to_str().unwrap();
    let rank = Rank::start(1, 2, &[("BRIGADE_ID_FILE", path)]);
    let (after_ms, line) = rank.line();
    assert!((500..1500).contains(&after_ms), "after {after_ms} ms: {line}");
    check(&line, &["rank 1 has waited 0.", path, "No such file"]);
}

#[test]
fn a_store_that_is_not_there_and_one_without_rank_0_are_told() {
    let store = format!("127.0.0.1:{}", free_port());
    let rank = Rank::start(1, 2, &[("BRIGADE_STORE", &store)]);
    let (after_ms, line) = rank.line();
    assert!((500..1500).contains(&after_ms), "after {after_ms} ms: {line}");
    check(&line, &["rank 1 has waited 0.", &format!("the store at {store} (at last: Conn")]);

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let server = brigade_comm::bootstrap::store::StoreServer::start(listener).unwrap();
    let store = server.address().to_string();
    let rank = Rank::start(1, 2, &[("BRIGADE_STORE", &store)]);
    let (after_ms, line) = rank.line();
    assert!((500..1500).contains(&after_ms), "after {after_ms} ms: {line}");
    check(&line, &["rank 1 has waited 0.", &format!("for rank 0 at the store at {store};")]);
    let rest = rank.all();
    check(&rest[rest.len() - 1], &["end: the store at ", "in time"]);
}
