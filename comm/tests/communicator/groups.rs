//! Communicators made of communicators: who is in them, and that each goes its own way.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use brigade_comm::{Communicator, Op};

use crate::hosted::FORGOTTEN;
use crate::world::{TRANSPORTS, each_rank, over};

/// The numbers that the members of a group bring, in the order of their ranks.
fn roll_call(group: &Communicator, mine: u32) -> Vec<u32> {
    let mut all = vec![u32::MAX; group.size()];
    group.all_gather(&[mine], &mut all).expect("an all-gather");
    assert_eq!(all[group.rank()], mine);
    all
}

#[test]
fn colours_part_the_ranks_and_keys_order_them() {
    for transport in TRANSPORTS {
        each_rank(7, &over(transport), move |member| {
            let me = member.rank();
            // Odd ranks backwards, by negative keys; even ranks by key 5, so by rank.
            let key = if me % 2 == 1 { -(me as i32) } else { 5 };
            let group = member.split(Some(me as u32 % 2), key).expect("a split").expect("a group");
            let wanted = if me % 2 == 1 { vec![5, 3, 1] } else { vec![0, 2, 4, 6] };
            assert_eq!(roll_call(&group, me as u32), wanted, "{transport}");
            assert_eq!(roll_call(&member, me as u32), (0..7).collect::<Vec<_>>(), "{transport}");
        });
    }
}

#[test]
fn the_largest_colours_and_keys_are_colours_and_keys() {
    each_rank(4, &over("loopback"), |member| {
        let me = member.rank() as u32;
        let color = [0, u32::MAX][member.rank() / 2];
        let key = [i32::MAX, i32::MIN][member.rank() % 2];
        let group = member.split(Some(color), key).expect("a split").expect("a group");
        assert_eq!(roll_call(&group, me), [me / 2 * 2 + 1, me / 2 * 2]);
    });
}

#[test]
fn a_rank_without_a_colour_is_in_no_group() {
    for transport in TRANSPORTS {
        each_rank(4, &over(transport), move |member| {
            let me = member.rank() as u32;
            let group = member.split((me != 2).then_some(9), 0).expect("a split");
            assert_eq!(group.is_none(), me == 2, "{transport}");
            if let Some(group) = group {
                assert_eq!(roll_call(&group, me), [0, 1, 3], "{transport}");
            }
            assert!(member.split(None, 0).expect("a split into nothing").is_none());
            assert_eq!(roll_call(&member, me), [0, 1, 2, 3], "{transport}");
        });
    }
}

#[test]
fn groups_can_be_split_again_and_outlive_their_parents() {
    for transport in TRANSPORTS {
        each_rank(6, &over(transport), move |member| {
            let me = member.rank();
            let half = member.split(Some(me as u32 / 3), 0).expect("a split").expect("a half");
            let pair = half.split((half.rank() < 2).then_some(0), -(me as i32)).expect("a split");
            let alone = half.split(Some(me as u32), 0).expect("a split").expect("a group of one");
            member.barrier().expect("nobody leaves while others still join");
            drop((member, half));
            assert_eq!((alone.size(), roll_call(&alone, 5)), (1, vec![5]));
            if let Some(pair) = pair {
                let first = me as u32 / 3 * 3;
                assert_eq!(roll_call(&pair, me as u32), [first + 1, first], "{transport}");
            }
        });
    }
}

/// Whichever rank opened the transport first cannot join its new group. Others of that group hear
/// so soon, where it meets or in their first call, and all else goes on.
#[test]
fn a_group_that_one_rank_cannot_join_ends_by_itself() {
    const COLORS: [Option<u32>; 6] = [Some(0), Some(0), Some(0), Some(1), Some(1), None];
    let mut ended = 0;
    for transport in ["shm refusing once", "tcp refusing once"].into_iter().cycle().take(12) {
        let told = each_rank(COLORS.len(), &over(transport), |member| {
            let (me, begun) = (member.rank(), Instant::now());
            let joined = member.split(COLORS[me], 0);
            let called = joined.and_then(|group| group.map_or(Ok(()), |group| group.barrier()));
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(3), "after {took:?}: {called:?}");
            assert_eq!(roll_call(&member, me as u32), [0, 1, 2, 3, 4, 5]);
            let next = member.split(COLORS[me], 0).expect("the next one");
            let sizes = [Some(3), Some(2), None];
            assert_eq!(next.map(|group| group.size()), sizes[me / 3 + me / 5]);
            member.barrier().expect("nobody leaves while others still join");
            called.map_err(|error| error.to_string())
        });
        println!("{transport}: {told:?}");
        let failed: Vec<usize> = (0..COLORS.len()).filter(|rank| told[*rank].is_err()).collect();
        assert!([&[0, 1, 2][..], &[3, 4], &[]].contains(&&failed[..]), "whole groups: {told:?}");
        let words = || failed.iter().map(|rank| told[*rank].as_ref().expect_err("it failed"));
        let over = ["shm", "tcp"].map(|name| format!("split: joining over {name}: "));
        let unable = words().position(|words| over.iter().any(|over| words.starts_with(over)));
        let unable = unable.map(|at| format!("waits in vain: rank {}, split: joining", failed[at]));
        for (at, words) in words().enumerate() {
            let is_told = unable.as_ref().is_some_and(|unable| words.contains(unable));
            assert!(words.contains("this test wants it so"), "{words}");
            assert!(is_told || !words.contains("in vain"), "rank {}: {words}", failed[at]);
        }
        ended += usize::from(!failed.is_empty());
    }
    assert!(ended > 0, "it was always the rank without a group that could join none");
    // What came there for a group that was not joined goes with it.
    assert!(FORGOTTEN.load(Ordering::Relaxed) >= ended);
}

