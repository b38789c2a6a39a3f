//! Ranks that are processes and share a device.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::library::{F32, REMOTE_ERROR, SUM, UniqueId};
use super::rank::{Rank, context, has_device, turn, unique_id};

/// A rank's number, their number, and the id; only ranks have it.
const RANK: &str = "TEST_NCCL_RANK";

/// Start this very test as ranks, each a process; or be one of them.
fn test(name: &str, worlds: &[usize], body: fn(Rank)) {
    if let Ok(given) = std::env::var(RANK) {
        let words: Vec<&str> = given.split(' ').collect();
        let [rank, ranks, id] = words[..] else { panic!("{given}") };
        let byte = |at: usize| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).expect("hex");
        let id = UniqueId(std::array::from_fn(byte));
        let (rank, ranks) = (rank.parse().expect("a rank"), ranks.parse().expect("ranks"));
        return body(Rank::join(&context(), id, rank, ranks));
    }
    if !has_device() {
        return;
    }
    let _turn = turn();
    for &ranks in worlds {
        let id: String = unique_id().0.iter().map(|byte| format!("{byte:02x}")).collect();
        let program = std::env::current_exe().expect("a test has a path");
        let start = |rank: usize| {
            let mut command = Command::new(&program);
            command.args(["--exact", &format!("processes::{name}"), "--nocapture"]);
            command.env(RANK, format!("{rank} {ranks} {id}"));
            command.env("BRIGADE_TIMEOUT_MS", "60000");
            command.envs(brigade_cuda_fake::environment());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("a process")
        };
        let children: Vec<_> = (0..ranks).map(start).collect();
        let ends: Vec<_> = children.into_iter().map(|child| child.wait_with_output()).collect();
        for (rank, output) in ends.into_iter().enumerate() {
            let output = output.expect("the end of a process");
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "rank {rank} of {ranks}: {text}");
        }
    }
}

#[test]
fn processes_on_one_device_make_every_call() {
    test("processes_on_one_device_make_every_call", &[2, 4], |mut rank| {
        for count in [1, 1000, 20_000] {
            rank.collectives(count);
        }
        rank.leave(|| {});
    });
}

#[test]
fn a_process_that_aborts_is_an_error_to_the_others() {
    test("a_process_that_aborts_is_an_error_to_the_others", &[2], |mut rank| {
        rank.collectives(100);
        let (nccl, comm, start) = (rank.nccl, rank.comm, Instant::now());
        if rank.rank == 1 {
            std::thread::sleep(Duration::from_millis(100));
            // SAFETY: nobody calls it any more.
            return nccl.ok(unsafe { (nccl.abort)(comm) });
        }
        let (from, to) = (rank.input(), rank.output());
        // SAFETY: the buffers are longer than the call.
        let result = unsafe { (nccl.all_reduce)(from, to, 9000, F32, SUM, comm, rank.raw()) };
        nccl.refused(result, REMOTE_ERROR, "abort");
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        rank.leave(|| {});
    });
}
