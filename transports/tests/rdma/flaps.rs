//! The only path is gone for a moment: its queue pairs are replaced, and nothing is lost or comes
//! twice.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::fabric::{Cable, Fabric};
use crate::world::{LIMIT, Member, PATIENCE, contents, impatient, join, open, pair, trial};

const TRIALS: u64 = 50;

#[test]
fn flaps_of_the_only_path_lose_and_double_nothing() {
    let Some(fabric) = Fabric::take() else { return };
    for seed in 0..TRIALS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let sizes = (rng.usize(..1 << 20), rng.usize(1 << 19..1 << 20));
        let cable = if rng.bool() { Cable::First } else { Cable::Second };
        let mut times = || [rng.u64(1..500), rng.u64(1..300)];
        let flaps: Vec<_> = (0..=seed % 3).map(|_| times()).collect();
        let strike = || {
            for flap in &flaps {
                let [down, up] = flap.map(Duration::from_millis);
                fabric.cut(cable);
                std::thread::sleep(down);
                fabric.join(cable);
                std::thread::sleep(up);
            }
        };
        let started = Instant::now();
        let outcome = trial(&impatient(Some(cable.devices()), LIMIT / 2), seed, sizes, strike);
        let took = started.elapsed();
        fabric.mend();
        println!("seed {seed}: {cable:?} down and up, ms: {flaps:?}, {sizes:?} bytes: {took:?}");
        assert!(outcome.iter().all(Result::is_ok), "seed {seed}: {outcome:#?}");
    }
}

#[test]
fn a_path_that_comes_back_while_nobody_uses_it_can_be_used_and_lost_again() {
    let Some(fabric) = Fabric::take() else { return };
    let settings = impatient(Some(Cable::First.devices()), PATIENCE);
    let barrier = Barrier::new(2);
    pair(&settings, |me, member| {
        for round in 0..4 {
            let block = contents(round, 0, 1 << 20);
            let mut target = vec![0; block.len()];
            if me == 0 {
                member.send(&block).expect("the path is there");
            } else {
                member.receive(&mut target).expect("the path is there");
                assert!(target == block, "round {round}");
            }
            barrier.wait();
            if me == 0 && round < 3 {
                // The other end speaks into a dead cable: its words are what fails.
                fabric.cut(Cable::First);
                std::thread::sleep(Duration::from_millis(300));
                fabric.join(Cable::First);
                // In the last round all of the time to replace queue pairs has gone by since.
                std::thread::sleep(settings.reconnect / 2);
            }
            barrier.wait();
        }
    });
}

#[test]
fn a_wire_is_opened_once_its_path_is_there_and_by_another_one_at_once() {
    let Some(fabric) = Fabric::take() else { return };
    let exchange = |member: &mut Member| {
        // It fits into a ring, so that both may send first.
        let block = contents(3, 0, 50_000);
        let mut target = vec![0; block.len()];
        member.send(&block).expect("the path is there");
        member.receive(&mut target).expect("the path is there");
        assert!(target == block);
    };
    let later = Duration::from_secs(2);
    for (devices, comes_back) in [(Some(Cable::First.devices()), true), (None, false)] {
        let settings = impatient(devices, LIMIT / 2);
        let ports = [open(&settings), open(&settings)];
        let cards = [ports[0].card(), ports[1].card()];
        let joined = Barrier::new(3);
        std::thread::scope(|scope| {
            let members = [0, 1].map(|me| {
                let (port, cards, joined, exchange) = (&*ports[me], &cards, &joined, &exchange);
                scope.spawn(move || {
                    let endpoint = join(port, me, cards);
                    for _ in ["joined", "cut"] {
                        joined.wait();
                    }
                    let started = Instant::now();
                    let mut member = Member::new(endpoint, 1 - me);
                    let took = started.elapsed();
                    exchange(&mut member);
                    joined.wait();
                    took
                })
            });
            joined.wait();
            fabric.cut(Cable::First);
            joined.wait();
            if comes_back {
                std::thread::sleep(later);
                fabric.join(Cable::First);
            }
            joined.wait();
            for took in members.map(|member| member.join().expect("no panic")) {
                println!("{devices:?}: {took:?}");
                // Where the cable stays cut, that there is a wire says it all.
                assert!(!comes_back || took > later / 2, "{took:?}");
            }
        });
        drop(ports);
        fabric.mend();
    }
}

#[test]
fn what_was_consumed_while_the_path_was_gone_is_told_again() {
    let Some(fabric) = Fabric::take() else { return };
    let settings = impatient(Some(Cable::Second.devices()), LIMIT / 2);
    let (barrier, pushed) = (Barrier::new(2), AtomicUsize::new(0));
    let stream = contents(9, 0, 2 * settings.ring_bytes);
    pair(&settings, |me, member| {
        if me == 0 {
            // As much as the ring holds.
            let (mut at, mut moved) = (0, Instant::now());
            while moved.elapsed() < Duration::from_millis(300) {
                let count = member.sender.push(&stream[at..]).expect("the path is there");
                at += count;
                if count > 0 {
                    moved = Instant::now();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(at < stream.len(), "the ring holds all");
            pushed.store(at, Ordering::Relaxed);
            barrier.wait();
            barrier.wait();
            fabric.join(Cable::Second);
            member.send(&stream[at..]).expect("the path is there again");
            member.receive(&mut [0]).expect("the answer");
            return;
        }
        barrier.wait();
        fabric.cut(Cable::Second);
        let at = pushed.load(Ordering::Relaxed);
        let mut target = vec![0; stream.len()];
        member.receive(&mut target[..at]).expect("it has landed");
        // What it tells the sender meanwhile is lost.
        std::thread::sleep(Duration::from_secs(1));
        barrier.wait();
        let started = Instant::now();
        member.receive(&mut target[at..]).expect("the path is there again");
        assert!(target == stream && started.elapsed() < LIMIT);
        member.send(&[1]).expect("the path is there");
    });
}
