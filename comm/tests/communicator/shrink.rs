//! How those who are left go on.

use std::time::{Duration, Instant};

use brigade_comm::{Communicator, Error, Op, Settings};

use crate::world::{each_rank, over};

/// What can be shrunk in one process.
const TRANSPORTS: [&str; 4] = ["loopback", "shm", "tcp", "shm,tcp"];

/// The sum of the ranks that the members had in the old group.
fn sum_of(part: &Communicator, old: usize) -> usize {
    let mut sum = [old as u64];
    part.all_reduce(&mut sum, Op::Sum).expect("an all-reduce of those who are left");
    sum[0] as usize
}

#[test]
fn survivors_of_a_rank_that_left_go_on() {
    for transport in TRANSPORTS {
        each_rank(4, &over(transport), move |member| {
            let old = member.rank();
            member.barrier().expect("all are there");
            if old == 1 {
                return;
            }
            let ending = member.barrier().expect_err("one is missing");
            assert!(!ending.is_recoverable(), "{transport}: {ending}");
            let part = member.shrink(&[1]).expect("three are left");
            assert_eq!(part.size(), 3);
            assert_eq!(part.rank(), [0, 9, 1, 2][old]);
            assert_eq!(sum_of(&part, old), 5, "{transport}");
            drop(member);
            assert_eq!(sum_of(&part, old), 5, "{transport}: the old one is of no concern");
            let half = part.split(Some(u32::from(old > 2)), 0).expect("a split").expect("a part");
            assert_eq!(sum_of(&half, old), if old > 2 { 3 } else { 2 });
        });
    }
}

/// The root of the first world goes with rank 0.
#[test]
fn survivors_of_the_first_rank_and_its_abort_go_on() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let old = member.rank();
            if old == 0 {
                return member.abort("enough");
            }
            let ending = member.barrier().expect_err("it was aborted");
            assert!(matches!(ending, Error::Aborted { rank: 0, .. }), "{transport}: {ending}");
            let part = member.shrink(&[0]).expect("two are left");
            assert_eq!(sum_of(&part, old), 3);
            // And from two to one, while all are well.
            if old == 1 {
                let alone = part.shrink(&[1]).expect("one is left");
                assert_eq!((alone.size(), sum_of(&alone, old)), (1, 1));
            }
            assert_eq!(sum_of(&part, old), 3, "{transport}: the old one is as it was");
        });
    }
}

/// The end finds one survivor in a split, which the other has not begun.
#[test]
fn survivors_of_different_calls_meet() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let old = member.rank();
            if old == 2 {
                return member.abort("enough");
            }
            let ending =
                if old == 1 { member.split(Some(0), 0).map(drop) } else { member.barrier() };
            ending.expect_err("it was aborted");
            let part = member.shrink(&[2]).expect("two are left");
            assert_eq!(sum_of(&part, old), 1, "{transport}");
            let again = member.shrink(&[2]).expect("two are left, still");
            assert_eq!(sum_of(&again, old), 1, "{transport}");
        });
    }
}

#[test]
fn ranks_that_do_not_come_are_a_matter_of_time() {
    each_rank(3, &over("shm"), |member| {
        let mut settings = member.settings().clone();
        settings.join_timeout = Duration::from_millis(300);
        if member.rank() == 0 {
            let ending = member.shrink_with(&[1], settings).map(drop).expect_err("rank 2 is away");
            assert!(!matches!(ending, Error::Invalid { .. }), "{ending}");
            // It may as well have another list.
            let question = "; do all that are left exclude [1], as rank 0 does?";
            assert!(ending.to_string().ends_with(question), "{ending}");
        }
        member.barrier().expect("the old one is as it was");
    });
}

/// In a part of the world, too, whose ranks have other numbers there.
#[test]
fn ranks_that_do_not_come_are_named_by_the_numbers_of_the_world() {
    each_rank(5, &over("shm"), |member| {
        let color = u32::from(member.rank() >= 2);
        let part = member.split(Some(color), 0).expect("a split").expect("a part");
        if member.rank() == 2 {
            let join_timeout = Duration::from_millis(300);
            let settings = Settings { join_timeout, ..part.settings().clone() };
            let ending = part.shrink_with(&[1], settings).expect_err("rank 4 is away");
            let question = "; do all that are left exclude [3], as rank 2 does?";
            assert!(ending.to_string().ends_with(question), "{ending}");
        }
        member.barrier().expect("the old one is as it was");
    });
}

#[test]
fn survivors_meet_however_often_each_has_tried_in_vain() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let old = member.rank();
            if old == 2 {
                return member.abort("enough");
            }
            member.barrier().expect_err("it was aborted");
            let shrink = |millis| {
                let join_timeout = Duration::from_millis(millis);
                member.shrink_with(&[2], Settings { join_timeout, ..member.settings().clone() })
            };
            match old {
                0 => drop(shrink(200).map(drop).expect_err("rank 1 is late")),
                _ => std::thread::sleep(Duration::from_millis(1000)),
            }
            // Who is first waits for longer than who is late takes to hear that it gave up before.
            let start = Instant::now();
            let part = std::iter::repeat_with(|| shrink(3000))
                .take_while(|_| start.elapsed() < Duration::from_secs(20))
                .inspect(|tried| println!("{transport}, rank {old}: {:?}", tried.as_ref().err()))
                .find_map(Result::ok);
            assert_eq!(sum_of(&part.expect("two are left"), old), 1, "{transport}");
        });
    }
}

#[test]
fn who_is_known_to_be_gone_is_not_waited_for() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let old = member.rank();
            member.barrier().expect("all are there");
            if old == 1 {
                return;
            }
            member.barrier().expect_err("one is missing");
            let begin = Instant::now();
            let refused = member.shrink(&[]).map(drop).expect_err("rank 1 is gone");
            assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
            let text = refused.to_string();
            assert!(refused.is_recoverable() && text.contains("shrink: rank 1 "), "{text}");
            assert!(text.contains("exclude it"), "{text}");
            let part = member.shrink(&[1]).expect("two are left");
            assert_eq!(sum_of(&part, old), 2, "{transport}");
        });
    }
}

#[test]
fn lists_that_make_no_sense_are_refused() {
    each_rank(2, &over("loopback"), |member| {
        for wrong in [&[2][..], &[member.rank()], &[0, 1], &[usize::MAX]] {
            let refused = member.shrink(wrong).map(drop);
            assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
        }
        let both = member.shrink(&[]).expect("none is excluded");
        assert_eq!(sum_of(&both, member.rank()), 1);
    });
}
