//! Calls by their schedules, through slots: ranks for which an algorithm was named.

use std::time::{Duration, Instant};

use brigade_comm::device::{DeviceMessage, Way};
use brigade_comm::{Call, Dtype, Error, Op, Settings};
use brigade_cuda::{CaptureMode, DeviceMemory, Executable};
use brigade_schedule::{Algorithm, Collective};

use super::world::{Rank, case, even, has_device, ranks, turn};

/// Around packets, slots, windows and lanes.
const COUNTS: [usize; 5] = [1, 2049, 4099, 70_001, 600_000];

fn by(algorithm: Algorithm) -> Settings {
    Settings { algorithm: Some(algorithm), ..Settings::default() }
}

/// Run `body` on ranks whose calls go by schedules.
fn linked(count: usize, algorithm: Algorithm, body: impl Fn(&Rank) + Sync) {
    linked_with(count, &by(algorithm), body);
}

fn linked_with(count: usize, settings: &Settings, body: impl Fn(&Rank) + Sync) {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(count, settings, |rank| {
        rank.assert_way(Way::Linked);
        body(rank);
    });
}

fn check_all(count: usize, algorithm: Algorithm) {
    linked(count, algorithm, |rank| {
        for collective in Collective::ALL {
            let collective = collective.with_root(count as u32 - 1);
            let counts = if collective == Collective::Barrier { &[0][..] } else { &COUNTS };
            for (seed, &elems) in counts.iter().enumerate() {
                // A square of blocks is long enough with fewer elements.
                let elems = if collective.blocks(2) > 1 { elems / count } else { elems };
                rank.check(&even(collective, Dtype::F32, Op::Sum, elems, count), seed as u64);
            }
        }
    });
}

#[test]
fn two_ranks_by_halving() {
    check_all(2, Algorithm::Halving);
}

#[test]
fn three_ranks_by_rings() {
    check_all(3, Algorithm::Ring);
}

#[test]
fn five_ranks_by_trees() {
    check_all(5, Algorithm::DoubleTree);
}

#[test]
fn every_algorithm_passes_vectors_on() {
    for algorithm in Algorithm::all_for(Collective::AllReduce, 4) {
        linked(4, algorithm, |rank| {
            for elems in [5000, 300_001] {
                rank.check(&even(Collective::AllReduce, Dtype::F32, Op::Sum, elems, 4), 1);
            }
        });
    }
}

#[test]
fn blocks_of_different_lengths_pass_through_slots() {
    linked(3, Algorithm::Ring, |rank| {
        for counts in [vec![5, 0, 9000], vec![0, 70_001, 3], vec![1, 2, 3]] {
            for collective in [
                Collective::ReduceScatter,
                Collective::AllGather,
                Collective::Gather { root: 1 },
                Collective::Scatter { root: 2 },
            ] {
                rank.check(&case(collective, Dtype::I16, Op::Sum, counts.clone()), 7);
            }
        }
        let pairs = vec![1, 20_000, 0, 3, 4, 5, 0, 7, 150_001];
        rank.check(&case(Collective::AllToAll, Dtype::U8, Op::Sum, pairs), 8);
    });
}

#[test]
fn averages_and_factors_are_a_kernel_of_their_own() {
    linked(3, Algorithm::Ring, |rank| {
        for (dtype, op) in [
            (Dtype::F32, Op::Avg),
            (Dtype::I32, Op::Avg),
            (Dtype::F16, Op::PreMulSum(2.0)),
            (Dtype::Bf16, Op::Max),
            (Dtype::F8e5m2, Op::Min),
            (Dtype::U64, Op::Bxor),
        ] {
            for collective in [Collective::AllReduce, Collective::ReduceScatter] {
                rank.check(&even(collective, dtype, op.clone(), 20_001, 3), 9);
            }
        }
    });
}

/// All-reduces of so many numbers in this memory, which is waited for before it goes.
fn all_reduces<'a>(rank: &'a Rank, memory: &DeviceMemory, elems: usize) -> impl Fn() + use<'a> {
    let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, elems);
    let at = memory.address();
    // SAFETY: the memory is as long as the call, and outlives what is waited for.
    move || unsafe { rank.group.enqueue(&call, at, at, &rank.stream) }.unwrap()
}

/// Begin to capture such calls with the second one: first ones cannot be captured.
fn begin_capture(rank: &Rank, enqueue: impl Fn()) {
    enqueue();
    rank.group.mark(&rank.stream).unwrap().wait().unwrap();
    rank.stream.begin_capture(CaptureMode::Thread).unwrap();
    enqueue();
}

/// What was captured, once all ranks have theirs: making a graph launchable may wait for the
/// device, where nobody's replay may wait for this rank yet.
fn captured(rank: &Rank) -> Executable {
    let mut graph = rank.stream.end_capture().unwrap().instantiate().unwrap();
    graph.upload(&rank.stream).unwrap();
    rank.comm.barrier().unwrap();
    graph
}

#[test]
fn captured_calls_are_replayed_among_others() {
    linked(2, Algorithm::Ring, |rank| {
        let elems = 200_000;
        let values = |value: i32| -> Vec<u8> { value.to_le_bytes().repeat(elems) };
        let memory = rank.memory_of_each(&values(1));
        let enqueue = all_reduces(rank, &memory, elems);
        begin_capture(rank, &enqueue);
        enqueue();
        let mut graph = captured(rank);
        for _ in 0..3 {
            // SAFETY: as above.
            unsafe { graph.launch(&rank.stream) }.unwrap();
            enqueue();
        }
        rank.group.mark(&rank.stream).unwrap().wait().unwrap();
        assert!(rank.bytes(&memory) == values(1 << 10), "one call, then three times three");
        drop(graph);
        rank.free(vec![memory]);
    });
}

