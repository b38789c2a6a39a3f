//! Rules that see whole tensors train the same model however the ranks cut them.

use brigade_trainer::Args;

use crate::world::{Folder, args, bits, train, world};

/// Each with a rate that moves the loss.
const RULES: [(&str, &str); 4] =
    [("lamb", "0.02"), ("lars", "60"), ("lion", "0.002"), ("sgd", "0.3")];

#[test]
fn ordered_losses_have_the_same_bits_at_every_stage() {
    for (rule, lr) in RULES {
        let flags = format!("--ordered --steps 4 --optimizer {rule} --lr {lr}");
        let alone = train(&args(&flags), None).unwrap();
        for stage in ["ddp", "zero1", "zero2", "fsdp"] {
            let args = args(&format!("{flags} --strategy {stage}"));
            for ranks in [2, 3] {
                for outcome in world(ranks, &args) {
                    let what = format!("{rule}, {stage}, {ranks} ranks");
                    assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{what}");
                    assert_eq!(outcome.held_out.to_bits(), alone.held_out.to_bits(), "{what}");
                    assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{what}");
                }
            }
        }
    }
}

#[test]
fn every_rule_learns() {
    for (rule, lr) in RULES {
        let args = args(&format!("--steps 40 --optimizer {rule} --lr {lr}"));
        let losses = train(&args, None).unwrap().losses;
        assert!(losses[39] < losses[0] - 1.0, "{rule}: {} to {}", losses[0], losses[39]);
    }
}

#[test]
fn one_moment_goes_through_files_and_checkpoints() {
    let folder = Folder::new();
    for (rule, lr) in [("lion", "0.002"), ("lars", "60")] {
        let flags = format!("--ordered --steps 4 --strategy zero2 --optimizer {rule} --lr {lr}");
        let whole = train(&args(&flags), None).unwrap();
        let nvme = format!("{flags} {}", folder.nvme());
        let file = folder.file("state");
        let first = Args { checkpoint: file.clone(), stop_at: Some(2), ..args(&nvme) };
        let outcome = world(2, &first).swap_remove(1);
        assert_eq!(bits(&outcome.losses), bits(&whole.losses[..2]), "{rule}");
        assert_eq!(outcome.disk.read_bytes, outcome.disk_formula.read_bytes, "{rule}");
        let second = world(3, &Args { resume: file, ..args(&nvme) }).swap_remove(2);
        assert_eq!(bits(&second.losses), bits(&whole.losses[2..]), "{rule}");
    }
}

#[test]
fn what_files_cannot_give_is_refused() {
    let folder = Folder::new();
    for flags in [
        "--optimizer lamb",
        "--optimizer lars --strategy fsdp",
        "--optimizer lars --precision bf16",
    ] {
        let refused =
            train(&args(&format!("--steps 2 {flags} {}", folder.nvme())), None).unwrap_err();
        assert!(refused.to_string().starts_with("--optimizer: "), "{refused}");
    }
}
