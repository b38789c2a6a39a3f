//! `brigade bench --transport cuda`, with a driver that needs no device.

use brigade_bench::{Args, Verdict, run_threads};
use clap::Parser;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One world at a time: who allocates waits for the device, on which calls of another world may
/// wait for a rank that is held up by that.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn args(flags: &str) -> Args {
    Command::parse_from(["bench"].into_iter().chain(flags.split_whitespace())).args
}

fn check(flags: &str) {
    let _turn = turn();
    if brigade_cuda_fake::has_device() {
        assert_eq!(run_threads(&args(flags)).unwrap(), Verdict::Passed, "{flags}");
    }
}

/// Every collective on buffers in memory of a device, in and out of place; then captured.
#[test]
fn every_collective_is_checked_on_devices() {
    let all = "all-reduce,reduce-scatter,all-gather,broadcast,reduce,all-to-all,gather,scatter,\
               send-recv,barrier";
    let sizes = "-n 2 --transport cuda -b 8 -e 128K -f 128 --check --iters 2 --warmup 1";
    check(&format!("{all} {sizes}"));
    check(&format!("all-reduce,send-recv {sizes} --in-a-row 3"));
    check(&format!("all-reduce {sizes} --graph --in-a-row 3"));
}

/// Nobody would know what a device's buffers cost a program.
#[test]
fn buffers_on_devices_are_not_touched() {
    let refused = run_threads(&args("all-reduce -n 2 --transport cuda --touch"));
    let why = refused.expect_err("buffers on devices").to_string();
    assert!(why.contains("--touch is for buffers of the host"), "{why}");
}

/// Threads open nothing of each other's.
#[test]
fn buffers_stay_open_only_where_calls_open_some() {
    let _turn = turn();
    if brigade_cuda_fake::has_device() {
        let refused = run_threads(&args("all-reduce -n 2 --transport cuda --keep-open"));
        let why = refused.expect_err("calls of threads").to_string();
        assert!(why.contains("--keep-open needs ranks that are processes"), "{why}");
    }
}
