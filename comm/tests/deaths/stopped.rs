//! A rank that waits for a wire to a process that is stopped hears what every other wait hears.
//!
//! The kernel of a stopped process takes the call for a wire, and nobody answers it. Ranks do what
//! their standard input says.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::UniqueId;
use brigade_comm::{Communicator, interrupt_by};

use super::PATIENCE;
use super::process::{Process, Said};

const RANKS: usize = 3;
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

/// Have rank 0 wait for a wire to rank 1, which is stopped, and then do something to the world: it
/// says so soon, in a sentence with these words.
fn check(happens: impl FnOnce(&mut [Process]), words: &str) {
    let (id, _root) = UniqueId::create(None).expect("a root");
    let mut world: Vec<Process> = (0..RANKS).map(|rank| start(rank, &id)).collect();
    for process in &world {
        assert_eq!(process.said(PATIENCE), Said::Joined);
    }
    world[1].stop();
    world[0].order("send");
    let waiting = Duration::from_millis(400);
    assert_eq!(world[0].said(waiting), Said::Nothing, "it waits for the wire");
    let begin = Instant::now();
    happens(&mut world);
    let said = world[0].line(PATIENCE).expect("every wait ends");
    let after = begin.elapsed();
    println!("after {after:?}: {said}");
    assert!(said.contains(words), "{said}");
    assert!(after < HEARD_WITHIN, "only after {after:?}: {said}");
}

fn start(rank: usize, id: &UniqueId) -> Process {
    Process::rank("stopped::one_rank", (rank, RANKS), id, ("tcp", WIRE_MS), &[])
}

#[test]
fn who_waits_for_a_wire_hears_of_a_rank_that_dies() {
    check(|world| world[2].kill(), "rank 2 is lost");
}

#[test]
fn who_waits_for_a_wire_hears_that_another_rank_gives_up() {
    check(|world| world[2].order("abort"), "somebody has had enough");
}

#[test]
fn who_waits_for_a_wire_can_be_interrupted() {
    check(|world| world[0].order("interrupt"), "interrupted during send");
}
