//! That a kernel in which something is out of order is found out, and one in which nothing is.

use brigade_cuda::nvrtc::{self, Source};
use brigade_cuda::{Arg, Context, Cuda, DeviceMemory, Event, Function, Launch, Stream};
use brigade_cuda_fake::{has_device, races, watched};
use std::process::Command;
use std::time::Duration;

/// Threads of one block, and two blocks. The words in capitals are what puts them in order.
const KERNELS: &str = r#"
#include "brigade.cuh"

extern "C" __global__ void neighbours(u32 *into) {
    __shared__ u32 mine[64];
    mine[threadIdx.x] = threadIdx.x;
    BARRIER;
    into[threadIdx.x] = mine[(threadIdx.x + 1) % 64];
}

extern "C" __global__ void lanes(u32 *into) {
    __shared__ u32 mine[64];
    mine[threadIdx.x] = threadIdx.x;
    BARRIER;
    into[threadIdx.x] = mine[threadIdx.x ^ 1];
}

// Once more over the same shared memory, so that a barrier is owed behind what was read, too.
extern "C" __global__ void again(u32 *into) {
    __shared__ u32 mine[64];
    u32 sum = 0;
    for (u32 turn = 0; turn < 2; turn++) {
        mine[threadIdx.x] = turn;
        __syncthreads();
        sum += mine[(threadIdx.x + 1) % 64];
        BARRIER;
    }
    into[threadIdx.x] = sum;
}

extern "C" __global__ void blocks(u32 *into) {
    u32 *flag = into + 64, *number = into + 65;
    if (threadIdx.x != 0) return;
    if (blockIdx.x == 0) {
        *number = 7;
        STORE(flag, 1u);
    } else {
        while (LOAD(flag) == 0) pause();
        into[0] = *number;
    }
}

// All threads of a block write, and one says so.
extern "C" __global__ void crowd(u32 *into) {
    u32 *flag = into + 64;
    if (blockIdx.x == 0) {
        into[threadIdx.x] = threadIdx.x;
        BARRIER;
        if (threadIdx.x == 0) store_release(flag, 1u);
    } else if (threadIdx.x == 0) {
        while (load_acquire(flag) == 0) pause();
        u32 sum = 0;
        for (u32 at = 0; at < blockDim.x; at++) sum += into[at];
        into[65] = sum;
    }
}
"#;

/// What puts a kernel's threads in order, where nothing else is said.
const WORDS: [(&str, &str); 3] =
    [("BARRIER", "__syncthreads()"), ("STORE", "store_release"), ("LOAD", "load_acquire")];

/// Run a kernel in so many blocks of 64 threads, with one of its words replaced.
fn run(kernel: &str, blocks: u32, word: &str, other: &str) {
    if !has_device() {
        return;
    }
    let device = Cuda::load().expect("the fake driver").device(0).expect("a device");
    let context = Context::new(&device).expect("a context");
    let stream = Stream::new(&context).expect("a stream");
    let kernel = kernel_with(&context, kernel, word, other);
    let mut memory = DeviceMemory::new(&context, 4 * 66).expect("memory");
    memory.write(&stream, 0, &[0; 4 * 66]).expect("a copy");
    let (address, shape) = (memory.address(), Launch::linear(blocks, 64).cooperative());
    // SAFETY: the kernel's parameter, of memory that outlives the wait.
    unsafe { kernel.launch(&stream, &shape, &[Arg::of(&address)]) }.expect("a launch");
    stream.synchronize().expect("its end");
}

fn kernel_with(context: &Context, name: &str, word: &str, other: &str) -> Function {
    let define = |(name, usual): (&str, &str)| {
        format!("#define {name} {}\n", if name == word { other } else { usual })
    };
    let text: &str = (WORDS.map(define).concat() + KERNELS).leak();
    let module = nvrtc::module(context, &Source::new("races", text)).expect("kernels");
    module.function(name).expect("a kernel")
}

/// The tests below that are ignored are run by these two, in a process of their own.
#[test]
fn what_is_out_of_order_is_reported() {
    let names = [
        "neighbours_without_a_barrier",
        "lanes_that_only_shuffle",
        "a_barrier_in_front_but_not_behind",
        "blocks_by_a_store_that_releases_nothing",
        "blocks_by_a_load_that_acquires_nothing",
        "one_that_speaks_for_a_crowd_too_early",
    ];
    for name in names {
        let Some(reports) = races(&["--ignored", "--exact", name]) else { return };
        assert!(reports.contains("data race"), "nothing was found in {name}: {reports}");
    }
}

