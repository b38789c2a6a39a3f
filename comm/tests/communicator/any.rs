//! Receiving from whoever sends first.

use std::time::Duration;

use brigade_comm::{Communicator, Error, Op, Received};

use crate::world::{TRANSPORTS, each_rank, over};

#[test]
fn every_message_of_every_rank_arrives_whole_in_its_order_and_nobody_is_passed_over() {
    for transport in TRANSPORTS {
        for ranks in [2, 4] {
            each_rank(ranks, &over(transport), move |member| collect(&member, transport));
        }
    }
}

/// How long the message with a number is; some are empty, some do not fit in a wire's credit.
fn length(number: usize) -> usize {
    [0, 1, 3, 500, 70_000, 300_000][number % 6]
}

fn collect(member: &Communicator, transport: &str) {
    const MESSAGES: usize = 60;
    let (rank, ranks) = (member.rank(), member.size());
    let value = |from: usize, number: usize| (from * 1000 + number) as u32;
    if rank > 0 {
        for number in 0..MESSAGES {
            member.send(&vec![value(rank, number); length(number)], 0).expect("a send");
        }
    } else {
        let mut counts = vec![0; ranks];
        let mut data = vec![0; 300_000];
        for _ in 0..MESSAGES * (ranks - 1) {
            let Received { source, count } = member.recv_any(&mut data).expect("a message");
            assert_eq!(count, length(counts[source]), "{transport}: from {source}");
            let want = value(source, counts[source]);
            assert!(data[..count].iter().all(|&got| got == want), "{transport}");
            counts[source] += 1;
        }
        assert!(counts[1..].iter().all(|&count| count == MESSAGES), "{transport}: {counts:?}");
    }
    // The same wires go on to serve collectives and messages from one rank.
    let mut sum = [1u64];
    member.all_reduce(&mut sum, Op::Sum).expect("a call");
    assert_eq!(sum[0], ranks as u64);
}

#[test]
fn ranks_in_a_collective_have_sent_nothing_yet() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let mut got = [0u8; 4];
            match member.rank() {
                0 => {
                    let received = member.recv_any(&mut got).expect("a message");
                    assert_eq!(received, Received { source: 2, count: 2 }, "{transport}");
                    assert_eq!(got, [5, 6, 0, 0]);
                }
                // Its header is the first that rank 0 sees.
                1 => {}
                _ => {
                    std::thread::sleep(Duration::from_millis(100));
                    member.send(&[5u8, 6], 0).expect("a send");
                }
            }
            let mut all = [member.rank() as u8; 1];
            member.all_reduce(&mut all, Op::Sum).expect("the call that was looked at");
            assert_eq!(all, [3]);
        });
    }
}

#[test]
fn a_message_that_does_not_fit_is_still_there() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), move |member| {
            if member.rank() == 1 {
                member.send(&[1.5f32, 2.5], 0).expect("a send");
                member.send(&[7u8], 0).expect("a send");
                return;
            }
            let short = member.recv_any(&mut [0f32; 1]).expect_err("there are two");
            assert!(short.is_recoverable() && short.to_string().contains("8 bytes"), "{short}");
            let other = member.recv_any(&mut [0u8; 100]).expect_err("they are floats");
            assert!(other.is_recoverable() && other.to_string().contains("f32"), "{other}");
            let mut got = [0f32; 3];
            let received = member.recv_any(&mut got).expect("it fits");
            assert_eq!((received.count, got), (2, [1.5, 2.5, 0.0]));
            // One that was looked at can also be received by name.
            member.recv_any(&mut [0f32; 3]).expect_err("it is a byte");
            let mut byte = [0u8];
            member.recv(&mut byte, 1).expect("a message");
            assert_eq!(byte, [7]);
        });
    }
}

#[test]
fn who_waits_for_anybody_hears_that_all_have_left() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            if member.rank() == 0 {
                let error = member.recv_any(&mut [0u8]).expect_err("nobody sends");
                assert!(matches!(error, Error::PeerLeft { .. }), "{transport}: {error}");
            } else {
                std::thread::sleep(Duration::from_millis(20 * member.rank() as u64));
            }
        });
    }
    each_rank(1, &over("auto"), |member| {
        assert!(member.recv_any(&mut [0u8]).expect_err("nobody is there").is_recoverable());
    });
}
