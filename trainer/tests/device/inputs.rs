//! What goes into blocks, kept with the host or in files between forward and backward.

use super::has_device;
use super::world::{Folder, args, world};

const SHAPE: &str = "--batch 16 --steps 2 --device cuda";

/// The same numbers come back: every bit is that of what is computed twice where they are.
#[test]
fn what_comes_back_is_what_went() {
    if !has_device() {
        return;
    }
    let folder = Folder::new();
    let nvme = format!("nvme:{}", folder.0.display());
    for (ranks, flags) in [
        (1, "--layers 7 --accumulate 2"),
        (1, "--layers 7 --precision bf16 --device-budget 800K"),
        (2, "--layers 7 --strategy fsdp"),
        (2, "--layers 7 --strategy 1f1b --micro-batches 4"),
        (2, "--layers 14 --strategy interleaved --chunks 2 --offload cpu"),
    ] {
        let want = world(ranks, &args(&format!("{SHAPE} {flags} --recompute")));
        for tier in ["cpu", &nvme] {
            let more = format!("{SHAPE} {flags} --offload-activations {tier}");
            for (rank, (got, want)) in world(ranks, &args(&more)).iter().zip(&want).enumerate() {
                let what = format!("rank {rank} of {more}");
                assert_eq!((&got.losses, got.held_out), (&want.losses, want.held_out), "{what}");
                assert_eq!(got.disk.bytes(), got.disk_formula, "{what}");
                assert_eq!(got.disk.read_bytes > 0, tier == nvme, "{what}");
                assert_eq!(got.sent_bytes, got.formula_bytes, "{what}");
            }
        }
    }
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 0, "files without names");
}

/// A budget that does not hold what goes into every block holds three of them.
#[test]
fn a_budget_that_is_too_small_for_all_holds_three() {
    if !has_device() {
        return;
    }
    let shape = "--batch 16 --context 32 --layers 12 --steps 2 --stop-at 1 --device cuda";
    let run = |more: &str| {
        let args = args(&format!("{shape} --device-budget 2000K {more}"));
        brigade_trainer::train(&args, None, &mut std::io::sink(), &mut |_| {})
    };
    let refused = run("--recompute").unwrap_err().to_string();
    assert!(refused.starts_with("--device-budget: a pass needs "), "{refused}");
    run("--offload-activations cpu").unwrap();
}
