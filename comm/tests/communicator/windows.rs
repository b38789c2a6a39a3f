//! Windows: what was put is there once its signal is seen, and what makes no sense is refused.

use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use brigade_comm::{Communicator, Error, Settings, Window, WindowSize};

use crate::best::best;
use crate::world::{each_rank, over};

/// Worlds by whose transports ranks reach each other's memory by themselves, and those where all or
/// some of them ask.
const WORLDS: [&str; 8] = [
    "loopback",
    "shm",
    "tcp",
    "loopback without windows",
    "shm without windows",
    "shm without windows on one",
    "shm in two hosts",
    "tcp to every other one, then shm",
];

#[test]
fn a_ring_of_puts_and_signals_goes_round() {
    for transport in WORLDS {
        for ranks in [1, 2, 3, 4] {
            each_rank(ranks, &over(transport), move |member| ring(&member));
        }
    }
}

/// Each rank puts blocks into the next one's window, round after round, and signals; it must not
/// write a block again before its reader has said that it was read.
fn ring(member: &Communicator) {
    const ROUNDS: u64 = 200;
    let (rank, ranks) = (member.rank(), member.size());
    let (next, last) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let bytes = 5000 + rank;
    let window = member.window(WindowSize { bytes, signals: 2 }).expect("a window");
    assert_eq!(window.size_of(next).expect("a rank").bytes, 5000 + next);
    let block = |from: usize, round: u64| -> Vec<u8> {
        (0..4999).map(|at| (at as u64 * 7 + round * 13 + from as u64) as u8).collect()
    };
    for round in 1..=ROUNDS {
        window.put(next, 1, &block(rank, round)).expect("a put");
        window.signal(next, 0, 1).expect("a signal");
        assert_eq!(window.wait(0, round).expect("a signal"), round);
        let mut got = vec![0; 4999];
        window.get(rank, 1, &mut got).expect("our own window");
        assert!(got == block(last, round), "rank {rank}, round {round}");
        window.signal(last, 1, 2).expect("a signal");
        window.wait(1, 2 * round).expect("a signal");
    }
    // What lies there can be read from afar, and the first byte was never written.
    member.barrier().expect("a barrier");
    let mut got = vec![1; 5000];
    window.get(next, 0, &mut got).expect("a get");
    assert!(got[0] == 0 && got[1..] == block(rank, ROUNDS)[..]);
    member.barrier().expect("nobody needs the windows any more");
}

#[test]
fn who_waits_for_a_signal_of_its_own_rank_notices_it_soon() {
    for transport in WORLDS {
        for ranks in [1, 2] {
            let done = Arc::new(Barrier::new(ranks));
            each_rank(ranks, &over(transport), move |member| {
                let window = member.window(WindowSize { bytes: 0, signals: 1 }).expect("a window");
                if member.rank() == 0 {
                    let mut round = 0;
                    let what = format!("{transport}, {ranks} ranks: a signal to oneself");
                    best(&what, Duration::from_millis(3), || lateness(&window, &mut round));
                }
                done.wait();
            });
        }
    }
}

/// How late a signal to oneself is noticed by one who waits for it, mostly.
fn lateness(window: &Window, round: &mut u64) -> Duration {
    const TIMES: usize = 15;
    let mut late: Vec<Duration> = (0..TIMES)
        .map(|_| {
            *round += 1;
            let signalled = Mutex::new(Instant::now());
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(30));
                    *signalled.lock().expect("nobody panics") = Instant::now();
                    window.signal(0, 0, 1).expect("a signal");
                });
                window.wait(0, *round).expect("a signal");
                signalled.lock().expect("nobody panics").elapsed()
            })
        })
        .collect();
    late.sort();
    late[TIMES / 2]
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    for transport in WORLDS {
        each_rank(2, &over(transport), move |member| {
            let signals = member.rank();
            let window = member.window(WindowSize { bytes: 10, signals }).expect("a window");
            for (rank, offset, length) in
                [(0, 11, 0), (0, 0, 11), (1, 5, 6), (1, usize::MAX, 2), (2, 0, 0)]
            {
                let put = window.put(rank, offset, &vec![1; length]);
                let get = window.get(rank, offset, &mut vec![1; length]);
                for error in [put, get].map(|outcome| outcome.expect_err("it is outside")) {
                    assert!(error.is_recoverable(), "{error}");
                }
            }
            assert!(window.signal(0, 0, 1).is_err() && window.signal(1, 1, 1).is_err());
            assert!(window.signalled(signals).is_err() && window.wait(signals, 0).is_err());
            window.put(1 - member.rank(), 10, &[]).expect("nothing fits at the end");
            if member.rank() == 1 {
                let none = window.wait_for(0, 1, Duration::from_millis(30)).expect("no error");
                assert_eq!(none, None);
            }
            member.barrier().expect("the world goes on");
        });
    }
}

