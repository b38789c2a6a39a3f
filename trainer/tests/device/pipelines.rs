//! Pipelines whose stages are on devices train the same model as the processor.

use super::has_device;
use super::world::{
    Folder, TOLERANCE, args, check, check_bf16, check_failure, check_legs, outcomes, told, world,
};
use brigade_trainer::Args;
use std::path::PathBuf;

const SHAPE: &str = "--batch 16 --layers 4 --steps 3";

#[test]
fn every_order_has_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for order in ["gpipe", "1f1b", "interleaved", "zb1p", "zbv", "dualpipev"] {
        check(2, &format!("{SHAPE} --strategy {order}"), TOLERANCE);
    }
}

#[test]
fn any_number_of_ranks_has_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    // All stages on one rank, which keep their mail; and fewer blocks than stages.
    check(1, &format!("{SHAPE} --strategy zbv"), TOLERANCE);
    check(4, &format!("{SHAPE} --strategy 1f1b --recompute"), TOLERANCE);
    check(4, "--batch 16 --steps 2 --strategy gpipe --micro-batches 8", TOLERANCE);
    check(2, &format!("{SHAPE} --strategy 1f1b --ordered"), TOLERANCE);
}

#[test]
fn bf16_stays_near_the_processors_losses() {
    if !has_device() {
        return;
    }
    for order in ["1f1b", "zbv"] {
        check_bf16(2, &format!("--strategy {order}"), SHAPE);
    }
    check_bf16(4, "--strategy fsdp,1f1b --mesh dp=2,pp=2", SHAPE);
}

/// Ranks of several pipelines on one device add their gradients up through their hosts. With a
/// device and a process each, their devices do: see `tests/tests/devices.rs`.
#[test]
fn pipelines_side_by_side_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for order in ["1f1b", "interleaved"] {
        check(4, &format!("{SHAPE} --strategy ddp,{order} --mesh dp=2,pp=2"), TOLERANCE);
    }
}

/// Ranks that are threads, of which each has all stages. Those of several pipelines have theirs
/// with the host; as processes they do not: see `tests/tests/devices.rs`.
#[test]
fn stages_in_parts_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    let mesh = "--mesh dp=2,pp=1";
    for strategy in ["fsdp,interleaved --chunks 4", "zero1,1f1b --recompute"] {
        check(2, &format!("{SHAPE} {mesh} --strategy {strategy}"), TOLERANCE);
    }
    check_bf16(2, &format!("{mesh} --strategy fsdp,zb1p"), SHAPE);
    // What the budget does not hold is with the host, from the same checkpoint.
    let legs = [
        (2, "--mesh dp=2,pp=1 --strategy fsdp,zbv --device cuda", 1),
        (2, "--mesh dp=2,pp=1 --strategy zero1,1f1b --device cuda --device-budget 600K", 2),
        (2, "--mesh dp=2,pp=1 --strategy zero2,1f1b --device cuda", 3),
    ];
    check_legs(SHAPE, legs);
}

#[test]
fn state_with_the_host_goes_through_stages() {
    if !has_device() {
        return;
    }
    let folder = Folder::new();
    let nvme = format!("--strategy interleaved --offload nvme:{}", folder.0.display());
    for more in ["--strategy 1f1b --optimizer lion", "--strategy zbv --offload cpu", &nvme] {
        check(2, &format!("{SHAPE} {more}"), TOLERANCE);
    }
    for (data, order) in [
        ("zero1", "1f1b"),
        ("zero2", "zb1p"),
        ("fsdp", "gpipe"),
        ("fsdp", "zbv"),
        ("fsdp", "interleaved"),
    ] {
        let more = format!("{SHAPE} --strategy {data},{order} --mesh dp=2,pp=2");
        check(4, &more, TOLERANCE);
    }
}

#[test]
fn state_with_the_host_goes_with_the_rest() {
    if !has_device() {
        return;
    }
    let mesh = "--mesh dp=2,pp=2";
    let ordered = format!("{SHAPE} --ordered --lanes 8 {mesh}");
    check(4, &format!("{ordered} --strategy ddp,1f1b"), TOLERANCE);
    check(4, &format!("{ordered} --strategy fsdp,zbv"), TOLERANCE);
    check(4, &format!("{SHAPE} --strategy 1f1b,tp --mesh pp=2,tp=2 --offload cpu"), TOLERANCE);
    let folder = Folder::new();
    let nvme = format!("--offload nvme:{}", folder.0.display());
    let more = format!("{SHAPE} {mesh} --strategy fsdp,1f1b --recompute {nvme} --host-budget 8M");
    check(4, &more, TOLERANCE);
}

