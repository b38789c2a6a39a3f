//! Calls in flight: started in a scope, waited for in any order, ended when the scope ends.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};

use brigade_comm::{Buffers, Call, Dtype, Error, Op};
use brigade_schedule::Collective;

use crate::world::{TRANSPORTS, each_rank, over};

/// What rank `rank` brings to call `number`, and what all ranks together come to.
fn brings(rank: usize, number: usize, count: usize) -> Vec<i64> {
    (0..count).map(|at| ((rank + 1) * (at + 10 * number + 1)) as i64).collect()
}

fn total(ranks: usize, number: usize, count: usize) -> Vec<i64> {
    brings(ranks * (ranks + 1) / 2 - 1, number, count)
}

#[test]
fn calls_in_flight_end_right_in_whatever_order_they_are_waited_for() {
    for transport in TRANSPORTS {
        for ranks in [1, 2, 3] {
            each_rank(ranks, &over(transport), move |member| {
                let counts = [1, 100_000, 0, 17, 300_001, 5];
                let data = counts.iter().enumerate();
                let mut data: Vec<Vec<i64>> =
                    data.map(|(number, &count)| brings(member.rank(), number, count)).collect();
                let outcome = member.scope(|scope| {
                    let start = |buffer| scope.all_reduce(buffer, Op::Sum).expect("a start");
                    let works: Vec<_> = data.iter_mut().map(|buffer| start(buffer)).collect();
                    for work in works.iter().rev() {
                        work.wait().expect("an all-reduce");
                        assert!(work.is_done());
                    }
                    works.len()
                });
                assert_eq!(outcome.expect("a scope"), counts.len());
                for (number, &count) in counts.iter().enumerate() {
                    let right = data[number] == total(ranks, number, count);
                    assert!(right, "{transport}, {ranks} ranks, call {number}");
                }
            });
        }
    }
}

#[test]
fn a_scope_waits_for_what_its_body_did_not() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), move |member| {
            let (mut one, mut two) = (brings(member.rank(), 0, 200_000), vec![0i64; 400_000]);
            let mine = brings(member.rank(), 1, 200_000);
            let gather = Call::moving(Collective::AllGather, Dtype::I64, 200_000);
            let buffers = |input, output| Buffers::OutOfPlace { input, output };
            let (input, output) = (bytemuck::cast_slice(&mine), bytemuck::cast_slice_mut(&mut two));
            let outcome = member.scope(|scope| {
                scope.all_reduce(&mut one, Op::Sum).expect("a start");
                scope.start(gather, buffers(input, output)).expect("a start");
            });
            outcome.expect("a scope");
            assert!(one == total(2, 0, 200_000), "{transport}");
            assert!(two == [brings(0, 1, 200_000), brings(1, 1, 200_000)].concat(), "{transport}");
        });
    }
}

#[test]
fn work_is_not_done_before_the_other_rank_has_come() {
    for transport in TRANSPORTS {
        let gate = Arc::new(Barrier::new(2));
        each_rank(2, &over(transport), move |member| {
            let mut data = brings(member.rank(), 0, 1000);
            if member.rank() == 1 {
                gate.wait();
                member.all_reduce(&mut data, Op::Sum).expect("an all-reduce");
                return;
            }
            let outcome = member.scope(|scope| {
                let work = scope.all_reduce(&mut data, Op::Sum).expect("a start");
                std::thread::sleep(std::time::Duration::from_millis(50));
                assert!(!work.is_done(), "{transport}: rank 1 has not come");
                gate.wait();
                while !work.is_done() {
                    std::thread::yield_now();
                }
                work.wait()
            });
            outcome.expect("a scope").expect("an all-reduce");
            assert!(data == total(2, 0, 1000), "{transport}");
        });
    }
}

