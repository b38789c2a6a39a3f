//! What a user reads on standard error while ranks do not come together: processes that wait for
//! others which never come, have died, or cannot be found. One that comes in time hears nothing.
//!
//! The processes are this test binary again, at [`one_rank`].

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use brigade_comm::launch::Launch;
use brigade_comm::{Communicator, Settings};
use threads::Few;

mod secrets;
mod threads;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Nothing is told before a sixth of this, but for what hardly passes: a fifth of that.
const REPORT_MS: u64 = 3000;
const REPORT_S: f64 = 0.5;
const JOIN_TIMEOUT_MS: u64 = 2200;
/// What is told early comes seconds before anything else, then, on a busy machine too.
const SLOW: [(&str, &str); 2] =
    [("BRIGADE_REPORT_MS", "30000"), ("BRIGADE_JOIN_TIMEOUT_MS", "20000")];
const SLOW_REPORT_S: f64 = 5.0;
const SLOW_EARLY_S: f64 = 1.0;

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_rank() {
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    let joined = match std::env::var("BRIGADE_TEST_UNABLE") {
        Err(_) => Communicator::from_env(),
        Ok(_) => {
            let (launch, settings) = (Launch::discover().unwrap(), Settings::from_env().unwrap());
            Communicator::join_over(launch, settings, &[Few::ports(0)])
        }
    };
    match joined {
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
}

impl Rank {
    fn start(rank: usize, ranks: usize, variables: &[(&str, &str)]) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), rank, ranks, variables)
    }

    /// By a command that takes the words of this test binary behind its own.
    fn start_by(
        mut command: Command,
        rank: usize,
        ranks: usize,
        variables: &[(&str, &str)],
    ) -> Self {
        let others = std::env::vars_os().map(|(name, _)| name);
        // Whatever else whoever runs these tests has set would be told of, or change what they do.
        for name in others.filter(|name| name.as_encoded_bytes().starts_with(b"BRIGADE_")) {
            command.env_remove(name);
        }
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
        Self { child, lines }
    }

    /// The next line, and when it came.
    fn line(&self) -> (Instant, String) {
        self.lines.recv_timeout(PATIENCE).expect("it says something")
    }

    /// The next line that has this in it.
    fn line_with(&self, part: &str) -> (Instant, String) {
        loop {
            let (at, line) = self.line();
            if line.contains(part) {
                return (at, line);
            }
        }
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

/// A port that nobody is given who asks for any: below those, and of each test its own.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    26_000 + (std::process::id() % 200) as u16 * 20 + NEXT.fetch_add(1, Ordering::Relaxed)
}

/// How long it has waited, as it says, by its own clock: what the system and this test take to
/// start it and to hear it is not in that.
fn waited_s(line: &str) -> f64 {
    let (_, rest) = line.split_once(" has waited ").unwrap_or_else(|| panic!("{line}"));
    rest.split(' ')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{line}"))
}

/// It came early, as for ranks that are [`SLOW`] to report.
fn check_early(line: &str) {
    assert!((SLOW_EARLY_S..SLOW_REPORT_S).contains(&waited_s(line)), "{line}");
}

fn check(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
}

#[test]
fn a_world_that_comes_together_says_nothing() {
    let root = format!("127.0.0.1:{}", free_port());
    let variables = [("BRIGADE_ROOT", root.as_str()), SLOW[0], SLOW[1]];
    let ranks: Vec<_> = (0..4).map(|rank| Rank::start(rank, 4, &variables)).collect();
    for rank in ranks {
        assert_eq!(rank.all(), ["end: joined"]);
    }
}

