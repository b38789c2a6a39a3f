//! A rank that waits for a wire to a process that is stopped hears what every other wait hears.
//!
//! The kernel of a stopped process takes the call for a wire, and nobody answers it. The processes
//! are this test binary again, at [`one_rank`], which does what its standard input says.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::{Root, UniqueId};
use brigade_comm::{Communicator, interrupt_by};

const RANKS: usize = 3;
/// How long anything may take that is not measured.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a rank may take to hear that it waits in vain.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// How long the wire may take to stand: long beyond that.
const WIRE_MS: u64 = 15_000;

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_rank() {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if line == "interrupt" {
                INTERRUPTED.store(true, Ordering::Relaxed);
            }
            let _for_nobody = sender.send(line);
        }
    });
    let comm = Communicator::from_env().expect("a world");
    interrupt_by(Some(Box::new(|| INTERRUPTED.load(Ordering::Relaxed))));
    println!("\nrank: joined");
    while let Ok(order) = orders.recv() {
        match &order[..] {
            "send" => {
                let outcome = comm.messages().send(&[7u8; 8], 1).run();
                println!("\nrank: {outcome:?}");
            }
            "abort" => comm.abort("somebody has had enough"),
            _ => {}
        }
    }
}

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(rank: usize, id: &UniqueId) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("our own path"))
            .args(["--exact", "one_rank", "--ignored", "--nocapture"])
            .env("BRIGADE_RANK", rank.to_string())
            .env("BRIGADE_WORLD_SIZE", RANKS.to_string())
            .env("BRIGADE_ID", id.to_string())
            .env("BRIGADE_TRANSPORT", "tcp")
            .env("BRIGADE_JOIN_TIMEOUT_MS", WIRE_MS.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
        std::thread::spawn(move || {
            let said = stdout.lines().map_while(Result::ok);
            let said = said.filter_map(|line| Some(line.strip_prefix("rank: ")?.to_owned()));
            said.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        Self { child, lines }
    }

    fn order(&mut self, order: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{order}").expect("it listens");
    }

    fn line(&self, timeout: Duration) -> Option<String> {
        self.lines.recv_timeout(timeout).ok()
    }

    fn stop(&self) {
        let stop = format!("kill -STOP {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &stop]).status().expect("a shell").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A stopped one ends in no other way.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Have rank 0 wait for a wire to rank 1, which is stopped, and then do something to the world: it
/// says so soon, in a sentence with these words.
fn check(happens: impl FnOnce(&mut [Process]), words: &str) {
    let (id, _root): (UniqueId, Root) = UniqueId::create(None).expect("a root");
    let mut world: Vec<Process> = (0..RANKS).map(|rank| Process::start(rank, &id)).collect();
    for process in &world {
        assert_eq!(process.line(PATIENCE).as_deref(), Some("joined"));
    }
    world[1].stop();
    world[0].order("send");
    assert_eq!(world[0].line(Duration::from_millis(400)), None, "it waits for the wire");
    let begin = Instant::now();
    happens(&mut world);
    let said = world[0].line(PATIENCE).expect("every wait ends");
    let after = begin.elapsed();
    println!("after {after:?}: {said}");
    assert!(said.contains(words), "{said}");
    assert!(after < HEARD_WITHIN, "only after {after:?}: {said}");
}

#[test]
fn who_waits_for_a_wire_hears_of_a_rank_that_dies() {
    check(|world| world[2].child.kill().expect("it is ours"), "rank 2 is lost");
}

#[test]
fn who_waits_for_a_wire_hears_that_another_rank_gives_up() {
    check(|world| world[2].order("abort"), "somebody has had enough");
}

#[test]
fn who_waits_for_a_wire_can_be_interrupted() {
    check(|world| world[0].order("interrupt"), "interrupted during send");
}
