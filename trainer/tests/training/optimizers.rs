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
                    assert_eq!(
                        outcome.held_out.map(f64::to_bits),
                        alone.held_out.map(f64::to_bits),
                        "{what}"
                    );
                    assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{what}");
                }
            }
        }
    }
}

#[test]
fn numbers_of_a_rule_are_those_of_its_flags_on_every_rank() {
    for (rule, number) in [
        ("adamw", "--beta1 0.8"),
        ("adamw", "--beta2 0.9"),
        ("adamw", "--eps 1e-3"),
        ("adamw", "--weight-decay 0"),
        ("lamb --lr 0.02", "--beta2 0.9"),
        ("lars --lr 60", "--beta1 0.5"),
        ("lion --lr 0.002", "--beta2 0.99"),
        ("sgd --lr 0.3", "--beta1 0.5"),
        ("sgd --lr 0.3", "--weight-decay 0"),
    ] {
        let flags = format!("--ordered --steps 3 --optimizer {rule}");
        let usual = train(&args(&flags), None).unwrap();
        let flags = format!("{flags} {number}");
        let alone = train(&args(&flags), None).unwrap();
        assert_ne!(bits(&usual.losses), bits(&alone.losses), "{flags}");
        for outcome in world(2, &args(&format!("{flags} --strategy fsdp"))) {
            assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{flags}");
        }
    }
}

/// Flags of ways to hold a gradient in parts, and how many ranks.
const WAYS: &[(&str, usize)] = &[
    ("--strategy ddp", 3),
    ("--strategy zero1 --offload cpu", 2),
    ("--strategy zero2", 3),
    ("--strategy fsdp", 4),
    ("--strategy fsdp --mesh replicate=2,shard=2", 4),
    ("--strategy fsdp FILES", 2),
    ("--strategy ps", 3),
    ("--strategy gpipe", 2),
    ("--strategy interleaved", 2),
    ("--strategy zero1,1f1b --mesh dp=2,pp=2", 4),
];

#[test]
fn clipped_gradients_give_the_same_bits_wherever_their_parts_are() {
    let folder = Folder::new();
    for rule in ["--optimizer sgd --lr 0.3 --clip 0.5", "--optimizer lamb --lr 0.02 --clip 1"] {
        let flags = format!("--ordered --steps 4 {rule}");
        let alone = train(&args(&flags), None).unwrap();
        let free = train(&Args { clip: None, ..args(&flags) }, None).unwrap();
        let loose = train(&Args { clip: Some(1e9), ..args(&flags) }, None).unwrap();
        assert_eq!(bits(&free.losses), bits(&loose.losses), "{rule}");
        assert_ne!(bits(&free.losses), bits(&alone.losses), "{rule} clips nothing");
        for (way, ranks) in WAYS {
            let has_norms = rule.contains("lamb");
            if has_norms && (way.contains("FILES") || way.contains(" ps")) {
                continue;
            }
            let args = args(&format!("{flags} {}", way.replace("FILES", &folder.nvme())));
            for outcome in world(*ranks, &args) {
                let what = format!("{rule} {way}, {ranks} ranks");
                assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{what}");
                assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{what}");
            }
        }
    }
}

/// A rate at which f16 overflows in some step, which all leave out.
#[test]
fn what_is_clipped_knows_of_the_loss_scale_and_of_overflows() {
    let folder = Folder::new();
    let flags = "--ordered --steps 6 --precision f16 --optimizer sgd --clip 0.5";
    let mild = train(&args(&format!("{flags} --lr 0.3")), None).unwrap();
    let full = flags.replace("f16", "f32");
    let full = train(&args(&format!("{full} --lr 0.3")), None).unwrap();
    let apart = mild.losses.iter().zip(&full.losses).map(|(one, other)| (one - other).abs());
    assert!(apart.fold(0.0, f64::max) < 0.02, "{:?} {:?}", mild.losses, full.losses);

    let wild = format!("{flags} --lr 30");
    let alone = train(&Args { log: folder.file("log"), ..args(&wild) }, None).unwrap();
    let log = String::from_utf8(folder.bytes("log")).unwrap();
    let steps: Vec<&str> = log.lines().filter(|line| line.contains(r#""event":"step""#)).collect();
    let skipped = |line: &&&str| line.contains(r#""is_skipped":true"#);
    let left_out = steps.iter().filter(skipped).count();
    assert!((1..6).contains(&left_out), "{left_out} of 6 steps left out");
    for line in &steps {
        let has_norm = line.contains(r#""grad_norm":"#);
        assert_eq!(has_norm, !skipped(&line), "{line}");
    }
    for stage in ["ddp", "zero1", "fsdp"] {
        for outcome in world(3, &args(&format!("{wild} --strategy {stage}"))) {
            assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{stage}");
            assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{stage}");
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
