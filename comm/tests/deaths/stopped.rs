//! A rank that waits for a process that is stopped hears what every other wait hears.
//!
//! The kernel of a stopped process takes the call for a wire, and nobody answers it. So it takes
//! what the root is told, and if that process has the root nobody passes it on: there a rank hears
//! what it says itself. Ranks do what their standard input says.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use brigade_comm::bootstrap::UniqueId;
use brigade_comm::{Call, Communicator, Dtype, Op, interrupt_by};
use brigade_schedule::Collective;

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

#[test]
#[ignore = "one process of the worlds in this file"]
fn one_watched_rank() {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    if std::env::var("BRIGADE_RANK").is_err() {
        return;
    }
    let comm = Arc::new(Communicator::from_env().expect("a world"));
    let (sender, orders) = channel();
    let watchdog = Arc::clone(&comm);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match &line[..] {
                "interrupt" => INTERRUPTED.store(true, Ordering::Relaxed),
                "abort" => watchdog.abort("the watchdog has had enough"),
                _ => {}
            }
            let _for_nobody = sender.send(line);
        }
    });
    interrupt_by(Some(Box::new(|| INTERRUPTED.load(Ordering::Relaxed))));
    println!("\nrank: joined");
    while let Ok(order) = orders.recv() {
        let _behind = (order == "barrier behind a call").then(|| {
            let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 100);
            comm.start_owned_in_place(call, vec![1_f32; 100]).expect("a start")
        });
        if order.starts_with("barrier") {
            println!("\nrank: {:?}, then {:?}", comm.barrier(), comm.ended());
        }
    }
}

/// Have rank 1 wait for rank 0, in whose stopped process the root is, by this `order`, and then do
/// something to it: its call ends soon, in a sentence with these words, and the world with it.
fn check_without_root(order: &str, happens: &str, words: &str) {
    let mark = format!("brigade-stopped-{}-{happens}-{}", std::process::id(), order.len());
    let folder = std::env::temp_dir().join(mark);
    std::fs::create_dir(&folder).expect("a folder of our own");
    let id_file = folder.join("id");
    let mut world: Vec<Process> = (0..2)
        .map(|rank: usize| {
            let variables = vec![
                ("BRIGADE_RANK", rank.to_string()),
                ("BRIGADE_WORLD_SIZE", "2".to_owned()),
                ("BRIGADE_ID_FILE", id_file.to_str().expect("a path in UTF-8").to_owned()),
                ("BRIGADE_TRANSPORT", "tcp".to_owned()),
            ];
            Process::start("stopped::one_watched_rank", variables)
        })
        .collect();
    for process in &world {
        assert_eq!(process.said(PATIENCE), Said::Joined);
    }
    // All wires are there.
    world.iter_mut().for_each(|process| process.order("barrier"));
    for process in &world {
        let said = process.line(PATIENCE).expect("a barrier ends");
        assert!(said.contains("Ok(()), then None"), "{said}");
    }
    world[0].stop();
    world[1].order(order);
    assert_eq!(world[1].said(Duration::from_millis(400)), Said::Nothing, "it waits");
    let begin = Instant::now();
    world[1].order(happens);
    let said = world[1].line(PATIENCE).expect("every wait ends");
    let after = begin.elapsed();
    println!("after {after:?}: {said}");
    assert!(said.contains(words) && said.contains("then Some("), "{said}");
    assert!(after < HEARD_WITHIN, "only after {after:?}: {said}");
    drop(world);
    std::fs::remove_dir_all(&folder).expect("it is ours");
}

#[test]
fn who_waits_for_the_stopped_root_hears_what_its_own_watchdog_says() {
    check_without_root("barrier", "abort", "the watchdog has had enough");
}

#[test]
fn who_waits_for_the_stopped_root_can_be_interrupted() {
    check_without_root("barrier", "interrupt", "interrupted during barrier");
}

#[test]
fn who_waits_for_the_stopped_root_behind_a_call_can_be_interrupted() {
    check_without_root("barrier behind a call", "interrupt", "interrupted behind calls");
}
