//! Experts on devices: of one rank, of ranks with other samples, and divided among ranks.

use super::has_device;
use super::world::{TOLERANCE, args, check, check_bf16, check_legs, table};
use brigade_trainer::Args;

const SHAPE: &str = "--batch 16 --steps 3 --experts 4 --top 2";

#[test]
fn experts_of_one_rank_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for more in [
        "--experts 4 --top 2",
        // Choices among no experts mean nothing.
        "--experts 0 --top 2",
        "--experts 4 --top 1 --accumulate 2 --recompute",
        "--experts 3 --top 3 --optimizer lion",
        "--experts 16 --top 2 --layers 5 --offload cpu",
    ] {
        check(1, &format!("--batch 16 --steps 3 {more}"), TOLERANCE);
    }
}

#[test]
fn ranks_with_other_samples_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for (ranks, more) in [
        (2, "--strategy ddp"),
        (2, "--strategy zero1 --accumulate 2"),
        (4, "--strategy fsdp"),
        (2, "--strategy 1f1b --micro-batches 4"),
    ] {
        check(ranks, &format!("{SHAPE} {more}"), TOLERANCE);
    }
}

/// Rows travel; some ranks get more than an even share of them, some none.
#[test]
fn ranks_that_divide_experts_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for (ranks, more) in [
        (2, "--top 2 --strategy ep"),
        (4, "--top 1 --strategy ep --accumulate 2 --recompute"),
        (4, "--top 2 --strategy ddp,ep --mesh dp=2,tp=2"),
        (4, "--top 2 --strategy 1f1b,ep --mesh pp=2,tp=2 --micro-batches 2"),
        (2, "--top 2 --strategy ep --offload cpu"),
    ] {
        check(ranks, &format!("--batch 16 --steps 3 --experts 4 {more}"), TOLERANCE);
    }
    let told = args(&format!("{SHAPE} --strategy ep --device cuda"));
    let told = table(2, &Args { quiet: false, ..told });
    assert!(told.contains("experts and samples divided by 2, gradients summed by"), "{told}");
}

#[test]
fn bf16_stays_near_the_processors_losses() {
    if !has_device() {
        return;
    }
    check_bf16(1, "", SHAPE);
    check_bf16(2, "--strategy ep", SHAPE);
}

#[test]
fn a_checkpoint_goes_from_parts_of_experts_to_the_processor_and_back() {
    if !has_device() {
        return;
    }
    let legs = [(2, "--strategy ep --device cuda", 1), (1, "", 2), (1, "--device cuda", 3)];
    check_legs(SHAPE, legs);
}
