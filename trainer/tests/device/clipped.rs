//! Gradients are clipped by the same norm wherever they are: on the device, in parts on those of
//! several ranks, or with the host.

use super::has_device;
use super::world::{Folder, TOLERANCE, args, check, check_bf16, world};
use brigade_trainer::Args;

/// Less than these gradients have, so that every step clips.
const CLIP: &str = "--clip 0.4";

#[test]
fn clipped_steps_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for (ranks, more) in [
        (1, "--accumulate 2"),
        (1, "--optimizer sgd --lr 0.3"),
        (2, "--strategy ddp --compress bf16"),
        (2, "--strategy zero1"),
        (3, "--batch 6 --strategy fsdp"),
        (2, "--strategy zero2 --offload cpu"),
        (4, "--strategy fsdp --mesh dp=2,shard=2"),
        (2, "--strategy horovod"),
        (2, "--strategy tp"),
        (2, "--strategy ps"),
        (2, "--batch 16 --layers 4 --strategy interleaved"),
        (2, "--batch 16 --layers 4 --mesh dp=2,pp=1 --strategy fsdp,1f1b"),
        (4, "--batch 16 --layers 4 --strategy ddp,1f1b --mesh dp=2,pp=2"),
        (2, "--batch 16 --layers 4 --strategy 1f1b --optimizer lion"),
    ] {
        check(ranks, &format!("{more} {CLIP} --steps 2"), TOLERANCE);
    }
    check_bf16(2, "--strategy fsdp", CLIP);
    check(2, &format!("--strategy zero1 --precision f16 {CLIP}"), 2e-3);
}

#[test]
fn the_norm_is_that_of_the_processor_and_clips() {
    if !has_device() {
        return;
    }
    let folder = Folder::new();
    let norms = |more: &str| {
        let log = folder.0.join("log");
        world(1, &Args { log: Some(log.clone()), ..args(more) });
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        let steps = text.lines().filter(|line| line.contains(r#""event":"step""#));
        let norm = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["grad_norm"].as_f64().unwrap()
        };
        steps.map(norm).collect::<Vec<f64>>()
    };
    let host = norms(CLIP);
    assert!(host.len() == 4 && host.iter().all(|norm| *norm > 0.4), "{host:?}");
    for more in ["--device cuda", "--device cuda --optimizer adamw --offload cpu"] {
        let device = norms(&format!("{CLIP} {more}"));
        let far = host.iter().zip(&device).map(|(host, device)| (device / host - 1.0).abs());
        assert!(far.fold(0.0, f64::max) < 1e-4, "{more}: {device:?}, the processor {host:?}");
    }
}
