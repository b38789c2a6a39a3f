//! Ranks that are processes and share a device.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use brigade_cuda::DeviceMemory;

use super::library::{Address, F32, INVALID_USAGE, Nccl, REMOTE_ERROR, SUM, UniqueId};
use super::rank::{Rank, context, context_of, has_device, turn, unique_id};

/// A rank's number, their number, and the id; only ranks have it.
const RANK: &str = "TEST_NCCL_RANK";
/// Seconds that ranks may take: at 60 the library gives up any wait of its own, and says which rank
/// waited for which, at which step of which call.
const LIMIT_S: &str = "150";

/// Start this very test as ranks, each a process; or be one of them.
fn test(name: &str, worlds: &[usize], body: fn(Rank)) {
    test_on(1, name, worlds, body);
}

/// The same where ranks take so many devices in turn.
fn test_on(devices: usize, name: &str, worlds: &[usize], body: fn(Rank)) {
    if let Ok(given) = std::env::var(RANK) {
        let words: Vec<&str> = given.split(' ').collect();
        let [rank, ranks, id] = words[..] else { panic!("{given}") };
        let byte = |at: usize| u8::from_str_radix(&id[2 * at..2 * at + 2], 16).expect("hex");
        let id = UniqueId(std::array::from_fn(byte));
        let (rank, ranks) = (rank.parse().expect("a rank"), ranks.parse().expect("ranks"));
        return body(Rank::join(&context_of(rank % devices), id, rank, ranks));
    }
    if !has_device() {
        return;
    }
    let _turn = turn();
    for &ranks in worlds {
        let id: String = unique_id().0.iter().map(|byte| format!("{byte:02x}")).collect();
        let program = std::env::current_exe().expect("a test has a path");
        let start = |rank: usize| {
            // Should one stand still where the library's own deadline does not end it.
            let mut command = Command::new("timeout");
            command.args(["--kill-after=5", LIMIT_S]).arg(&program);
            command.args(["--exact", &format!("processes::{name}"), "--nocapture"]);
            command.env(RANK, format!("{rank} {ranks} {id}"));
            if !brigade_cuda_fake::is_off() {
                command.env("BRIGADE_TIMEOUT_MS", "60000");
            }
            command.env("BRIGADE_FAKE_CUDA_DEVICES", devices.to_string());
            command.envs(brigade_cuda_fake::environment());
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("a process")
        };
        let children: Vec<_> = (0..ranks).map(start).collect();
        let ends: Vec<_> = children.into_iter().map(|child| child.wait_with_output()).collect();
        // Every rank says where it stood, whoever failed first.
        let told = |(rank, output): (usize, std::io::Result<Output>)| {
            let Output { status, stdout, stderr } = output.expect("the end of a process");
            let [out, text] = [stdout, stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
            let failed = !status.success();
            failed.then(|| format!("rank {rank} of {ranks}, {status}: {text}\n{out}\n"))
        };
        let failed: String = ends.into_iter().enumerate().filter_map(told).collect();
        assert!(failed.is_empty(), "{failed}");
    }
}

/// Set where a test is a process that has opened no driver yet.
const ALONE: &str = "TEST_NCCL_ALONE";

#[test]
fn a_communicator_older_than_the_driver_takes_no_memory_of_devices() {
    if std::env::var_os(ALONE).is_none() {
        if has_device() {
            let _turn = turn();
            let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
            let name = "a_communicator_older_than_the_driver_takes_no_memory_of_devices";
            command.args(["--exact", &format!("processes::{name}")]).env(ALONE, "1");
            let output = command.envs(brigade_cuda_fake::environment()).output();
            let output = output.expect("a process");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
        }
        return;
    }
    let (nccl, mut comm, mut host) = (Nccl::get(), 0, [1.0_f32; 4]);
    // SAFETY: there is room for it.
    nccl.ok(unsafe { (nccl.init_rank)(&mut comm, 1, unique_id(), 0) });
    let memory = DeviceMemory::new(&context(), 64).expect("memory");
    let (on_device, on_host) = (memory.address() as Address, host.as_mut_ptr().expose_provenance());
    // SAFETY: the first two are refused, and the last one has been carried out when it returns.
    unsafe {
        let result = (nccl.all_reduce)(on_device, on_device, 16, F32, SUM, comm, 0);
        nccl.refused(result, INVALID_USAGE, "used no devices when");
        let result = (nccl.bcast)(on_device, 16, F32, 0, comm, 0);
        nccl.refused(result, INVALID_USAGE, "used no devices when");
        nccl.ok((nccl.all_reduce)(on_host, on_host, 4, F32, SUM, comm, 0));
        nccl.ok((nccl.destroy)(comm));
    }
    assert_eq!(host, [1.0; 4]);
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

/// Each process frees its part of the communicator when no other one has that open.
#[test]
fn processes_with_devices_of_their_own_finalize() {
    if brigade_cuda_fake::is_off() {
        eprintln!("skipped: as many devices as ranks are the fake's");
        return;
    }
    test_on(3, "processes_with_devices_of_their_own_finalize", &[3], |rank| {
        let (nccl, comm, me) = (rank.nccl, rank.comm, rank.rank);
        let free_bytes = || context_of(me).memory().expect("a number").0;
        let before = free_bytes();
        if me == 1 {
            std::thread::sleep(Duration::from_millis(2500));
        }
        let start = Instant::now();
        // SAFETY: nothing is called on it afterwards.
        unsafe {
            nccl.ok((nccl.finalize)(comm));
            let waited = start.elapsed();
            assert!(me == 1 || waited > Duration::from_millis(500), "{waited:?}");
            nccl.ok((nccl.destroy)(comm));
        }
        assert!(free_bytes() > before + (4 << 20), "an inbox is longer than that");
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