#[test]
fn messages_go_around_and_wait_for_no_other() {
    linked(4, Algorithm::Ring, |rank| {
        [0, 3, 100_003, 5_000_000].into_iter().for_each(|bytes| rank.pass_around(bytes));
    });
}

/// Each of many replays waits for a rank that is late, none of them for as long as it may.
#[test]
fn replays_that_wait_are_not_one_long_wait() {
    let settings = Settings { timeout: Duration::from_secs(2), ..by(Algorithm::Ring) };
    linked_with(2, &settings, |rank| {
        let memory = rank.memory_of_each(&[0; 40_000]);
        let enqueue = all_reduces(rank, &memory, 10_000);
        begin_capture(rank, &enqueue);
        let mut graph = captured(rank);
        for _ in 0..6 {
            if rank.comm.rank() == 1 {
                std::thread::sleep(Duration::from_millis(400));
            }
            // SAFETY: as above.
            unsafe { graph.launch(&rank.stream) }.unwrap();
        }
        rank.group.mark(&rank.stream).unwrap().wait().expect("all of them");
        drop(graph);
        rank.free(vec![memory]);
    });
}

/// Whole slots of both are equally long, and only there is one more of them.
#[test]
fn messages_of_different_lengths_are_told_apart() {
    linked(2, Algorithm::Ring, |rank| {
        let memory = rank.memory_of_each(&vec![0; 3 << 16]);
        let at = memory.address();
        let message = match rank.comm.rank() {
            0 => DeviceMessage::send(Dtype::U8, at, 2 << 16, 1),
            _ => DeviceMessage::recv(Dtype::U8, at, 3 << 16, 0),
        };
        // SAFETY: the memory is longer than the messages.
        let sent = unsafe { rank.group.messages(&[message], &rank.stream) };
        let ended = sent.and_then(|()| rank.group.mark(&rank.stream)?.wait());
        if rank.comm.rank() == 1 {
            let error = ended.expect_err("they differ");
            assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
            assert!(error.to_string().contains("a message of u8"), "{error}");
        }
    });
}

/// A pair's messages go on while both ranks' calls before and behind them do, in their order.
#[test]
fn messages_and_calls_share_their_slots() {
    linked(2, Algorithm::Ring, |rank| {
        let me = rank.comm.rank();
        let bytes = 1_000_000;
        let elems = bytes / 4;
        let sums = rank.memory(&1_i32.to_le_bytes().repeat(elems));
        let came = rank.memory_of_each(&vec![0; bytes]);
        let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, elems);
        for _ in 0..5 {
            let at = sums.address();
            let message = match me {
                0 => DeviceMessage::send(Dtype::U8, at, bytes, 1),
                _ => DeviceMessage::recv(Dtype::U8, came.address(), bytes, 0),
            };
            // SAFETY: the memory is as long as call and message, and outlives what is waited for.
            unsafe {
                rank.group.enqueue(&call, at, at, &rank.stream).unwrap();
                rank.group.messages(&[message], &rank.stream).unwrap();
            }
        }
        rank.group.mark(&rank.stream).unwrap().wait().unwrap();
        assert!(rank.bytes(&sums) == 32_i32.to_le_bytes().repeat(elems));
        assert!(me == 0 || rank.bytes(&came) == 32_i32.to_le_bytes().repeat(elems));
        rank.free(vec![sums, came]);
    });
}

#[test]
fn ranks_in_different_calls_are_told_apart() {
    linked(2, Algorithm::Ring, |rank| {
        let memory = rank.memory_of_each(&vec![0; 400_000]);
        let elems = [50_000, 60_000][rank.comm.rank()];
        let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, elems);
        let at = memory.address();
        // SAFETY: the memory is longer than the call.
        let ended = unsafe { rank.group.start(&call, at, at, &rank.stream) };
        let error = ended.and_then(|work| work.wait()).expect_err("they differ");
        let text = error.to_string();
        assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
        assert!(text.contains("0000, sum) by ring"), "{text}");
    });
}

#[test]
fn who_does_not_come_is_named() {
    let settings = Settings { timeout: Duration::from_secs(2), ..by(Algorithm::Ring) };
    linked_with(2, &settings, |rank| {
        let memory = rank.memory_of_each(&vec![0; 400_000]);
        let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 100_000);
        let at = memory.address();
        // SAFETY: the memory is as long as the call.
        let start = || unsafe { rank.group.start(&call, at, at, &rank.stream) };
        // Ranks meet for the first one.
        start().and_then(|work| work.wait()).expect("a call");
        if rank.comm.rank() == 1 {
            // Until rank 0 has given up.
            let begin = Instant::now();
            while rank.group.check().is_ok() && begin.elapsed() < Duration::from_secs(30) {
                std::thread::sleep(Duration::from_millis(20));
            }
            return;
        }
        let error = start().and_then(|work| work.wait()).expect_err("rank 1 sleeps");
        let text = error.to_string();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        assert!(text.contains("by ring") && text.contains("part from rank 1"), "{text}");
    });
}
