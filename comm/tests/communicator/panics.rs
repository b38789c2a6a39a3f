//! Operators that panic although they must not, and wires at which we do: an error on every rank,
//! and no hang.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use brigade_comm::{CustomOp, Dtype, Op};

use crate::world::{TRANSPORTS, each_rank, over};

/// An operator that breaks its promise on one rank only.
struct Panics(bool);

impl CustomOp for Panics {
    fn name(&self) -> &str {
        "panics"
    }

    fn fold(&self, arriving: &[u8], accumulator: &mut [u8], _dtype: Dtype) {
        if self.0 {
            std::panic::resume_unwind(Box::new("an operator gives up"));
        }
        accumulator.copy_from_slice(arriving);
    }
}

/// The rank whose operator panicked, and the ranks that waited for it, get errors; nobody waits for
/// a call that nobody carries out any more.
#[test]
fn an_operator_that_panics_in_a_call_in_flight_is_an_error_on_every_rank() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let op = Op::Custom(Arc::new(Panics(member.rank() == 1)));
            let (mut one, mut two) = ([1u8; 100], [1u8; 100]);
            let outcome = member.scope(|scope| {
                let first = scope.all_reduce(&mut one, op.clone()).expect("a start");
                let second = scope.all_reduce(&mut two, Op::Sum).expect("a start");
                let first = first.wait();
                (first, second.wait().expect_err("the communicator is of no more use"))
            });
            outcome.expect_err("an operator panicked");
            assert!(member.barrier().is_err(), "{transport}: as if nothing had happened");
        });
    }
}

/// On the caller's own thread the panic goes through, and the communicator says what happened.
#[test]
fn an_operator_that_panics_in_a_blocking_call_is_an_error_on_every_other_rank() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            let op = Op::Custom(Arc::new(Panics(member.rank() == 1)));
            let mut data = [1u8; 100];
            let outcome =
                catch_unwind(AssertUnwindSafe(|| member.all_reduce(&mut data, op.clone())));
            match outcome {
                Err(_) => assert_eq!(member.rank(), 1),
                Ok(outcome) => {
                    outcome.and_then(|()| member.barrier()).expect_err("rank 1 gave up");
                }
            }
            let error = member.barrier().expect_err("the communicator is of no more use");
            let words =
                "rank 1 aborted: it panicked during all-reduce(u8 x 100, panics): an operator";
            assert!(error.to_string().starts_with(words), "{transport}: {error}");
        });
    }
}

/// A wire that says to have taken a byte more than it was offered, of a message in one piece with
/// its header and of a long one: nobody looks for that byte.
#[test]
fn a_wire_that_cannot_count_is_an_error_on_every_rank() {
    for count in [10, 100_000] {
        let panicked = each_rank(3, &over("loopback that lies at first"), move |member| {
            let mut data = vec![1u8; count];
            match catch_unwind(AssertUnwindSafe(|| member.all_reduce(&mut data, Op::Sum))) {
                Ok(outcome) => {
                    outcome.and_then(|()| member.barrier()).expect_err("one of them gave up");
                    false
                }
                Err(panic) => {
                    let why = panic.downcast_ref::<&str>().copied().unwrap_or_default();
                    assert_eq!(why, "a wire takes no more than it was offered");
                    let error = member.barrier().expect_err("the communicator is of no more use");
                    assert!(error.to_string().contains("panicked"), "{count}: {error}");
                    true
                }
            }
        });
        assert_eq!(panicked.iter().filter(|it| **it).count(), 1, "{count}: {panicked:?}");
    }
}
