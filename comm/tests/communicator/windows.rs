//! Windows: what was put is there once its signal is seen, and what makes no sense is refused.

use std::time::Duration;

use brigade_comm::{Communicator, Error, Settings, WindowSize};

use crate::world::{each_rank, over};

/// Transports that have windows.
const WINDOWED: [&str; 2] = ["loopback", "shm"];

#[test]
fn a_ring_of_puts_and_signals_goes_round() {
    for transport in WINDOWED {
        for ranks in [1, 2, 4] {
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
fn nonsense_is_refused_and_changes_nothing() {
    for transport in WINDOWED {
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
    for transport in WINDOWED {
        each_rank(3, &over(transport), move |member| {
            let window = member.window(WindowSize { bytes: 0, signals: 1 }).expect("a window");
            if member.rank() == 2 {
                std::thread::sleep(Duration::from_millis(50));
                return member.abort("enough");
            }
            let error = window.wait(0, 1).expect_err("nobody signals");
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
fn a_transport_without_windows_says_so_on_every_rank() {
    each_rank(2, &over("tcp"), |member| {
        let error = member.window(WindowSize { bytes: 10, signals: 1 });
        let error = error.map(|_| ()).expect_err("tcp has none");
        assert!(error.is_recoverable() && error.to_string().contains("tcp has no"), "{error}");
        member.barrier().expect("the world goes on");
    });
    // One rank asks for more than there is: the other hears of it too.
    each_rank(2, &over("shm"), |member| {
        let bytes = if member.rank() == 1 { usize::MAX } else { 10 };
        let error = member.window(WindowSize { bytes, signals: 0 }).map(|_| ());
        assert!(error.expect_err("no memory is that large").is_recoverable());
        member.barrier().expect("the world goes on");
    });
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
