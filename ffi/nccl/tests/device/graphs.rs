//! Calls in graphs, which programs for NCCL capture and launch again and again.

use std::sync::Barrier;

use brigade_cuda::CaptureMode;

use super::library::{F32, INVALID_ARGUMENT, SUM};
use super::rank::{Rank, brings};
use super::threads::ranks;

/// Elements of a call that is one step, and of one that is several.
const LENGTHS: [usize; 2] = [100, 20_000];

/// Capture what `calls` enqueues, launch it three times among calls of the same kind, and tell how
/// many nodes the graph had.
fn replay(rank: &mut Rank, all: &Barrier, calls: impl Fn(&Rank)) -> usize {
    calls(rank);
    rank.stream.synchronize().expect("the stream ends");
    rank.stream.begin_capture(CaptureMode::Thread).expect("a capture begins");
    calls(rank);
    let graph = rank.stream.end_capture().expect("nothing spoilt it");
    let nodes = graph.nodes().expect("a number");
    let mut graph = graph.instantiate().expect("a graph");
    graph.upload(&rank.stream).expect("it is there");
    // It may wait for the device, where nobody's replay may wait for us yet.
    all.wait();
    for _ in 0..3 {
        // SAFETY: the buffers outlive the stream's end, which is waited for below.
        unsafe { graph.launch(&rank.stream) }.expect("a launch");
        calls(rank);
    }
    rank.stream.synchronize().expect("the stream ends");
    nodes
}

#[test]
fn calls_are_captured_and_replayed_among_others() {
    ranks(2, |rank, all| {
        for count in LENGTHS {
            let numbers = brings(0, count);
            rank.write_output(&numbers);
            let nodes = replay(rank, all, |rank| {
                let (at, raw) = (rank.output(), rank.raw());
                // SAFETY: the buffer is longer than the call, and waited for.
                let result =
                    unsafe { (rank.nccl.all_reduce)(at, at, count, F32, SUM, rank.comm, raw) };
                rank.nccl.ok(result);
            });
            // One before, and three times two: each doubles.
            let wanted: Vec<f32> = numbers.iter().map(|number| number * 128.0).collect();
            assert_eq!((nodes, rank.result(count)), (1, wanted), "{count} elements");
            all.wait();
        }
    });
}

#[test]
fn a_group_of_calls_and_messages_is_captured_as_a_whole() {
    ranks(2, |rank, all| {
        let (own, peer) = (rank.rank, 1 - rank.rank);
        rank.write(&brings(own, 1000));
        let nodes = replay(rank, all, |rank| {
            let (nccl, comm, raw, to) = (rank.nccl, rank.comm, rank.raw(), peer as i32);
            let (from, at) = (rank.input(), rank.output());
            // SAFETY: the buffers are longer than the calls, and waited for.
            unsafe {
                nccl.ok((nccl.group_start)());
                nccl.ok((nccl.all_gather)(from, at, 500, F32, comm, raw));
                nccl.ok((nccl.send)(from, 1000, F32, to, comm, raw));
                nccl.ok((nccl.recv)(at + 4000, 1000, F32, to, comm, raw));
                nccl.ok((nccl.group_end)());
            }
        });
        let halves = [brings(0, 500), brings(1, 500)].concat();
        assert_eq!(rank.result(2000), [halves, brings(peer, 1000)].concat());
        assert_eq!(nodes, 2);
        all.wait();
    });
}

/// It loads kernels, which no graph can hold; and the communicator goes on.
#[test]
fn a_first_call_of_a_kind_is_not_captured() {
    ranks(2, |rank, all| {
        const U64: i32 = 5;
        const MIN: i32 = 3;
        rank.stream.begin_capture(CaptureMode::Thread).expect("a capture begins");
        let (nccl, at, raw) = (rank.nccl, rank.output(), rank.raw());
        // SAFETY: it is refused.
        let result = unsafe { (nccl.all_reduce)(at, at, 8, U64, MIN, rank.comm, raw) };
        nccl.refused(result, INVALID_ARGUMENT, "cannot be captured");
        rank.stream.end_capture().expect("nothing spoilt it");
        all.wait();
        rank.collectives(10);
    });
}
