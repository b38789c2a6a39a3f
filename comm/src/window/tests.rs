//! Waits for counters: beside other threads of the rank, and for what ranks sent that have left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::ways::Rest;
use super::{Window, WindowSize};
use crate::locked::locked;
use crate::{Communicator, Error, Settings};

/// What hangs shall fail, not hang.
const BOUND: Duration = Duration::from_secs(20);

/// Be both ranks of a world over this transport.
fn each_of_two(
    transport: &str,
    timeout: Duration,
    body: impl Fn(&Communicator, &Window) + Send + Sync,
) {
    let settings = Settings { transport: transport.into(), timeout, ..Settings::default() };
    let world = Communicator::local_world(2, &settings).expect("a world");
    std::thread::scope(|scope| {
        for member in world {
            let body = &body;
            scope.spawn(move || {
                let window = member.window(WindowSize { bytes: 0, signals: 1 });
                body(&member, &window.expect("a window"));
            });
        }
    });
}

/// Look again and again until it is so; whether it ever was.
fn comes_true(mut it: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + BOUND;
    while !it() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn who_waits_while_another_thread_sleeps_at_the_bells_keeps_its_own_deadline() {
    each_of_two("shm", Duration::from_millis(500), |member, window| {
        if member.rank() == 1 {
            assert!(comes_true(|| window.held.watch.stopped().is_some()), "rank 0 gives up");
            return;
        }
        let Rest::Bells(ends) = &*window.rest else { panic!("nobody asks over shared memory") };
        let asleep = locked(ends);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| window.wait(0, 1));
            let is_in_time = comes_true(|| waits.is_finished());
            drop(asleep);
            let error = waits.join().expect("no panic").expect_err("nobody signals");
            assert!(is_in_time, "it waited for the other thread: {error}");
            let text = error.to_string();
            let place = "rank 0, signal 0 of a window, for 1: waiting for any of the others since";
            assert!(matches!(error, Error::Timeout { .. }) && text.contains(place), "{text}");
            let again = [window.signal(1, 0, 1), window.put(1, 0, &[]), window.get(1, 0, &mut [])];
            for error in again.map(|call| call.expect_err("the world has ended")) {
                assert_eq!(error.to_string(), text);
            }
        });
    });
}

#[test]
fn what_comes_in_for_long_after_its_sender_has_left_is_waited_for() {
    // On a machine so busy that a piece is half a second late it is right to give up.
    const LATE: Duration = Duration::from_millis(500);
    for _ in 0..5 {
        let is_fair = AtomicBool::new(true);
        each_of_two("tcp", BOUND, |member, window| {
            if member.rank() == 1 {
                return;
            }
            std::thread::scope(|scope| {
                let waits = scope.spawn(|| window.wait(0, 1));
                // As over a slow network: another piece now and then, and the signal last.
                for _ in 0..20 {
                    let begun = Instant::now();
                    std::thread::sleep(Duration::from_millis(100));
                    window.held.note_served();
                    is_fair.fetch_and(begun.elapsed() < LATE, Ordering::Relaxed);
                }
                window.held.add(0, 1);
                let ended = waits.join().expect("no panic");
                if is_fair.load(Ordering::Relaxed) {
                    assert_eq!(ended.expect("the signal comes"), 1);
                }
            });
        });
        if is_fair.into_inner() {
            return;
        }
    }
    println!("skipped: the machine is too busy to sleep on it");
}
