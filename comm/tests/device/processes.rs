//! Ranks that are processes and share a device: their kernels cannot wait for each other.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use brigade_comm::device::{DeviceMessage, Way};
use brigade_comm::launch::Launch;
use brigade_comm::{Call, Communicator, Dtype, Op};
use brigade_cuda::{CaptureMode, Context, Stream};
use brigade_schedule::Collective;

use super::world::{Rank, case, context, even, has_device, join, turn};

/// Says which way a rank of such a world must find; only ranks have it.
pub(crate) const WAY: &str = "TEST_DEVICE_WAY";

/// A variable for one rank, or for all.
pub(crate) type Variable<'a> = (Option<usize>, &'a str, &'a str);

/// Start this very test as ranks of a world, each a process.
pub(crate) fn start(test: &str, ranks: usize, way: &str, variables: &[Variable<'_>]) {
    start_by(test, ranks, way, variables, &|_, program| Command::new(program));
}

/// The same by commands that have a rank run a program.
pub(crate) fn start_by(
    test: &str,
    ranks: usize,
    way: &str,
    variables: &[Variable<'_>],
    command: &dyn Fn(usize, &Path) -> Command,
) {
    if !has_device() {
        return;
    }
    let _turn = turn();
    // Below the ports that are given to whoever asks for any.
    let root = format!("127.0.0.1:{}", 14_000 + std::process::id() % 12_000);
    let program = std::env::current_exe().expect("a test has a path");
    let rank = |rank: usize| {
        let mut command = command(rank, &program);
        command.args(["--exact", test, "--nocapture"]).env(WAY, way);
        command.env("BRIGADE_RANK", rank.to_string());
        command.env("BRIGADE_WORLD_SIZE", ranks.to_string());
        command.env("BRIGADE_ROOT", &root).env("BRIGADE_SECRET", "of a test");
        command.envs(brigade_cuda_fake::environment());
        let ours = variables.iter().filter(|(of, ..)| of.is_none_or(|of| of == rank));
        command.envs(ours.map(|(_, name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("a process")
    };
    let children: Vec<_> = (0..ranks).map(rank).collect();
    let outputs: Vec<_> = children.into_iter().map(|child| child.wait_with_output()).collect();
    for (rank, output) in outputs.into_iter().enumerate() {
        let output = output.expect("the end of a process");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rank {rank} of {root}: {text}");
    }
}

/// What every rank does.
pub(crate) fn be_a_rank(way: &str) {
    if way == "mixed" {
        return be_two_ranks();
    }
    let comm = Communicator::from_env().expect("a world");
    let context = context(comm.rank());
    match way {
        "poor" => return be_without_memory(&comm, &context),
        "dies" => return be_with_one_that_dies(comm, &context),
        "fails" => return be_with_one_that_fails(comm, &context),
        "dies in a kernel" => return be_with_one_that_dies_in_a_kernel(comm, &context),
        "captures" => return be_captured(comm, &context),
        "lends" => return super::lending::be_one_that_lends(comm, &context),
        _ => {}
    }
    let begin = Instant::now();
    let group = comm.on_device(&context).expect("a group on devices");
    // No way that does not work is tried until a deadline.
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    let stream = Stream::new(&context).expect("a stream");
    let rank = Rank { group, comm, stream };
    rank.assert_way(match way {
        "met" => Way::Met,
        "linked" => Way::Linked,
        _ => Way::Staged,
    });
    check_all(&rank, &[1, 5, 9001]);
}

/// Two threads of this process are ranks on one device, beside those of another process on theirs.
fn be_two_ranks() {
    let launch = Launch::discover().expect("a world");
    let process = launch.rank;
    let be = |thread: usize| {
        let launch = Launch { rank: 2 * process + thread, ranks: 4, ..launch.clone() };
        let rank = join(launch, process);
        rank.assert_way(Way::Linked);
        assert!(rank.group.shares_device());
        check_all(&rank, &[3001]);
        rank
    };
    let both = std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| scope.spawn(move || be(thread)));
        threads.map(|thread| thread.join().expect("a rank"))
    });
    // One thread ends both groups, one after the other, as programs do that have several ranks.
    let begin = Instant::now();
    both.iter().for_each(|rank| rank.group.close().expect("the end of a group"));
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

/// Calls of every kind, and messages.
fn check_all(rank: &Rank, lengths: &[usize]) {
    let ranks = rank.comm.size();
    for collective in Collective::ALL {
        let collective = collective.with_root(1);
        let counts = if collective == Collective::Barrier { &[0] } else { lengths };
        for &count in counts {
            rank.check(&even(collective, Dtype::F32, Op::Sum, count, ranks), count as u64);
        }
    }
    let counts: Vec<usize> = (0..ranks).map(|rank| 1000 * rank).collect();
    rank.check(&case(Collective::AllGather, Dtype::Bf16, Op::Sum, counts), 3);
    let me = rank.comm.rank();
    let (left, right) = ((me + ranks - 1) % ranks, (me + 1) % ranks);
    let (out, into) = (rank.memory(&[me as u8; 100_003]), rank.memory(&[99; 100_003]));
    let list = [
        DeviceMessage::send(Dtype::U8, out.address(), 100_003, right),
        DeviceMessage::recv(Dtype::U8, into.address(), 100_003, left),
    ];
    rank.comm.barrier().expect("a barrier");
    // SAFETY: each message has memory of its own, of its length.
    unsafe { rank.group.messages(&list, &rank.stream) }.expect("messages");
    rank.group.mark(&rank.stream).expect("a mark").wait().expect("their end");
    assert!(rank.bytes(&into) == [left as u8; 100_003]);
    rank.free(vec![out, into]);
}

/// Rank 1 ends without a word while rank 0's kernel waits for it: rank 0 is told soon.
fn be_with_one_that_dies_in_a_kernel(comm: Communicator, context: &Context) {
    let group = comm.on_device(context).expect("a group on devices");
    let stream = Stream::new(context).expect("a stream");
    let rank = Rank { group, comm, stream };
    rank.assert_way(Way::Linked);
    let memory = rank.memory(&[0; 20_000]);
    let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, 5000);
    let at = memory.address();
    // SAFETY: the memory is as long as the call.
    let start = || unsafe { rank.group.start(&call, at, at, &rank.stream) };
    // Ranks meet for the first one.
    start().and_then(|work| work.wait()).expect("a call of both");
    rank.comm.barrier().expect("a barrier");
    if rank.comm.rank() == 1 {
        std::process::exit(0);
    }
    let begin = Instant::now();
    // Where rank 0 is slow it hears of it before its kernel is on its way.
    let error = start().and_then(|work| work.wait()).expect_err("rank 1 is lost");
    assert!(error.to_string().contains("rank 1"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

/// Calls are captured, and replayed while the other process may be a replay ahead.
fn be_captured(comm: Communicator, context: &Context) {
    let group = comm.on_device(context).expect("a group on devices");
    let stream = Stream::new(context).expect("a stream");
    let rank = Rank { group, comm, stream };
    rank.assert_way(Way::Linked);
    // One in packets, one through slots.
    let lengths = [5, 10_000];
    let memory = lengths.map(|elems| rank.memory(&1_i32.to_le_bytes().repeat(elems)));
    let enqueue = || {
        for (memory, elems) in memory.iter().zip(lengths) {
            let call = Call::new(Collective::AllReduce, Dtype::I32, Op::Sum, elems);
            let at = memory.address();
            // SAFETY: the memory is as long as the call, and outlives what is waited for.
            unsafe { rank.group.enqueue(&call, at, at, &rank.stream) }.expect("a call");
        }
    };
    enqueue();
    rank.stream.begin_capture(CaptureMode::Thread).expect("a capture");
    enqueue();
    enqueue();
    let graph = rank.stream.end_capture().expect("a capture's end");
    let mut graph = graph.instantiate().expect("a graph");
    for _ in 0..4 {
        // SAFETY: as above.
        unsafe { graph.launch(&rank.stream) }.expect("a replay");
        enqueue();
    }
    rank.group.mark(&rank.stream).expect("a mark").wait().expect("the end");
    for (memory, elems) in memory.iter().zip(lengths) {
        let wanted = 1_i32 << 13;
        assert!(rank.bytes(memory) == wanted.to_le_bytes().repeat(elems), "{elems} elements");
    }
    drop(graph);
    rank.free(memory.into());
}

/// Rank 1 has no memory on its device: all ranks hear of it.
fn be_without_memory(comm: &Communicator, context: &Context) {
    let error = comm.on_device(context).map(drop).expect_err("no group").to_string();
    let wanted = ["rank 1 could not open its device", "CUDA_ERROR_OUT_OF_MEMORY"][comm.rank()];
    assert!(error.contains(wanted), "rank {}: {error}", comm.rank());
}

/// Rank 1 ends without a word: the other one is told soon.
fn be_with_one_that_dies(comm: Communicator, context: &Context) {
    let group = comm.on_device(context).expect("a group on devices");
    if comm.rank() == 1 {
        std::process::exit(0);
    }
    let stream = Stream::new(context).expect("a stream");
    let rank = Rank { group, comm, stream };
    let memory = rank.memory(&[1; 4000]);
    let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 1000);
    let (begin, at) = (Instant::now(), memory.address());
    // SAFETY: the memory is as long as the call.
    let ended = unsafe { rank.group.enqueue(&call, at, at, &rank.stream) };
    let error = ended.expect_err("rank 1 is lost");
    assert!(error.to_string().contains("rank 1"), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

/// The first kernel of rank 1 fails, between two meetings: the other one is told, and not left in
/// the second.
fn be_with_one_that_fails(comm: Communicator, context: &Context) {
    let group = comm.on_device(context).expect("a group on devices");
    let stream = Stream::new(context).expect("a stream");
    let rank = Rank { group, comm, stream };
    let memory = rank.memory(&[0; 4000]);
    let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 1000);
    let (begin, at) = (Instant::now(), memory.address());
    // SAFETY: the memory is as long as the call.
    let run = || unsafe { rank.group.enqueue(&call, at, at, &rank.stream) };
    let error = run().expect_err("a launch fails").to_string();
    let wanted = ["another rank could not carry it out", "CUDA_ERROR_INVALID_VALUE"];
    assert!(error.contains(wanted[rank.comm.rank()]), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
    run().expect("the next call");
    rank.free(vec![memory]);
}

fn test(name: &str, ranks: usize, way: &str, variables: &[Variable<'_>]) {
    match std::env::var(WAY) {
        Ok(way) => be_a_rank(&way),
        Err(_) => start(&format!("processes::{name}"), ranks, way, variables),
    }
}

/// Run `be` in processes, each a rank, which all run the test of this name.
pub(crate) fn in_processes(
    name: &str,
    ranks: usize,
    variables: &[Variable<'_>],
    be: impl FnOnce(Communicator, Context),
) {
    if !is_rank() {
        return start(name, ranks, "its own", variables);
    }
    let comm = Communicator::from_env().expect("a world");
    let context = context(comm.rank());
    be(comm, context);
}

/// Whether this process is a rank, and not the test that starts them.
pub(crate) fn is_rank() -> bool {
    std::env::var_os(WAY).is_some()
}

/// Whether the tests run on a device; says that it cannot fail by request.
pub(crate) fn is_real() -> bool {
    let is_off = std::env::var("BRIGADE_FAKE_CUDA").is_ok_and(|value| value == "off");
    if is_off {
        eprintln!("skipped: a real device does not fail by request");
    }
    is_off
}

#[test]
fn processes_meet_around_their_kernels() {
    test("processes_meet_around_their_kernels", 3, "met", &[]);
}

#[test]
fn processes_with_devices_of_their_own_are_linked() {
    if is_real() {
        return;
    }
    let devices = [(None, "BRIGADE_FAKE_CUDA_DEVICES", "3")];
    test("processes_with_devices_of_their_own_are_linked", 3, "linked", &devices);
}

/// Two devices, of which each process has one.
pub(crate) const TWO_DEVICES: Variable<'static> = (None, "BRIGADE_FAKE_CUDA_DEVICES", "2");

#[test]
fn threads_that_share_a_device_are_linked_with_those_of_another_process() {
    if is_real() {
        return;
    }
    let name = "threads_that_share_a_device_are_linked_with_those_of_another_process";
    test(name, 2, "mixed", &[TWO_DEVICES]);
}

#[test]
fn processes_capture_their_calls() {
    if is_real() {
        return;
    }
    test("processes_capture_their_calls", 2, "captures", &[TWO_DEVICES]);
}

#[test]
fn a_rank_that_dies_in_a_kernel_is_told_to_the_others() {
    if is_real() {
        return;
    }
    let name = "a_rank_that_dies_in_a_kernel_is_told_to_the_others";
    test(name, 2, "dies in a kernel", &[TWO_DEVICES]);
}

#[test]
fn where_a_rank_has_no_room_for_an_inbox_all_meet() {
    if is_real() {
        return;
    }
    // Its board is the first that it asks for.
    let fault = (Some(1), "BRIGADE_FAKE_CUDA_FAULTS", "cuMemAlloc_v2@2=2");
    let variables = [(None, "BRIGADE_FAKE_CUDA_DEVICES", "3"), fault];
    test("where_a_rank_has_no_room_for_an_inbox_all_meet", 3, "met", &variables);
}

#[test]
fn where_a_rank_cannot_open_an_inbox_all_meet() {
    if is_real() {
        return;
    }
    let fault = (Some(0), "BRIGADE_FAKE_CUDA_FAULTS", "cuIpcOpenMemHandle_v2@1=217");
    test("where_a_rank_cannot_open_an_inbox_all_meet", 2, "met", &[TWO_DEVICES, fault]);
}

#[test]
fn where_no_memory_can_be_opened_the_host_carries_everything() {
    if is_real() {
        return;
    }
    let fault = [(None, "BRIGADE_FAKE_CUDA_FAULTS", "cuIpcOpenMemHandle_v2=801")];
    test("where_no_memory_can_be_opened_the_host_carries_everything", 2, "staged", &fault);
}

#[test]
fn no_kernel_waits_where_what_is_written_to_peers_does_not_arrive() {
    if is_real() {
        return;
    }
    let broken = (None, "BRIGADE_FAKE_CUDA_PEERS", "broken");
    let name = "no_kernel_waits_where_what_is_written_to_peers_does_not_arrive";
    test(name, 2, "staged", &[TWO_DEVICES, broken]);
}

#[test]
fn where_peers_are_broken_the_host_carries_everything() {
    if is_real() {
        return;
    }
    let broken = [(None, "BRIGADE_FAKE_CUDA_PEERS", "broken")];
    test("where_peers_are_broken_the_host_carries_everything", 2, "staged", &broken);
}

#[test]
fn a_rank_without_memory_is_told_to_all() {
    if is_real() {
        return;
    }
    let fault = [(Some(1), "BRIGADE_FAKE_CUDA_FAULTS", "cuMemAlloc_v2@1=2")];
    test("a_rank_without_memory_is_told_to_all", 2, "poor", &fault);
}

#[test]
fn a_rank_that_dies_is_told_to_the_others() {
    test("a_rank_that_dies_is_told_to_the_others", 2, "dies", &[]);
}

#[test]
fn a_rank_whose_kernel_fails_is_told_to_the_others() {
    if is_real() {
        return;
    }
    let fault = [(Some(1), "BRIGADE_FAKE_CUDA_FAULTS", "cuLaunchKernel@1=1")];
    test("a_rank_whose_kernel_fails_is_told_to_the_others", 2, "fails", &fault);
}
