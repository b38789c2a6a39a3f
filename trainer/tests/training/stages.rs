//! However many ranks there are, they train the same model as one process.

use brigade_trainer::Args;

use crate::world::{Folder, args, bits, ends, train, world};

const STAGES: [&str; 4] = ["ddp", "zero1", "zero2", "fsdp"];

#[test]
fn ordered_losses_have_the_same_bits_at_every_stage_and_number_of_ranks() {
    let alone = train(&args("--ordered --steps 6"), None).unwrap();
    for stage in STAGES {
        let args = args(&format!("--ordered --steps 6 --strategy {stage}"));
        for ranks in [2, 3, 4] {
            for (rank, outcome) in world(ranks, &args).iter().enumerate() {
                let what = format!("{stage}, rank {rank} of {ranks}");
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

#[test]
fn lanes_one_after_the_other_are_the_lanes_of_as_many_ranks() {
    let alone = train(&Args { lanes: 4, ..args("--ordered --steps 6") }, None).unwrap();
    let one_by_one = train(&args("--accumulate 4 --steps 6"), None).unwrap();
    assert_eq!(bits(&one_by_one.losses), bits(&alone.losses));
}

#[test]
fn fast_losses_agree_after_fifty_steps() {
    let args = args("--steps 50");
    let alone = train(&args, None).unwrap().losses;
    assert!(
        alone[49] < alone[0] - 1.0,
        "the model must have learnt: {} to {}",
        alone[0],
        alone[49]
    );
    for (ranks, more) in [
        (2, ""),
        (3, ""),
        (4, ""),
        (3, "--strategy zero1"),
        (2, "--strategy zero1 --accumulate 3"),
        (3, "--strategy zero2 --accumulate 2"),
        (4, "--strategy fsdp"),
        (2, "--strategy zero3 --accumulate 2"),
    ] {
        let outcomes = world(ranks, &self::args(&format!("--steps 50 {more}")));
        let (got, want) = (outcomes[0].losses[49], alone[49]);
        assert!((got - want).abs() / want < 1e-5, "{ranks} ranks {more}: {got}, alone {want}");
        assert!(outcomes.iter().all(|one| bits(&one.losses) == bits(&outcomes[0].losses)));
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let one = train(&args("--steps 4"), None).unwrap();
    let three = train(&Args { threads: Some(3), ..args("--steps 4") }, None).unwrap();
    assert_eq!(bits(&one.losses), bits(&three.losses));
}

/// Nine steps at once, and five and then four, in a world of so many ranks: same losses, same
/// files.
fn check_resume(ranks: usize, more: &str) {
    let folder = Folder::new();
    let run = |args: Args| match ranks {
        1 => train(&args, None).unwrap().losses,
        _ => world(ranks, &args).swap_remove(ranks - 1).losses,
    };
    let all = args(&format!("--steps 9 {more}"));
    let whole = run(Args { checkpoint: folder.file("whole"), ..all.clone() });
    let first = run(Args { checkpoint: folder.file("first"), stop_at: Some(5), ..all.clone() });
    let (resume, checkpoint) = (folder.file("first"), folder.file("second"));
    let second = run(Args { resume, checkpoint, ..all });
    let what = format!("{ranks} ranks {more}");
    assert_eq!(bits(&[first, second].concat()), bits(&whole), "losses of {what}");
    assert_ne!(folder.bytes("first"), folder.bytes("whole"), "four steps change the state");
    assert!(folder.bytes("second") == folder.bytes("whole"), "final state of {what}");
}

#[test]
fn a_resumed_run_goes_on_with_the_same_bits() {
    for ranks in [1, 2, 3] {
        check_resume(ranks, "");
        check_resume(ranks, "--ordered");
    }
}

#[test]
fn a_checkpoint_may_go_on_at_another_stage_with_another_number_of_ranks() {
    let folder = Folder::new();
    let all = args("--steps 7 --ordered");
    let whole = train(&all, None).unwrap().losses;
    for (before, after) in [("ddp", "fsdp"), ("fsdp", "zero1"), ("zero2", "ddp")] {
        let flags = |stage| args(&format!("--steps 7 --ordered --strategy {stage}"));
        let first = Args { checkpoint: folder.file("first"), stop_at: Some(3), ..flags(before) };
        world(2, &first);
        let second = Args { resume: folder.file("first"), ..flags(after) };
        for outcome in world(3, &second) {
            assert_eq!(bits(&outcome.losses), bits(&whole[3..]), "{before}, then {after}");
        }
    }
}

#[test]
fn a_finished_run_is_not_resumed() {
    let folder = Folder::new();
    let all = args("--steps 2");
    train(&Args { checkpoint: folder.file("state"), ..all.clone() }, None).unwrap();
    let again = train(&Args { resume: folder.file("state"), ..all }, None).unwrap_err();
    assert!(again.to_string().contains("has 2 behind it"), "{again}");
}

#[test]
fn what_ends_one_rank_ends_the_others_with_its_reason() {
    let nowhere = Args { checkpoint: Some("/nowhere/state".into()), ..args("--steps 50") };
    for (rank, end) in ends(3, &nowhere).into_iter().enumerate() {
        let end = end.unwrap_err().to_string();
        assert!(end.contains("/nowhere/state"), "rank {rank} ended with: {end}");
    }
}

#[test]
fn every_rank_sends_what_the_formulas_say() {
    for stage in STAGES {
        for more in ["", "--accumulate 3", "--ordered"] {
            let args = args(&format!("--steps 2 --strategy {stage} {more}"));
            let args = Args { batch: 180, lanes: 60, ..args };
            for ranks in [2, 3, 4, 5] {
                for (rank, outcome) in world(ranks, &args).iter().enumerate() {
                    assert!(outcome.formula_bytes > 0);
                    let what = format!("rank {rank} of {ranks}, {stage} {more}");
                    assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{what}");
                }
            }
        }
    }
}
