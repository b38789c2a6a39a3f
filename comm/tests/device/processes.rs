//! Ranks that are processes and share a device: their kernels cannot wait for each other.

use std::process::{Command, Stdio};

use brigade_comm::device::Way;
use brigade_comm::{Communicator, Dtype, Op};
use brigade_cuda::Stream;
use brigade_schedule::Collective;

use super::world::{Rank, case, context, even, has_device, turn};

/// Says which way a rank of such a world must find; only ranks have it.
const WAY: &str = "TEST_DEVICE_WAY";

/// Start this very test as ranks of a world, each a process.
fn start(test: &str, ranks: usize, way: &str, variables: &[(&str, &str)]) {
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
        command.envs(brigade_cuda_fake::environment()).envs(variables.iter().copied());
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
    let group = comm.on_device(&context).expect("a group on devices");
    let stream = Stream::new(&context).expect("a stream");
    let rank = Rank { group, comm, stream };
    rank.assert_way(if way == "met" { Way::Met } else { Way::Staged });
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

fn test(name: &str, ranks: usize, way: &str, variables: &[(&str, &str)]) {
    match std::env::var(WAY) {
        Ok(way) => be_a_rank(&way),
        Err(_) => start(&format!("processes::{name}"), ranks, way, variables),
    }
}

#[test]
fn processes_meet_around_their_kernels() {
    test("processes_meet_around_their_kernels", 3, "met", &[]);
}

#[test]
fn where_peers_are_broken_the_host_carries_everything() {
    let broken = [("BRIGADE_FAKE_CUDA_PEERS", "broken")];
    test("where_peers_are_broken_the_host_carries_everything", 2, "staged", &broken);
}