#[test]
fn who_waits_for_a_rank_that_is_gone_or_aborts_is_told() {
    for transport in WORLDS {
        each_rank(3, &over(transport), move |member| {
            let window = member.window(WindowSize { bytes: 0, signals: 1 }).expect("a window");
            if member.rank() == 2 {
                window.wait(0, 2).expect("the others have theirs");
                return member.abort("enough");
            }
            let told = window.signal(2, 0, 1);
            let error = told.and_then(|()| window.wait(0, 1)).expect_err("nobody signals");
            assert!(matches!(error, Error::Aborted { rank: 2, .. }), "{error}");
            window.put(2, 0, &[]).expect_err("the world has ended");
        });
        each_rank(2, &over(transport), move |member| {
            let window = member.window(WindowSize { bytes: 0, signals: 1 }).expect("a window");
            if member.rank() == 0 {
                let error = window.wait(0, 1).expect_err("the other has left");
                assert!(matches!(error, Error::PeerLeft { rank: 1, .. }), "{error}");
            }
        });
    }
}

#[test]
fn a_wait_lasts_as_long_as_signals_come() {
    for transport in ["shm", "tcp"] {
        let settings = Settings { timeout: Duration::from_millis(1500), ..over(transport) };
        each_rank(2, &settings, move |member| {
            const SIGNALS: u64 = 6;
            let window = member.window(WindowSize { bytes: 0, signals: 1 }).expect("a window");
            if member.rank() == 0 {
                assert_eq!(window.wait(0, SIGNALS).expect("they come"), SIGNALS);
            } else {
                for _ in 0..SIGNALS {
                    std::thread::sleep(Duration::from_millis(400));
                    window.signal(0, 0, 1).expect("a signal");
                }
            }
            member.barrier().expect("the world goes on");
        });
    }
}

#[test]
fn what_one_rank_cannot_have_no_rank_gets_and_the_world_goes_on() {
    for transport in WORLDS {
        for much in [usize::MAX, usize::MAX / 9] {
            each_rank(2, &over(transport), move |member| {
                let bytes = if member.rank() == 1 { much } else { 10 };
                let error = member.window(WindowSize { bytes, signals: 0 }).map(|_| ());
                let error = error.expect_err("no memory is that large");
                assert!(error.is_recoverable() && error.to_string().contains("rank 1"), "{error}");
                member.barrier().expect("the world goes on");
            });
        }
    }
}

#[test]
fn who_cannot_join_for_a_window_says_so_to_all_and_the_next_one_opens() {
    for transport in ["shm refusing once", "tcp refusing once"] {
        let told = each_rank(3, &over(transport), |member| {
            let size = WindowSize { bytes: 10, signals: 1 };
            let error = member.window(size).map(|_| ()).expect_err("one of them cannot join");
            assert!(error.is_recoverable(), "{error}");
            let window = member.window(size).expect("the next one");
            window.put((member.rank() + 1) % 3, 0, &[7; 10]).expect("a put");
            member.barrier().expect("nobody needs the windows any more");
            error.to_string()
        });
        assert!(told[0].contains("on rank") && told[0].contains("wants it so"), "{told:?}");
        assert!(told.iter().all(|it| *it == told[0]), "all hear the same: {told:?}");
    }
}

#[test]
fn every_rank_writes_and_reads_every_window_at_once() {
    for transport in WORLDS {
        each_rank(4, &over(transport), move |member| crowd(&member));
    }
    let striped = Settings { sockets: 3, ..over("tcp") };
    each_rank(3, &striped, move |member| crowd(&member));
}

/// Two threads of each rank write to all windows, each to its own part, and read back what they
/// wrote; counters add up to what all have added. Puts are larger than what a wire takes at once,
/// and all ranks write before any of them waits.
fn crowd(member: &Communicator) {
    const PART: usize = 700_001;
    const ROUNDS: u64 = 4;
    let (rank, ranks) = (member.rank(), member.size());
    let parts = 2 * ranks;
    let window = member.window(WindowSize { bytes: parts * PART, signals: 3 }).expect("a window");
    let of = |part: usize, to: usize, round: u64| -> Vec<u8> {
        (0..PART).map(|at| (at * 3 + part * 17 + to * 29 + round as usize) as u8).collect()
    };
    std::thread::scope(|scope| {
        for part in [2 * rank, 2 * rank + 1] {
            let (window, of) = (&window, &of);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    for to in (0..ranks).map(|step| (rank + step) % ranks) {
                        window.put(to, part * PART, &of(part, to, round)).expect("a put");
                        window.signal(to, 1, round).expect("a signal");
                    }
                    for from in (0..ranks).rev() {
                        let mut got = vec![0; PART];
                        window.get(from, part * PART, &mut got).expect("a get");
                        assert!(got == of(part, from, round), "part {part} of rank {from}");
                    }
                }
            });
        }
    });
    let sum = (1..=ROUNDS).sum::<u64>() * parts as u64;
    assert_eq!(window.wait(1, sum).expect("signals"), sum);
    for part in 0..parts {
        let mut got = vec![0; PART];
        window.get(rank, part * PART, &mut got).expect("our own window");
        assert!(got == of(part, rank, ROUNDS), "rank {rank}, part {part}");
    }
    assert_eq!([0, 2].map(|signal| window.signalled(signal).expect("a counter")), [0, 0]);
    member.barrier().expect("nobody needs the windows any more");
}

