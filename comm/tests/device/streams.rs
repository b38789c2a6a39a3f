//! Calls in streams of somebody else, who may destroy them, and how groups end behind such calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use brigade_comm::{Call, Dtype, Error, Op, Settings};
use brigade_cuda::{CaptureMode, DeviceMemory, Stream};
use brigade_schedule::Collective;

use super::world::{Rank, context, has_device, ranks, turn};

/// Longer than the end of any group here takes.
const LONG: Duration = Duration::from_secs(8);

/// The same stream, as a program's own.
fn borrowed(stream: &Stream) -> Stream {
    // SAFETY: it is alive for as long as it is used.
    unsafe { Stream::borrowed(stream.context(), stream.raw()) }
}

/// Until what is told to end is gone.
fn wait(ended: &Receiver<()>) {
    let _ = ended.recv_timeout(2 * LONG);
}

/// One call on this memory.
fn enqueue(rank: &Rank, memory: &DeviceMemory, stream: &Stream) {
    let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, memory.bytes() / 4);
    let at = memory.address();
    // SAFETY: the memory is as long as the call, and outlives it.
    unsafe { rank.group.enqueue(&call, at, at, stream) }.expect("a call");
}

/// What is in other streams is somebody else's, and so is a capture, which forbids to all threads
/// what could disturb it.
#[test]
fn a_group_ends_behind_its_calls_beside_a_capture_and_what_never_ends() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(2, &Settings::default(), |rank| {
        let memory = rank.memory_of_each(&1_i32.to_le_bytes().repeat(10_000));
        let [foreign, captured] =
            [(); 2].map(|()| Stream::new(rank.group.context()).expect("a stream"));
        rank.comm.barrier().expect("a barrier");
        enqueue(rank, &memory, &borrowed(&rank.stream));
        let (end, ended) = channel::<()>();
        foreign.call(move || wait(&ended)).expect("a call");
        let captures = rank.comm.rank() == 0;
        if captures {
            captured.begin_capture(CaptureMode::Global).expect("a capture");
        }
        rank.comm.barrier().expect("a barrier");
        let begun = Instant::now();
        rank.group.close().expect("the end of the group");
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
        rank.comm.barrier().expect("a barrier");
        if captures {
            captured.end_capture().expect("a capture that nobody has spoilt");
        }
        drop(end);
        assert!(rank.bytes(&memory) == 2_i32.to_le_bytes().repeat(10_000));
        rank.comm.barrier().expect("a barrier");
    });
}

/// Nothing of it is freed then: a kernel may still look there.
#[test]
fn a_group_whose_calls_do_not_end_says_so_and_stays() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let free_bytes = || context(0).memory().expect("a number").0;
    let before = free_bytes();
    let settings = Settings { timeout: Duration::from_secs(1), ..Settings::default() };
    ranks(1, &settings, |rank| {
        let memory = rank.memory(&[1; 64]);
        // Kernels are loaded with the first one, which may wait for the device.
        enqueue(rank, &memory, &rank.stream);
        let (end, ended) = channel::<()>();
        rank.stream.call(move || wait(&ended)).expect("a call");
        enqueue(rank, &memory, &borrowed(&rank.stream));
        let begun = Instant::now();
        let error = rank.group.close().expect_err("what is before the call does not end");
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("its calls do not end"), "{error}");
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
        drop(end);
        rank.stream.synchronize().expect("its end");
    });
    assert!(brigade_cuda_fake::is_off() || free_bytes() < before, "the group's board is freed");
}

/// Whose graphs they are, and where they were launched, a group does not know.
#[test]
fn a_group_ends_behind_its_calls_in_graphs() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(2, &Settings::default(), |rank| {
        let memory = rank.memory_of_each(&1_i32.to_le_bytes().repeat(64));
        let stream = borrowed(&rank.stream);
        enqueue(rank, &memory, &stream);
        rank.group.mark(&stream).expect("a work").wait().expect("its end");
        rank.stream.begin_capture(CaptureMode::Thread).expect("a capture");
        enqueue(rank, &memory, &stream);
        let graph = rank.stream.end_capture().expect("a graph");
        let mut graph = graph.instantiate().expect("an executable");
        graph.upload(&rank.stream).expect("an upload");
        rank.comm.barrier().expect("a barrier");
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let late = || std::thread::sleep(Duration::from_millis(300));
        rank.stream.call(late).expect("a call");
        // SAFETY: as when it was captured.
        unsafe { graph.launch(&rank.stream) }.expect("a launch");
        rank.stream.call(move || done.store(true, Ordering::SeqCst)).expect("a call");
        rank.group.close().expect("the end of the group");
        assert!(is_done.load(Ordering::SeqCst), "the replay may not have begun");
        assert!(rank.bytes(&memory) == 4_i32.to_le_bytes().repeat(64));
        rank.comm.barrier().expect("a barrier");
        drop(graph);
        rank.comm.barrier().expect("a barrier");
    });
}