#[test]
fn what_is_in_order_is_not_reported() {
    let Some(reports) = races(&["--ignored", "--exact", "all_in_order"]) else { return };
    assert_eq!(reports, "");
}

/// A stream that copies or overwrites what another has written, behind its event, or too early.
#[test]
fn streams_are_in_order_by_events_alone() {
    for (name, is_in_order) in [
        ("copies_behind_an_event", true),
        ("copies_too_early", false),
        ("kernels_behind_an_event", true),
        ("kernels_too_early", false),
    ] {
        let mut command = Command::new(std::env::current_exe().expect("a running program"));
        command.args(["--ignored", "--exact", name]);
        let Some((_, said)) = watched(&mut command) else { return };
        assert!(said.contains("1 passed"), "{name} was not run: {said}");
        assert_ne!(said.contains("data race"), is_in_order, "{name}: {said}");
    }
}

#[test]
#[ignore = "watched from outside"]
fn copies_behind_an_event() {
    copy_beside(true);
}

#[test]
#[ignore = "watched from outside"]
fn copies_too_early() {
    copy_beside(false);
}

fn copy_beside(has_event: bool) {
    if !has_device() {
        return;
    }
    let (context, [writes, copies]) = two_streams();
    let written = Event::new(&context).expect("an event");
    let [from, to] = [0; 2].map(|_| DeviceMemory::new(&context, 256).expect("memory"));
    // SAFETY: both ranges outlive the wait.
    unsafe {
        writes.fill(from.address(), 7, 256).expect("a fill");
        writes.record(&written).expect("a record");
        if has_event {
            copies.wait(&written).expect("a wait");
        }
        copies.copy(to.address(), from.address(), 256).expect("a copy");
    }
    [writes, copies].iter().for_each(|stream| stream.synchronize().expect("its end"));
}

fn two_streams() -> (Context, [Stream; 2]) {
    let device = Cuda::load().expect("the fake driver").device(0).expect("a device");
    let context = Context::new(&device).expect("a context");
    let streams = [0; 2].map(|_| Stream::new(&context).expect("a stream"));
    (context, streams)
}

#[test]
#[ignore = "watched from outside"]
fn kernels_behind_an_event() {
    launch_beside(true);
}

#[test]
#[ignore = "watched from outside"]
fn kernels_too_early() {
    launch_beside(false);
}

/// What came first has ended long before, and its threads' places are others' now.
fn launch_beside(has_event: bool) {
    if !has_device() {
        return;
    }
    let (context, streams) = two_streams();
    let kernel = kernel_with(&context, "neighbours", "", "");
    let mut memory = DeviceMemory::new(&context, 4 * 66).expect("memory");
    memory.write(&streams[0], 0, &[0; 4 * 66]).expect("a copy");
    let (address, shape) = (memory.address(), Launch::linear(1, 64));
    let launched = Event::new(&context).expect("an event");
    for stream in &streams {
        if has_event {
            stream.wait(&launched).expect("a wait");
        }
        // SAFETY: the kernel's parameter, of memory that outlives the waits.
        unsafe { kernel.launch(stream, &shape, &[Arg::of(&address)]) }.expect("a launch");
        stream.record(&launched).expect("a record");
        std::thread::sleep(Duration::from_millis(100));
    }
    streams.iter().for_each(|stream| stream.synchronize().expect("its end"));
}

#[test]
#[ignore = "watched from outside"]
fn all_in_order() {
    run("neighbours", 1, "", "");
    run("lanes", 1, "BARRIER", "__syncwarp()");
    run("again", 1, "", "");
    run("blocks", 2, "", "");
    run("crowd", 2, "", "");
}

#[test]
#[ignore = "races"]
fn neighbours_without_a_barrier() {
    run("neighbours", 1, "BARRIER", "");
}

#[test]
#[ignore = "races"]
fn lanes_that_only_shuffle() {
    run("lanes", 1, "BARRIER", "__shfl_sync(0xffffffff, 1, 0)");
}

#[test]
#[ignore = "races"]
fn a_barrier_in_front_but_not_behind() {
    run("again", 1, "BARRIER", "");
}

#[test]
#[ignore = "races"]
fn blocks_by_a_store_that_releases_nothing() {
    run("blocks", 2, "STORE", "store_relaxed");
}

#[test]
#[ignore = "races"]
fn blocks_by_a_load_that_acquires_nothing() {
    run("blocks", 2, "LOAD", "load_relaxed");
}

#[test]
#[ignore = "races"]
fn one_that_speaks_for_a_crowd_too_early() {
    run("crowd", 2, "BARRIER", "");
}
