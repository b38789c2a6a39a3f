//! `brigade bench --transport cuda`, with a driver that needs no device.

use brigade_bench::{Args, Verdict, run_threads};
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

fn check(flags: &str) {
    brigade_cuda_fake::install();
    if !brigade_cuda_fake::is_usable() {
        eprintln!("skipped: the fake device needs x86-64 Linux and a C++ compiler");
        return;
    }
    let words = ["bench"].into_iter().chain(flags.split_whitespace());
    let args = Command::parse_from(words).args;
    assert_eq!(run_threads(&args).unwrap(), Verdict::Passed, "{flags}");
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
