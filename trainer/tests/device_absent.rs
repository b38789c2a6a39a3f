//! Without CUDA, a run that asks for a device ends with one sentence about what is missing.

use brigade_trainer::Args;
use clap::Parser;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: Args,
}

#[test]
fn a_run_that_asks_for_a_device_says_what_is_missing() {
    // SAFETY: this is the only test of the process, and no other thread reads the environment.
    unsafe { std::env::set_var("BRIGADE_CUDA_LIBRARY", "/nonexistent/libcuda.so.1") };
    let flags = "train --device cuda --steps 1 --batch 4 --context 8 --width 8 --heads 2 --quiet";
    let args = Command::parse_from(flags.split_whitespace()).args;
    let said = brigade_trainer::train(&args, None, &mut std::io::sink(), &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(said.starts_with("--device: there is no CUDA here: "), "{said}");
    assert!(said.contains("/nonexistent/libcuda.so.1"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
