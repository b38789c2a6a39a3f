//! A member whose process is stopped: its kernel takes every call, and nobody ever answers. Whoever
//! wants a wire to it goes on with everybody else meanwhile.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::{LIMIT, Make, Member, Ports, SECRET, is_usable};

/// Which transport a process of this test is to open.
const TRANSPORT: &str = "BRIGADE_TEST_STOPPED";
/// In front of a card in digits.
const CARD: &str = "card: ";
/// How long others may take: much less than the wire to the stopped member may.
const SOON: Duration = Duration::from_secs(8);

#[test]
fn others_are_reached_meanwhile_over_tcp() {
    check("tcp");
}

#[test]
fn others_are_reached_meanwhile_over_rdma() {
    check("rdma");
}

#[test]
fn others_are_reached_meanwhile_over_a_plugin() {
    check("plugin");
}

#[test]
#[ignore = "the process that is stopped"]
fn one_member() {
    let Ok(name) = std::env::var(TRANSPORT) else { return };
    let port = make_of(&name).transports(1)[0].open(SECRET).expect("a port");
    let digits: String = port.card().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("\n{CARD}{digits}");
    std::thread::sleep(2 * LIMIT);
}

fn make_of(name: &str) -> Make {
    match name {
        "tcp" => crate::TCP_V4,
        "rdma" => crate::RDMA,
        _ => crate::PLUGIN,
    }
}

fn check(name: &str) {
    let make = make_of(name);
    if !is_usable(make) {
        return;
    }
    let stopped = Stopped::start(name);
    let mut ports = Ports::open(make, 3);
    ports.cards[1].clone_from(&stopped.card);
    let ports = &ports;
    std::thread::scope(|scope| {
        for me in [0, 2] {
            scope.spawn(move || meet_the_other(ports.member(1, &[0, 1, 2].map(Some), me)));
        }
    });
}

fn meet_the_other(mut member: Member) {
    let (started, other) = (Instant::now(), 2 - member.me);
    let is_awaited = |member: &mut Member| {
        member.endpoint.connect(1, member.deadline).expect("it may still answer").is_none()
    };
    assert!(is_awaited(&mut member));
    let (mut sender, mut receiver) = (member.sender(other), member.receiver(other));
    for round in 0..10 {
        let mut heard = [0; 64];
        member.send(&mut *sender, &[round; 64]);
        member.receive(&mut *receiver, &mut heard);
        assert_eq!(heard, [round; 64]);
        assert!(is_awaited(&mut member));
    }
    drop((sender, receiver));
    drop(member);
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

/// A process that has opened a port and was stopped then. It ends with this value.
struct Stopped {
    child: Child,
    card: Vec<u8>,
}

impl Stopped {
    fn start(name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("our own path"));
        command.args(["--exact", "stopped::one_member", "--ignored", "--nocapture"]);
        command.env(TRANSPORT, name).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut this = Stopped { child, card: Vec::new() };
        let mut lines = lines.map(|line| line.expect("a line"));
        let digits = lines.find_map(|line| Some(line.strip_prefix(CARD)?.to_owned()));
        let digits = digits.expect("it says its card");
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
        this.card = (0..digits.len()).step_by(2).map(byte).collect();
        // Threads stop one after the other, as the system lets each of them run.
        const STOP: &str = "kill -STOP $0 && for stat in /proc/$0/task/*/stat; do \
                            until grep -q ') T' $stat; do sleep 0.01; done; done";
        let mut command = Command::new("timeout");
        command.args(["20", "sh", "-c", STOP]).arg(this.child.id().to_string());
        assert!(command.status().expect("a shell").success(), "it goes on");
        this
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // A test that fails must not leave it behind either.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