#[test]
fn what_was_put_before_leaving_arrives() {
    for transport in WORLDS {
        each_rank(3, &over(transport), move |member| {
            const BYTES: usize = 3_000_000;
            let size = WindowSize { bytes: 2 * BYTES, signals: 1 };
            let window = member.window(size).expect("a window");
            if member.rank() > 0 {
                let data = vec![member.rank() as u8; BYTES];
                window.put(0, (member.rank() - 1) * BYTES, &data).expect("a put");
                window.signal(0, 0, 1).expect("a signal");
                return;
            }
            // They have left before anybody looks.
            std::thread::sleep(Duration::from_millis(30));
            window.wait(0, 2).expect("both have signalled");
            let mut got = vec![0; 2 * BYTES];
            window.get(0, 0, &mut got).expect("our own window");
            assert!(got[..BYTES] == vec![1; BYTES] && got[BYTES..] == vec![2; BYTES]);
        });
    }
}

#[test]
fn who_asks_of_a_window_that_is_gone_says_what_and_of_whom() {
    for transport in ["loopback without windows", "shm without windows", "tcp"] {
        each_rank(3, &over(transport), move |member| {
            const BYTES: usize = 300_000;
            let window = member.window(WindowSize { bytes: BYTES, signals: 0 }).expect("a window");
            member.barrier().expect("all have one");
            if member.rank() == 0 {
                std::thread::sleep(Duration::from_millis(20));
                drop(window);
                let end = Instant::now() + Duration::from_secs(20);
                while member.ended().is_none() && Instant::now() < end {
                    std::thread::sleep(Duration::from_millis(5));
                }
                return;
            }
            let (data, mut got) = (vec![member.rank() as u8; BYTES], vec![0; BYTES]);
            let error = loop {
                let outcome = window.put(0, 0, &data).and_then(|()| window.get(0, 0, &mut got));
                if let Err(error) = outcome {
                    break error.to_string();
                }
            };
            let says = ["rank 0 has left", "bytes at 0 of the window of rank 0"];
            assert!(says.iter().all(|it| error.contains(it)), "rank {}: {error}", member.rank());
        });
    }
}

#[test]
fn a_window_is_served_while_its_owner_does_nothing() {
    for transport in WORLDS {
        each_rank(2, &over(transport), move |member| {
            let window = member.window(WindowSize { bytes: 1 << 20, signals: 1 });
            let window = window.expect("a window");
            if member.rank() == 1 {
                let data: Vec<u8> = (0..1 << 20).map(|at: u32| (at * 7) as u8).collect();
                let mut got = vec![0; 1 << 20];
                window.put(0, 0, &data).expect("a put");
                window.get(0, 0, &mut got).expect("the owner is asleep");
                assert!(got == data);
                window.signal(0, 0, 1).expect("a signal");
            } else {
                while window.signalled(0).expect("a counter") == 0 {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            member.barrier().expect("nobody needs the windows any more");
        });
    }
}

#[test]
fn windows_outlive_their_communicators() {
    for transport in WORLDS {
        each_rank(3, &over(transport), move |member| {
            let (rank, next) = (member.rank(), (member.rank() + 1) % 3);
            let window = member.window(WindowSize { bytes: 8, signals: 2 }).expect("a window");
            member.barrier().expect("all have one");
            drop(member);
            for round in 1..=100 {
                window.put(next, 0, &[round as u8 + rank as u8; 8]).expect("a put");
                window.signal(next, 0, 1).expect("a signal");
                window.wait(0, round).expect("a signal");
                let mut got = [0; 8];
                window.get(rank, 0, &mut got).expect("our own window");
                assert_eq!(got, [round as u8 + (rank as u8 + 2) % 3; 8]);
                (0..3).for_each(|to| window.signal(to, 1, 1).expect("a signal"));
                window.wait(1, 3 * round).expect("all have looked");
            }
        });
    }
}

#[test]
fn a_window_outlives_its_communicator() {
    let mut world = Communicator::local_world(1, &Settings::default()).expect("a world of one");
    let member = world.remove(0);
    let window = member.window(WindowSize { bytes: 3, signals: 1 }).expect("a window");
    drop(member);
    window.put(0, 1, &[7]).expect("a put");
    window.signal(0, 0, 5).expect("a signal");
    assert_eq!(window.signalled(0).expect("a counter"), 5);
    let mut got = [9; 3];
    window.get(0, 0, &mut got).expect("a get");
    assert_eq!(got, [0, 7, 0]);
}