#[test]
fn sixty_four_ranks_part_into_rows_and_columns() {
    each_rank(64, &over("loopback"), |member| {
        let me = member.rank() as u32;
        let row = member.split(Some(me / 8), 0).expect("a split").expect("a row");
        let column = member.split(Some(me % 8), 0).expect("a split").expect("a column");
        assert_eq!(roll_call(&row, me), (me / 8 * 8..).take(8).collect::<Vec<_>>());
        assert_eq!(roll_call(&column, me), (me % 8..64).step_by(8).collect::<Vec<_>>());
        // Sums along rows and then along columns are sums over all.
        let mut sum = vec![i64::from(me) + 1; 1000];
        row.all_reduce(&mut sum, Op::Sum).expect("along the row");
        column.all_reduce(&mut sum, Op::Sum).expect("along the column");
        assert!(sum.iter().all(|&sum| sum == 64 * 65 / 2));
    });
}

fn twin(member: &Communicator) -> Communicator {
    member.split(Some(0), member.rank() as i32).expect("a split").expect("a group")
}

/// One call after another whose result depends on every rank and on the number of the call.
fn many_calls(group: &Communicator, calls: usize, salt: usize) {
    let (ranks, me) = (group.size(), group.rank());
    for number in 0..calls {
        let count = [1, 30, 5000][number % 3];
        let mut data = vec![(number * salt + me) as i64; count];
        group.all_reduce(&mut data, Op::Sum).expect("an all-reduce");
        let wanted = (ranks * number * salt + ranks * (ranks - 1) / 2) as i64;
        assert!(data.iter().all(|&got| got == wanted), "call {number}: {} not {wanted}", data[0]);
    }
}

/// Rank 2 comes late to the one group, and only after all have completed many calls in the other.
#[test]
fn one_group_works_while_another_waits() {
    for transport in TRANSPORTS {
        // Three ranks that are done with the one group, and the late thread.
        let all_done = Arc::new(Barrier::new(4));
        each_rank(3, &over(transport), move |member| {
            let twin = twin(&member);
            let (entering, entered) = mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if member.rank() == 2 {
                        all_done.wait();
                    }
                    entering.send(()).expect("the other thread listens");
                    many_calls(&member, 1, 11);
                });
                if member.rank() != 2 {
                    entered.recv().expect("the other thread speaks");
                }
                many_calls(&twin, 100, 13);
                all_done.wait();
            });
        });
    }
}

#[test]
fn two_groups_used_from_two_threads_do_not_mix() {
    for transport in TRANSPORTS {
        for ranks in [2, 4] {
            each_rank(ranks, &over(transport), move |member| {
                let twin = twin(&member);
                std::thread::scope(|scope| {
                    scope.spawn(|| many_calls(&twin, 100, 17));
                    many_calls(&member, 100, 19);
                });
            });
        }
    }
}

/// Calls in flight on two groups, begun in the opposite order on every other rank.
#[test]
fn groups_may_be_begun_in_a_different_order_on_every_rank() {
    for transport in TRANSPORTS {
        each_rank(4, &over(transport), move |member| {
            let twin = twin(&member);
            let swapped = member.rank() % 2 == 1;
            let (first, second) = if swapped { (&twin, &member) } else { (&member, &twin) };
            for number in 0..20i64 {
                let (mut one, mut two) = (vec![number; 3000], vec![-number; 70]);
                let (here, there) = if swapped {
                    (&mut two[..], &mut one[..])
                } else {
                    (&mut one[..], &mut two[..])
                };
                let outcome = first.scope(|outer| {
                    outer.all_reduce(here, Op::Sum).expect("a start");
                    second.scope(|inner| {
                        inner.all_reduce(there, Op::Sum).expect("a start");
                    })
                });
                outcome.expect("the outer scope").expect("the inner scope");
                assert!(one.iter().all(|&sum| sum == 4 * number), "{transport}: call {number}");
                assert!(two.iter().all(|&sum| sum == -4 * number), "{transport}: call {number}");
            }
        });
    }
}

#[test]
fn calls_of_two_threads_on_one_communicator_are_made_one_after_the_other() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), move |member| {
            // Equal calls, so that it does not matter which thread of one rank meets which of the
            // other; that none is lost or torn shows in the sums.
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        for _ in 0..100 {
                            let mut data = [member.rank() as i64 + 1; 700];
                            member.all_reduce(&mut data, Op::Sum).expect("an all-reduce");
                            assert_eq!(data, [3; 700], "{transport}");
                        }
                    });
                }
            });
            assert_eq!(member.stats().calls, 200, "{transport}");
        });
    }
}
