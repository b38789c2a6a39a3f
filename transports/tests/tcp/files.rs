//! A listener whose process has opened all files that it may: this test binary, started again under
//! a shell's limit.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use brigade_transports::tcp::{Settings, Tcp};
use brigade_transports::{Group, Transport};
use socket2::{Domain, Socket, Type};

use crate::streams::free_ports;

const PORT: &str = "BRIGADE_TEST_TCP_FILES_PORT";
const SECRET: [u8; 32] = [5; 32];
const PATIENCE: Duration = Duration::from_secs(20);

/// A running listener; killed when dropped.
struct Crowded {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    port: u16,
    card: Vec<u8>,
}

impl Crowded {
    /// Under a limit of files, in the words of a shell.
    fn start(limit: &str) -> Self {
        let port = *free_ports(1).start();
        let mut child = Command::new("sh")
            .args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "files::listen", "--nocapture", "--test-threads=1"])
            .env(PORT, port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut crowded = Self { child, stdin, stdout, port, card: Vec::new() };
        let card = crowded.hear();
        let byte = |at| u8::from_str_radix(&card[at..at + 2], 16).unwrap();
        crowded.card = (0..card.len()).step_by(2).map(byte).collect();
        crowded
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        while !line.starts_with("> ") {
            line.clear();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "it has ended");
        }
        line[2..].trim().into()
    }

    /// Have it keep open all files that it may but so many.
    fn leave(&mut self, files: usize) {
        writeln!(self.stdin, "{files}").unwrap();
        assert_eq!(self.hear(), "done");
    }

    /// How long it has worked so far.
    fn worked(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let ticks = fields.split_ascii_whitespace().skip(11).take(2);
        // A tick is a hundredth of a second on all that Linux runs on.
        ticks.map(|ticks| Duration::from_millis(10) * ticks.parse::<u32>().unwrap()).sum()
    }

    /// Have a wire to it.
    fn dial(&self) {
        let own = Tcp::new(Settings::default()).open(SECRET).unwrap();
        let card = own.card();
        let cards = [Some(&card[..]), Some(&self.card[..])];
        let deadline = Instant::now() + PATIENCE;
        let mut endpoint = own.join(&Group { id: 1, me: 0, cards: &cards, deadline }).unwrap();
        let mut wire = endpoint.sender(1, deadline).expect("it takes the call");
        assert_eq!(wire.push(&[1; 64]), Ok(64));
    }
}

impl Drop for Crowded {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The child's side. Without a port this is an empty test.
#[test]
fn listen() {
    let Ok(port) = std::env::var(PORT) else { return };
    let port = port.parse().unwrap();
    let tcp = Tcp::new(Settings { ports: Some(port..=port), ..Settings::default() });
    let listening = tcp.open(SECRET).unwrap();
    let card: String = listening.card().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\n> {card}");
    let mut files: Vec<File> = Vec::new();
    for line in std::io::stdin().lines() {
        let spare: usize = line.unwrap().parse().unwrap();
        files.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        files.truncate(files.len() - spare);
        println!("\n> done");
    }
}

#[test]
fn the_limit_is_raised_wherever_in_taking_a_call_it_is_reached() {
    for spare in 0..3 {
        let mut crowded = Crowded::start("ulimit -S -n 40");
        crowded.leave(spare);
        crowded.dial();
    }
}

#[test]
fn a_limit_that_cannot_be_raised_leaves_the_processor_to_others_until_a_file_is_closed() {
    let mut crowded = Crowded::start("ulimit -n 40");
    crowded.leave(0);
    let waiting = TcpStream::connect((Ipv4Addr::LOCALHOST, crowded.port)).unwrap();
    let before = crowded.worked();
    std::thread::sleep(Duration::from_millis(500));
    let worked = crowded.worked() - before;
    assert!(worked < Duration::from_millis(50), "{worked:?} of half a second");
    crowded.leave(8);
    crowded.dial();
    drop(waiting);
}

const DEAF: &str = "BRIGADE_TEST_TCP_DEAF";

/// A rank that waits for its peer while its listener cannot wait for callers any more: alone in its
/// process, as no other test shall have so few files. Without the variable this is an empty test.
#[test]
fn wait_behind_a_listener_that_fails() {
    if std::env::var(DEAF).is_err() {
        return;
    }
    let port = *free_ports(1).start();
    let settings = Settings { ports: Some(port..=port), ..Settings::default() };
    let [own, peer] = [settings, Settings::default()].map(|it| Tcp::new(it).open(SECRET).unwrap());
    let cards = [own.card(), peer.card()];
    let cards = [Some(&cards[0][..]), Some(&cards[1][..])];
    let deadline = Instant::now() + PATIENCE;
    let mut endpoint = own.join(&Group { id: 1, me: 0, cards: &cards, deadline }).unwrap();
    let mut wire = endpoint.receiver(1).unwrap();
    let caller = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let id = std::process::id().to_string();
    let limited = Command::new("prlimit").args(["--nofile=1:1", "--pid", &id]).status();
    assert!(limited.expect("util-linux is installed").success());
    assert_eq!(endpoint.check(), Ok(()), "it sleeps");
    // It wakes, has no file for who calls, and goes to sleep again.
    caller.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()).unwrap();
    while let (Ok(()), true) = (endpoint.check(), Instant::now() < deadline) {
        assert_eq!(wire.pull_into(&mut [0; 8]), Ok(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("end: {}", endpoint.check().expect_err("nobody can call any more"));
}

#[test]
fn who_waits_for_a_peer_hears_that_the_listener_has_failed() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "files::wait_behind_a_listener_that_fails", "--nocapture"]);
    let output = command.env(DEAF, "1").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("end: poll failed (Invalid argument"), "{said}");
    assert!(said.contains("listening for peers"), "{said}");
}
