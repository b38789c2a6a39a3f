//! Ranks that leave: what they sent arrives, who still needs them is told, nothing is left behind.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use brigade_comm::{Buffers, Call, Communicator, Dtype, Error, Op};
use brigade_schedule::Collective;

use crate::world::{TRANSPORTS, each_rank, over};

fn twin(member: &Communicator) -> Communicator {
    member.split(Some(0), 0).expect("a split").expect("a group")
}

#[test]
fn what_a_rank_sent_before_it_left_arrives() {
    for transport in TRANSPORTS {
        for bytes in [5, 5_000, 100_000, 4 << 20] {
            each_rank(2, &over(transport), move |member| {
                let letter: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
                if member.rank() == 0 {
                    return member.send(&letter, 1).expect("a send");
                }
                std::thread::sleep(Duration::from_millis(250));
                let mut got = vec![0; bytes];
                member.recv(&mut got, 0).expect("what was sent before the sender left");
                assert!(got == letter, "{transport}: {bytes} bytes");
            });
        }
    }
}

#[test]
fn what_a_rank_sent_before_it_left_its_group_arrives() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            for round in 0..5u8 {
                let group = twin(&member);
                let mut data = vec![round * (1 - group.rank().min(1) as u8); 200_000];
                if group.rank() > 0 {
                    std::thread::sleep(Duration::from_millis(30 * group.rank() as u64));
                }
                group.broadcast(&mut data, 0).expect("what was sent before the root left");
                assert!(data.iter().all(|&byte| byte == round), "{transport}: round {round}");
            }
            member.barrier().expect("the world goes on");
        });
    }
}

#[test]
fn who_still_needs_a_rank_that_left_is_told() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let me = member.rank();
            member.barrier().expect("all are here");
            if me == 1 {
                return;
            }
            let error = member.all_reduce(&mut [1f32; 10], Op::Sum).expect_err("rank 1 has left");
            // Or by another rank, which was told first.
            let text = error.to_string();
            assert!(text.contains("rank 1 has left"), "{transport}: rank {me}: {text}");
        });
    }
}

/// A rank that is still there, and has left more groups since than anybody keeps.
#[test]
fn who_needs_a_rank_that_left_very_many_groups_is_told_that_it_left_this_one() {
    let have_left = Arc::new(Barrier::new(2));
    each_rank(2, &over("loopback"), move |member| {
        let first = twin(&member);
        first.barrier().expect("both are here");
        let others: Vec<Communicator> = (0..1100).map(|_| twin(&member)).collect();
        if member.rank() == 1 {
            drop(first);
            drop(others);
            have_left.wait();
        } else {
            have_left.wait();
            let error = first.barrier().expect_err("rank 1 has left").to_string();
            assert!(error.contains("rank 1 has left, but barrier"), "{error}");
        }
        member.barrier().expect_err("that ends the world");
    });
}

#[test]
fn who_still_needs_a_rank_that_left_only_a_group_is_told() {
    for transport in TRANSPORTS {
        // In a group that has called something, whose wires are open, and in one that has not.
        for has_called in [false, true] {
            let waited = each_rank(3, &over(transport), move |member| {
                let group = twin(&member);
                if has_called {
                    group.all_reduce(&mut [1f32; 10], Op::Sum).expect("all are here");
                }
                if member.rank() == 1 {
                    drop(group);
                    // It stays in the world until that ends.
                    member.recv(&mut [0u8], 0).expect_err("nobody sends");
                    return Duration::ZERO;
                }
                let started = Instant::now();
                let error = group.all_reduce(&mut [1f32; 10], Op::Sum).expect_err("it has left");
                let text = error.to_string();
                assert!(text.contains("rank 1 has left"), "{transport}, {has_called}: {text}");
                started.elapsed()
            });
            let worst = waited.into_iter().max().expect("three ranks");
            assert!(worst < Duration::from_secs(3), "{transport}, {has_called}: {worst:?}");
        }
    }
}

#[test]
fn who_asks_hears_who_has_left() {
    each_rank(3, &over("tcp"), |member| {
        let group = twin(&member);
        member.barrier().expect("all are here");
        for rank in 0..3 {
            assert!(member.gone(rank).expect("there is one").is_none());
        }
        member.gone(3).expect_err("there is none");
        member.barrier().expect("nobody leaves before all have asked");
        if member.rank() == 2 {
            return;
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        for whole in [&member, &group] {
            while whole.gone(2).expect("there is one").is_none() {
                assert!(Instant::now() < deadline, "nobody hears that rank 2 has left");
                std::thread::sleep(Duration::from_millis(1));
            }
            let error = whole.gone(2).expect("there is one").expect("it has left");
            assert!(matches!(error, Error::PeerLeft { rank: 2, .. }), "{error}");
        }
    });
}

/// The first rank drops its handle while its call is still on its way: it has not left before the
/// call has ended, so the third, which waits for it until the last one comes, must not think so.
#[test]
fn a_call_on_its_way_ends_well_though_its_handle_is_dropped() {
    for transport in TRANSPORTS {
        each_rank(4, &over(transport), move |member| {
            let group = twin(&member);
            match group.rank() {
                0 => {
                    let call = Call::moving(Collective::Barrier, Dtype::U8, 0);
                    let buffers = Buffers::OutOfPlace { input: &[], output: &mut [] };
                    // SAFETY: a barrier has no memory.
                    let work = unsafe { group.start(call, buffers) }.expect("it starts");
                    drop(group);
                    work.wait().expect("nothing is wrong");
                }
                1 | 2 => group.barrier().expect("nothing is wrong"),
                _ => {
                    std::thread::sleep(Duration::from_millis(2_000));
                    group.barrier().expect("nothing is wrong");
                }
            }
            member.barrier().expect("the world goes on");
        });
    }
}

/// The last rank of the chain is done and gone long before the root comes; the one in the middle
/// waits for the root, in the middle of a fold of what the last one sent.
#[test]
fn who_has_sent_everything_may_leave_while_another_is_late() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let mut data = vec![1f32; 600_000];
            if member.rank() == 0 {
                std::thread::sleep(Duration::from_millis(1200));
            }
            member.reduce(&mut data, Op::Sum, 0).expect("nothing is wrong");
            assert!(member.rank() != 0 || data.iter().all(|&sum| sum == 3.0), "{transport}");
        });
    }
}

#[test]
fn messages_within_a_group_are_named_by_the_ranks_of_the_world() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let me = member.rank();
            let pair = member.split(Some(u32::from(me > 0)), 0).expect("a split");
            let pair = pair.expect("a group");
            if me == 1 {
                let error = pair.recv(&mut [0f32; 4], 1).expect_err("rank 2 has left");
                let said = error.to_string();
                assert!(said.contains("receive from 2 of f32"), "{transport}: {said}");
            }
        });
    }
}
