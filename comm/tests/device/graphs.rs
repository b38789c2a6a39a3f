//! Calls in graphs: nothing waits on the host, and a replay is a call like any other.

use std::sync::Arc;

use brigade_comm::{Call, CustomOp, Dtype, Error, Op, Settings};
use brigade_cuda::CaptureMode;
use brigade_schedule::Collective;

use super::world::{has_device, ranks, turn};

#[test]
fn calls_are_captured_and_replayed_among_others() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(2, &Settings::default(), |rank| {
        for elems in [3, 40_000] {
            let values =
                |value: i32| -> Vec<u8> { (0..elems).flat_map(|_| value.to_le_bytes()).collect() };
            let memory = rank.memory_of_each(&values(1));
            let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, elems);
            let at = memory.address();
            let enqueue = || {
                // SAFETY: the memory is as long as the call, and outlives what is waited for.
                unsafe { rank.group.enqueue(&call, at, at, &rank.stream) }.unwrap();
            };
            enqueue();
            rank.group.mark(&rank.stream).unwrap().wait().unwrap();
            rank.stream.begin_capture(CaptureMode::Thread).unwrap();
            enqueue();
            enqueue();
            let graph = rank.stream.end_capture().unwrap();
            assert_eq!(graph.nodes().unwrap(), 2);
            let mut graph = graph.instantiate().unwrap();
            graph.upload(&rank.stream).unwrap();
            // It may wait for the device, where nobody's replay may wait for us yet.
            rank.comm.barrier().unwrap();
            for _ in 0..3 {
                // SAFETY: as above.
                unsafe { graph.launch(&rank.stream) }.unwrap();
                enqueue();
            }
            rank.group.mark(&rank.stream).unwrap().wait().unwrap();
            // One call, then three times three: each doubles.
            assert_eq!(rank.bytes(&memory), values(1 << 10), "{elems} elements");
            drop(graph);
            rank.free(vec![memory]);
        }
    });
}

#[test]
fn a_first_call_is_not_captured() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(2, &Settings::default(), |rank| {
        let memory = rank.memory_of_each(&[1; 64]);
        let call = Call::new(Collective::AllReduce, Dtype::U64, Op::Bxor, 8);
        rank.stream.begin_capture(CaptureMode::Thread).unwrap();
        let at = memory.address();
        // SAFETY: the memory is as long as the call; nothing is enqueued.
        let refused = unsafe { rank.group.enqueue(&call, at, at, &rank.stream) };
        rank.stream.end_capture().unwrap();
        let Err(Error::Invalid { what }) = refused else { panic!("{refused:?}") };
        assert!(what.contains("cannot be captured"), "{what}");
    });
}

/// A function of the user's, which the host runs.
pub(crate) struct Exclusive;

impl CustomOp for Exclusive {
    fn name(&self) -> &str {
        "exclusive"
    }

    fn fold(&self, arriving: &[u8], accumulator: &mut [u8], _dtype: Dtype) {
        accumulator.iter_mut().zip(arriving).for_each(|(to, from)| *to ^= from);
    }
}

#[test]
fn a_call_that_the_host_carries_out_is_not_captured_and_spoils_no_capture() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(2, &Settings::default(), |rank| {
        let memory = rank.memory_of_each(&[1 + rank.comm.rank() as u8; 64]);
        let op = Op::Custom(Arc::new(Exclusive));
        let call = Call::new(Collective::AllReduce, Dtype::U8, op, 64);
        let at = memory.address();
        // SAFETY: the memory is as long as the call, which is done when this returns.
        let run = || unsafe { rank.group.enqueue(&call, at, at, &rank.stream) };
        rank.stream.begin_capture(CaptureMode::Thread).unwrap();
        let refused = run();
        rank.stream.end_capture().expect("a capture that nobody spoilt");
        let Err(Error::Invalid { what }) = refused else { panic!("{refused:?}") };
        assert!(what.contains("cannot be captured"), "{what}");
        run().expect("the call");
        assert_eq!(rank.bytes(&memory), [3; 64]);
        rank.free(vec![memory]);
    });
}
