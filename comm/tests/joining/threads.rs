//! Worlds of threads of one process that lack something.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use brigade_comm::{Communicator, Error, Settings};
use brigade_transports::{Caps, Port, Transport, TransportError, Unavailable, tcp};

use crate::PATIENCE;

#[test]
#[ignore = "a process of worlds with few files, here"]
fn many_threads() {
    if std::env::var("BRIGADE_TRANSPORT").is_err() {
        return;
    }
    let settings = Settings::from_env().unwrap();
    let said = Communicator::local_world(40, &settings).and_then(|world| {
        std::thread::scope(|scope| {
            let ranks = world.iter().map(|rank| scope.spawn(|| rank.barrier()));
            ranks.collect::<Vec<_>>().into_iter().try_for_each(|rank| rank.join().unwrap())
        })
    });
    match said {
        Ok(()) => println!("end: joined"),
        Err(error @ Error::Exhausted { .. }) => println!("end: exhausted: {error}"),
        Err(error) => println!("end: {error}"),
    }
}

/// What a world of forty threads comes to in a process with this limit, in the words of a shell.
fn with_files(limit: &str, transport: &str, timeout_ms: &str) -> String {
    let command = Command::new("sh")
        .args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "threads::many_threads", "--ignored", "--nocapture"])
        .env("BRIGADE_TRANSPORT", transport)
        .env("BRIGADE_JOIN_TIMEOUT_MS", timeout_ms)
        .stderr(Stdio::null())
        .output();
    let said = String::from_utf8(command.unwrap().stdout).unwrap();
    said.lines().find(|line| line.starts_with("end: ")).expect("it says how it ended").into()
}

#[test]
fn a_world_needs_more_files_than_it_may_open_at_first_and_allows_itself_more() {
    for transport in ["shm", "tcp"] {
        let said = with_files("ulimit -S -n 60", transport, "30000");
        assert_eq!(said, "end: joined", "{transport}");
    }
}

#[test]
fn a_world_that_may_not_have_the_files_it_needs_says_that_it_has_too_few() {
    for transport in ["loopback", "shm", "tcp"] {
        let said = with_files("ulimit -n 60", transport, "2000");
        assert!(said.starts_with("end: exhausted: "), "{transport}: {said}");
        assert!(said.contains("Too many open files"), "{transport}: {said}");
        assert!(said.ends_with("raise ulimit -n"), "{transport}: {said}");
        assert!(!said.contains("missing processes"), "there are no others: {transport}: {said}");
    }
}

/// TCP with so many ports.
pub(super) struct Few {
    tcp: tcp::Tcp,
    left: AtomicUsize,
}

impl Few {
    pub(super) fn ports(count: usize) -> Arc<dyn Transport> {
        let tcp = tcp::Tcp::new(tcp::Settings::default());
        Arc::new(Self { tcp, left: AtomicUsize::new(count) })
    }
}

impl Transport for Few {
    fn name(&self) -> &'static str {
        self.tcp.name()
    }

    fn probe(&self) -> Result<Caps, Unavailable> {
        self.tcp.probe()
    }

    fn sends_in_the_open(&self) -> bool {
        self.tcp.sends_in_the_open()
    }

    fn open(&self, secret: [u8; 32]) -> Result<Box<dyn Port>, TransportError> {
        match self.left.fetch_sub(1, Ordering::Relaxed) {
            0 => Err(TransportError::Refused { why: "this test has no more".into() }),
            _ => self.tcp.open(secret),
        }
    }
}

#[test]
fn ranks_of_one_process_say_at_once_what_kept_one_from_coming() {
    let settings = Settings { join_timeout: PATIENCE, ..Settings::default() };
    let begin = Instant::now();
    let error = Communicator::local_world_over(3, &settings, &[Few::ports(2)]).err().unwrap();
    let error = error.to_string();
    assert!(error.contains(" cannot come: ") && error.contains("this test has no more"), "{error}");
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
}