#[test]
fn a_schedule_from_a_file_is_carried_out_and_drawn() {
    if !has_device() {
        return;
    }
    let folder = Folder::new();
    let draw = Some(folder.0.join("picture"));
    for name in ["pipeline.csv", "pipeline_comms.csv"] {
        let schedule = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
        let more = format!("{SHAPE} --schedule {}", schedule.display());
        check(2, &more, TOLERANCE);
        let drawn = Args { draw: draw.clone(), ..args(&format!("{more} --device cuda")) };
        world(2, &drawn);
        let picture = std::fs::read_to_string(folder.0.join("picture")).unwrap();
        // As the processor's picture of the same schedule.
        assert_eq!(picture.matches("<rect").count(), 1 + 2 * (2 * 4 * 2 + 2) + 5, "{picture}");
    }
}

/// Of its four stages the second rank has one in the middle, so it never has more letters at once
/// than those that it keeps.
#[test]
fn a_schedule_in_which_most_letters_stay_on_a_rank_is_carried_out() {
    if !has_device() {
        return;
    }
    let folder = Folder::new();
    let file = folder.0.join("middle.csv");
    let rows = ["0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1", "2F0,2F1,3F0,3F1,3B0,3B1,2B0,2B1"];
    std::fs::write(&file, rows.join("\n")).unwrap();
    check(2, &format!("{SHAPE} --micro-batches 2 --schedule {}", file.display()), TOLERANCE);
}

#[test]
fn a_schedule_may_let_go_of_stages_where_it_likes() {
    if !has_device() {
        return;
    }
    let folder = Folder::new();
    let file = folder.0.join("schedule.csv");
    for text in [
        "0UNSHARD,0F0,0B0,0RESHARD,0RESHARD",
        "0RESHARD,0F0,0RESHARD,0B0,0RESHARD,0UNSHARD",
        "0UNSHARD,0UNSHARD,0F0,0B0",
    ] {
        std::fs::write(&file, text).unwrap();
        let flags = "--batch 16 --steps 4 --strategy fsdp --mesh dp=2,pp=1 --micro-batches 1";
        check(2, &format!("{flags} --schedule {}", file.display()), TOLERANCE);
    }
}

#[test]
fn a_checkpoint_goes_from_stages_to_the_processor_and_back() {
    if !has_device() {
        return;
    }
    let legs = [
        (2, "--strategy zbv --device cuda", 1),
        (1, "", 2),
        (4, "--strategy fsdp,1f1b --mesh dp=2,pp=2 --device cuda", 3),
    ];
    check_legs(SHAPE, legs);
}

#[test]
fn a_budget_that_does_not_hold_the_stages_state_leaves_it_with_the_host_or_is_refused() {
    if !has_device() {
        return;
    }
    let more =
        |budget: &str| format!("{SHAPE} --strategy gpipe --device cuda --device-budget {budget}");
    // All stages take 1.6 M, a quarter of a million less without moments.
    for (budget, want) in [("16M", "stages' state too"), ("1450K", "stages' parameters too")] {
        let (_, told) = told(&Args { quiet: false, ..args(&more(budget)) });
        assert!(told.contains(want), "{budget}: {told}");
    }
    // Too little for both, or for the second only: the first is the one that tells.
    for budget in ["400K", "760K"] {
        for end in outcomes(2, &args(&more(budget))) {
            let refused = end.unwrap_err().to_string();
            assert!(
                refused.starts_with("--device-budget: a rank's stages need 864.00 KiB, "),
                "{refused}"
            );
        }
    }
}

/// What a rank has on its way to others and from them is waited for before its memory goes, and
/// some of it comes from ranks that wait for this one.
#[test]
fn a_rank_that_fails_in_a_pipeline_ends_the_others_at_once() {
    let name = "pipelines::a_rank_that_fails_in_a_pipeline_ends_the_others_at_once";
    check_failure(4, "--batch 16 --layers 4 --strategy 1f1b", name);
}