/// One rank starts its calls, the other makes them blocking; both mean the same order.
#[test]
fn started_and_blocking_calls_keep_one_order() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let me = member.rank();
            let data = |number| brings(me, number, 50_000);
            let (mut first, mut second, mut third) = (data(0), data(1), data(2));
            let mut root = vec![me as u8; 100_000];
            if me == 1 {
                member.all_reduce(&mut first, Op::Sum).expect("blocking");
                member.broadcast(&mut root, 2).expect("blocking");
                member.all_reduce(&mut second, Op::Sum).expect("blocking");
                member.all_reduce(&mut third, Op::Sum).expect("blocking");
            } else {
                let outcome = member.scope(|scope| {
                    scope.all_reduce(&mut first, Op::Sum).expect("a start");
                    member.broadcast(&mut root, 2).expect("blocking, after the first");
                    scope.all_reduce(&mut second, Op::Sum).expect("a start");
                    scope.all_reduce(&mut third, Op::Sum).expect("a start");
                });
                outcome.expect("a scope");
            }
            for (number, data) in [first, second, third].iter().enumerate() {
                assert!(*data == total(3, number, 50_000), "{transport}: call {number}");
            }
            assert!(root.iter().all(|&byte| byte == 2), "{transport}");
        });
    }
}

#[test]
fn a_call_that_makes_no_sense_is_refused_at_once_and_hurts_no_other() {
    each_rank(2, &over("loopback"), |member| {
        let mut data = brings(member.rank(), 0, 10);
        let mut short = [0u8; 3];
        let outcome = member.scope(|scope| {
            let work = scope.all_reduce(&mut data, Op::Sum).expect("a start");
            let wrong = Call::moving(Collective::Broadcast { root: 9 }, Dtype::I64, 1);
            let refused = scope.start(wrong, Buffers::InPlace(&mut short)).err();
            assert!(matches!(refused, Some(Error::Invalid { .. })), "{refused:?}");
            work.wait()
        });
        outcome.expect("a scope").expect("an all-reduce");
        assert_eq!(data, total(2, 0, 10));
    });
}

#[test]
fn the_error_of_a_call_in_flight_is_the_scopes_and_leaves_the_communicator_as_it_deserves() {
    each_rank(2, &over("loopback"), |member| {
        let mut short = [0u8; 3];
        let outcome = member.scope(|scope| {
            let wrong = Call::moving(Collective::Broadcast { root: 0 }, Dtype::I64, 1);
            scope.start(wrong, Buffers::InPlace(&mut short)).is_ok()
        });
        assert!(matches!(outcome, Err(Error::Invalid { .. })), "{outcome:?}");
        let mut data = brings(member.rank(), 0, 10);
        member.all_reduce(&mut data, Op::Sum).expect("as good as before");
        assert_eq!(data, total(2, 0, 10));
    });
}

#[test]
fn ranks_that_start_different_calls_all_learn_of_it() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let count = if member.rank() == 1 { 500 } else { 501 };
            let (mut one, mut two) = (vec![1f32; count], vec![1f32; 10]);
            let outcome = member.scope(|scope| {
                let first = scope.all_reduce(&mut one, Op::Sum).expect("a start");
                let second = scope.all_reduce(&mut two, Op::Sum).expect("a start");
                (first.wait(), second.wait())
            });
            let error = outcome.expect_err("the ranks disagree");
            assert!(matches!(error, Error::Mismatch { .. }), "{transport}: {error}");
            let text = error.to_string();
            assert!(text.contains("500") && text.contains("501"), "{transport}: {text}");
            assert!(member.barrier().is_err(), "{transport}: usable after {text}");
        });
    }
}

#[test]
fn a_panic_in_the_body_still_waits_for_the_calls_and_leaves_the_communicator_usable() {
    for transport in TRANSPORTS {
        each_rank(2, &over(transport), move |member| {
            let mut data = brings(member.rank(), 0, 300_000);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                member.scope(|scope| {
                    scope.all_reduce(&mut data, Op::Sum).expect("a start");
                    std::panic::resume_unwind(Box::new("the body gives up"));
                })
            }));
            let payload = caught.map(|_| ()).expect_err("the panic goes through");
            assert_eq!(payload.downcast_ref(), Some(&"the body gives up"));
            assert!(data == total(2, 0, 300_000), "{transport}: the scope ended before its call");
            let mut again = brings(member.rank(), 1, 10);
            member.all_reduce(&mut again, Op::Sum).expect("as good as before");
            assert_eq!(again, total(2, 1, 10));
        });
    }
}