#[test]
fn the_root_alone_names_a_rank_that_never_comes_at_growing_intervals() {
    let root = format!("127.0.0.1:{}", free_port());
    let mut ranks: Vec<_> =
        [0, 1, 3].iter().map(|&rank| Rank::start(rank, 4, &[("BRIGADE_ROOT", &root)])).collect();
    let first = ranks.remove(0).all();
    let [first, second, end] = &first[..] else { panic!("{first:?}") };
    // Others may have been late for the first, which begins with the first seat.
    let waits = format!("brigade: the root at {root} has waited ");
    check(first, &[&waits, "2", " of 4 ha", " not come; it gives up in "]);
    check(second, &[": rank 2 of 4 has not come; it gives up in "]);
    assert!(waited_s(first) >= REPORT_S && waited_s(second) >= 3.0 * REPORT_S, "{first}\n{second}");
    check(end, &["end: waited 2.", "rank 2 of 4 never came"]);
    for rank in ranks {
        // Who was there before the root may have said so; who has not come is the root's word.
        let lines = rank.all();
        let (end, before) = lines.split_last().expect("an end");
        assert!(end.starts_with("end: "), "{lines:?}");
        assert!(before.iter().all(|line| !line.contains("not come")), "{lines:?}");
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
    let patient = [("BRIGADE_ROOT", root.as_str()), ("BRIGADE_JOIN_TIMEOUT_MS", "60000")];
    let first = Rank::start(0, 3, &patient);
    let mut second = Rank::start(1, 3, &patient);
    let (_, line) = first.line_with(": rank 2 of 3 has not come; it gives up in 5");
    assert!(waited_s(&line) >= REPORT_S, "{line}");
    second.child.kill().unwrap();
    let killed = Instant::now();
    let (at, line) = first.line_with(" came and went; it gives up in 5");
    assert!(at - killed < Duration::from_secs(2), "{line}");
    check(
        &line,
        &["rank 2 of 3 has not come; ", &format!("rank 1 (process {} on ", second.child.id())],
    );
    let others = [1, 2].map(|rank| Rank::start(rank, 3, &patient));
    for rank in others.into_iter().chain([first]) {
        assert_eq!(rank.all().last().map(String::as_str), Some("end: joined"));
    }
}

#[test]
fn a_rank_that_cannot_come_tells_the_others_why_at_once_and_another_may_take_its_place() {
    let root = format!("127.0.0.1:{}", free_port());
    let patient = [("BRIGADE_ROOT", root.as_str()), ("BRIGADE_JOIN_TIMEOUT_MS", "60000")];
    let first = Rank::start(0, 3, &[&patient[..], &[SLOW[0]]].concat());
    let unable = [&patient[..], &[("BRIGADE_TEST_UNABLE", "1")]].concat();
    let ends = Rank::start(2, 3, &unable).all();
    check(&ends[ends.len() - 1], &["end: no transport can be used", "this test has no more"]);
    let (_, line) = first.line();
    assert!(waited_s(&line) < SLOW_REPORT_S, "{line}");
    let missing = ["ranks 1, 2 of 3 have not come; rank 2 on ", " cannot come: no transport"];
    check(&line, &[&missing[..], &["this test has no more; it gives up in "]].concat());
    let others = [1, 2].map(|rank| Rank::start(rank, 3, &patient));
    for rank in others.into_iter().chain([first]) {
        assert_eq!(rank.all().last().map(String::as_str), Some("end: joined"));
    }
}

#[test]
fn who_gives_up_names_the_ranks_that_could_not_come() {
    let root = format!("127.0.0.1:{}", free_port());
    let waits = Rank::start(0, 2, &[("BRIGADE_ROOT", &root)]);
    let unable = [("BRIGADE_ROOT", root.as_str()), ("BRIGADE_TEST_UNABLE", "1")];
    Rank::start(1, 2, &unable).all();
    let ends = waits.all();
    let why = ["rank 1 of 2 never came; rank 1 on ", " cannot come: no transport can be used: "];
    check(&ends[ends.len() - 1], &[&["end: waited 2."], &why[..]].concat());
}

#[test]
fn a_rank_that_finds_nobody_says_where_it_looks_and_what_it_got() {
    let root = format!("127.0.0.1:{}", free_port());
    let rank = Rank::start(1, 2, &[("BRIGADE_ROOT", &root)]);
    let (_, line) = rank.line();
    assert!(waited_s(&line) >= REPORT_S, "{line}");
    let tried = format!("for the root at {root} (at last: {root}: Connection refused");
    check(&line, &["brigade: rank 1 has waited ", &tried, "; it gives up in "]);
    let rest = rank.all();
    assert_eq!(rest.len(), 2, "{rest:?}");
    check(&rest[1], &["end: rank 1 waited 2.", &root, "Connection refused"]);
}

#[test]
fn a_name_that_is_known_leaves_what_its_address_says() {
    let root = format!("localhost:{}", free_port());
    let rank = Rank::start(1, 2, &[("BRIGADE_ROOT", &root)]);
    let lines = rank.all();
    assert_eq!(lines.len(), 3, "{lines:?}");
    lines.iter().for_each(|line| check(line, &[&root, "(os error "]));
    assert!(!lines.iter().any(|line| line.contains("name server")), "{lines:?}");
}

#[test]
fn a_misspelled_variable_is_told_where_it_may_be_why() {
    let lines = Rank::start(0, 2, &[("BRIGADE_ROTO", "127.0.0.1:1")]).all();
    check(&lines[0], &["BRIGADE_ROTO is not a setting"]);
    check(&lines[1], &["end: ", "BRIGADE_ROOT"]);
}

#[test]
fn a_name_that_nobody_knows_is_told_early_by_both_ends() {
    // A name server may take its time to say so.
    let root = [
        ("BRIGADE_ROOT", "no-such-host.invalid:29555"),
        ("BRIGADE_REPORT_MS", "12000"),
        ("BRIGADE_JOIN_TIMEOUT_MS", "6000"),
    ];
    let ranks = [0, 1].map(|rank| Rank::start(rank, 2, &root));
    for (rank, waits) in
        ranks.into_iter().zip(["for a place to listen", "for the root at no-such-host.invalid"])
    {
        let (_, line) = rank.line_with("failed to lookup address");
        check(&line, &[waits, "no-such-host.invalid:29555"]);
        let lines = rank.all();
        assert!(lines.len() <= 2, "{lines:?}");
    }
}

/// A command that goes on where only this server may be asked for names. Needs root.
fn asking(server: Ipv4Addr) -> Command {
    let mut command = Command::new("unshare");
    let mount = "file=$(mktemp) && echo nameserver \"$0\" > \"$file\" && \
                 mount --bind \"$file\" /etc/resolv.conf && rm \"$file\" && exec \"$@\"";
    command.args(["--mount", "sh", "-c", mount]).arg(server.to_string());
    command
}

#[test]
fn a_name_server_that_does_not_answer_holds_up_no_word_and_no_deadline() {
    let server = Ipv4Addr::new(127, 0, 0, 99);
    let silent = UdpSocket::bind((server, 53));
    if silent.is_err() || !asking(server).arg("true").status().is_ok_and(|it| it.success()) {
        return println!("skipped: no name server can be set here");
    }
    for (rank, waits) in [(0, "for a place to listen"), (1, "for the root at silent.example:29555")]
    {
        let mut command = asking(server);
        command.arg(std::env::current_exe().unwrap());
        let rank = Rank::start_by(command, rank, 2, &[("BRIGADE_ROOT", "silent.example:29555")]);
        let (_, line) = rank.line();
        assert!((REPORT_S..2.2).contains(&waited_s(&line)), "{line}");
        check(&line, &[waits, "silent.example:29555", "no name server has answered so far"]);
        let begin = Instant::now();
        let rest = rank.all();
        assert!(begin.elapsed() < Duration::from_secs(8), "a resolver tries for ten: {rest:?}");
        check(&rest[rest.len() - 1], &["end: ", "no name server has answered so far"]);
    }
}

#[test]
fn another_secret_is_told_early() {
    let root = format!("127.0.0.1:{}", free_port());
    let variables = [SLOW[0], SLOW[1], ("BRIGADE_ROOT", root.as_str())];
    let _root = Rank::start(0, 2, &variables);
    let stranger = [&variables[..], &[("BRIGADE_SECRET", "of another job")]].concat();
    let (_, line) = Rank::start(1, 2, &stranger).line();
    check_early(&line);
    check(&line, &["rank 1 has waited ", &root, "the root knows another secret"]);
}

#[test]
fn a_place_to_listen_that_somebody_else_has_is_told_early() {
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let root = other.local_addr().unwrap().to_string();
    let (_, line) = Rank::start(0, 2, &[SLOW[0], SLOW[1], ("BRIGADE_ROOT", &root)]).line();
    check_early(&line);
    check(&line, &["rank 0 has waited ", "for a place to listen", &root, "in use"]);
    check(&line, &[": has another process rank 0, too, or another job this port?"]);
}

#[test]
fn a_second_process_of_rank_0_suspects_it() {
    let root = format!("127.0.0.1:{}", free_port());
    let first = Rank::start(0, 2, &[("BRIGADE_ROOT", &root)]);
    first.line();
    let patient = [("BRIGADE_ROOT", root.as_str()), ("BRIGADE_JOIN_TIMEOUT_MS", "6000")];
    let second = Rank::start(0, 2, &patient);
    let ends = second.all();
    let had = ["rank 1 of 2 never came; another process had this root's place for ", " s (do sev"];
    check(&ends[ends.len() - 1], &[&["end: waited "], &had[..]].concat());
    drop(first);
    // On another host it would have a place at once.
    let root = format!("198.51.100.7:{}", free_port());
    let elsewhere = Rank::start(0, 2, &[("BRIGADE_ROOT", &root)]).all();
    let here = "; 198.51.100.7 is no address of ";
    let why = [here, ", where this root is (do several processes have rank 0?)"];
    for (line, says) in elsewhere.iter().zip(["has not come", "has not come", "never came"]) {
        check(line, &[&["rank 1 of 2 ", says], &why[..]].concat());
    }
    assert_eq!(elsewhere.len(), 3, "{elsewhere:?}");
}

#[test]
fn a_file_that_nobody_writes_is_named() {
    let name = format!("brigade-joining-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let path = path.to_str().unwrap();
    let rank = Rank::start(1, 2, &[("BRIGADE_ID_FILE", path)]);
    let (_, line) = rank.line();
    assert!(waited_s(&line) >= REPORT_S, "{line}");
    check(&line, &["rank 1 has waited ", path, "No such file"]);
}

#[test]
fn a_store_that_is_not_there_and_one_without_rank_0_are_told() {
    let store = format!("127.0.0.1:{}", free_port());
    let rank = Rank::start(1, 2, &[("BRIGADE_STORE", &store)]);
    let (_, line) = rank.line();
    assert!(waited_s(&line) >= REPORT_S, "{line}");
    check(&line, &["rank 1 has waited ", &format!("the store at {store} (at last: Conn")]);

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let server = brigade_comm::bootstrap::store::StoreServer::start(listener).unwrap();
    let store = server.address().to_string();
    let rank = Rank::start(1, 2, &[("BRIGADE_STORE", &store)]);
    let (_, line) = rank.line();
    assert!(waited_s(&line) >= REPORT_S, "{line}");
    check(&line, &["rank 1 has waited ", &format!("for rank 0 at the store at {store};")]);
    let rest = rank.all();
    check(&rest[rest.len() - 1], &["end: the store at ", "in time"]);
}
