//! Ranks that are processes and share a device: their kernels cannot wait for each other.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use brigade_comm::device::Way;
use brigade_comm::{Call, Communicator, Dtype, Op};
use brigade_cuda::{Context, Stream};
use brigade_schedule::Collective;

use super::world::{Rank, case, context, even, has_device, turn};

/// Says which way a rank of such a world must find; only ranks have it.
const WAY: &str = "TEST_DEVICE_WAY";

/// A variable for one rank, or for all.
type Variable<'a> = (Option<usize>, &'a str, &'a str);

/// Start this very test as ranks of a world, each a process.
fn start(test: &str, ranks: usize, way: &str, variables: &[Variable<'_>]) {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let root = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let program = std::env::current_exe().expect("a test has a path");
    let rank = |rank: usize| {
        let mut command = Command::new(&program);
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
fn be_a_rank(way: &str) {
    let comm = Communicator::from_env().expect("a world");
    let context = context(comm.rank());
    match way {
        "poor" => return be_without_memory(&comm, &context),
        "dies" => return be_with_one_that_dies(comm, &context),
        "fails" => return be_with_one_that_fails(comm, &context),
        _ => {}
    }
    let group = comm.on_device(&context).expect("a group on devices");
    let stream = Stream::new(&context).expect("a stream");
    let rank = Rank { group, comm, stream };
    rank.assert_way(match way {
        "met" => Way::Met,
        "linked" => Way::Linked,
        _ => Way::Staged,
    });
    let ranks = rank.comm.size();
    for collective in Collective::ALL {
        let collective = collective.with_root(1);
        let counts = if collective == Collective::Barrier { &[0][..] } else { &[1, 5, 9001] };
        for &count in counts {
            rank.check(&even(collective, Dtype::F32, Op::Sum, count, ranks), count as u64);
        }
    }
    let counts: Vec<usize> = (0..ranks).map(|rank| 1000 * rank).collect();
    rank.check(&case(Collective::AllGather, Dtype::Bf16, Op::Sum, counts), 3);
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

/// Whether the tests run on a device; says that it cannot fail by request.
fn is_real() -> bool {
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
