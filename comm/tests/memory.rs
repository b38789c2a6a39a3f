//! What communicators of many ranks cost: the time to come together, and the memory they keep.
//!
//! Times are the best of several tries, because the machine may have other things to do; what a
//! machine can do once it can do.

mod best;

use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use best::best;
use brigade_comm::{Communicator, Op, Settings};

const RANKS: usize = 64;
const WORLD: Duration = Duration::from_millis(500);
const SPLIT: Duration = Duration::from_millis(5);
const RANK_KB: u64 = 8 << 10;

/// Times and memory of one process belong to one test at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn world(transport: &str) -> Vec<Communicator> {
    let settings = Settings { transport: transport.into(), ..Settings::default() };
    Communicator::local_world(RANKS, &settings).expect("a world")
}

/// Resident memory of this process, what is shared included.
fn resident_kb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the state of this process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a line of memory");
    line.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn sixty_four_ranks_come_together_in_half_a_second() {
    let _turn = alone();
    for transport in ["loopback", "shm"] {
        best(&format!("a world over {transport}"), WORLD, || {
            let begin = Instant::now();
            let members = world(transport);
            assert_eq!(members.len(), RANKS);
            begin.elapsed()
        });
    }
}

/// A group of all ranks again, with the time from the last rank's call to the last one's return.
fn split(members: &[Communicator]) -> (Vec<Communicator>, Duration) {
    let gate = Barrier::new(RANKS);
    let one = |member: &Communicator| {
        gate.wait();
        let begin = Instant::now();
        let group = member.split(Some(0), 0).expect("a split").expect("a group");
        (group, begin, Instant::now())
    };
    let joined: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = members.iter().map(|member| scope.spawn(|| one(member))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    });
    let begin = joined.iter().map(|(_, begin, _)| *begin).max().expect("a last");
    let end = joined.iter().map(|(_, _, end)| *end).max().expect("a last");
    (joined.into_iter().map(|(group, ..)| group).collect(), end - begin)
}

fn split_in_time(transport: &str) {
    let _turn = alone();
    let members = world(transport);
    best(&format!("a split over {transport}"), SPLIT, || split(&members).1);
}

#[test]
fn a_second_communicator_of_sixty_four_threads_takes_five_milliseconds() {
    split_in_time("loopback");
}

#[test]
fn a_second_communicator_in_shared_memory_takes_five_milliseconds() {
    split_in_time("shm");
}

/// An all-reduce on every rank, so that what is made when first needed is there.
fn work(members: &[Communicator]) {
    std::thread::scope(|scope| {
        for member in members {
            scope.spawn(|| {
                let mut data = vec![1i32; 10_000];
                member.all_reduce(&mut data, Op::Sum).expect("an all-reduce");
                assert_eq!(data[9_999], RANKS as i32);
            });
        }
    });
}

#[test]
fn a_second_communicator_keeps_less_than_eight_megabytes_a_rank() {
    let _turn = alone();
    for transport in ["loopback", "shm"] {
        let members = world(transport);
        work(&members);
        let before = resident_kb();
        let (groups, _) = split(&members);
        work(&groups);
        let each = resident_kb().saturating_sub(before) / RANKS as u64;
        eprintln!("a second communicator over {transport}: {each} kB a rank");
        assert!(each < RANK_KB, "{transport}: {each} kB a rank");
    }
}
