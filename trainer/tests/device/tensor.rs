//! Ranks that divide tensors, each on a device, train the same model as the processor.

use super::has_device;
use super::world::{TOLERANCE, args, check, check_bf16, check_legs, table, world};
use brigade_trainer::Args;

const SHAPE: &str = "--batch 16 --heads 4 --steps 3";

#[test]
fn ranks_that_divide_heads_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for more in ["", "--accumulate 2 --recompute", "--optimizer lion", "--offload cpu"] {
        check(2, &format!("{SHAPE} --strategy tp {more}"), TOLERANCE);
    }
    check(4, &format!("{SHAPE} --strategy tp"), TOLERANCE);
    let table = |more: &str| {
        let more = format!("{SHAPE} --strategy {more} --device cuda");
        table(2, &Args { quiet: false, ..args(&more) })
    };
    let told = table("tp");
    assert!(told.contains("divided by 2 and summed by the devices, which has"), "{told}");
}

/// Several groups of them on one device add up through their hosts.
#[test]
fn they_go_with_other_ways_to_divide_the_work() {
    if !has_device() {
        return;
    }
    for (data, mesh) in [
        ("ddp", "dp=2,tp=2"),
        ("zero1", "tp=2,dp=2"),
        ("fsdp", "dp=2,tp=2"),
        ("1f1b", "pp=2,tp=2"),
        ("gpipe", "tp=2,pp=2"),
    ] {
        check(4, &format!("{SHAPE} --strategy {data},tp --mesh {mesh}"), TOLERANCE);
    }
}

#[test]
fn ranks_that_divide_rows_too_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for more in ["", "--accumulate 2 --recompute"] {
        check(2, &format!("{SHAPE} --strategy sp {more}"), TOLERANCE);
    }
    for (strategy, mesh) in [("sp", "tp=4"), ("ddp,sp", "dp=2,tp=2"), ("1f1b,sp", "pp=2,tp=2")] {
        check(4, &format!("{SHAPE} --strategy {strategy} --mesh {mesh}"), TOLERANCE);
    }
    let told =
        table(2, &Args { quiet: false, ..args(&format!("{SHAPE} --strategy sp --device cuda")) });
    assert!(told.contains("numbers and rows divided by 2 and summed by the devices"), "{told}");
}

#[test]
fn ranks_that_divide_tokens_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    let shape = "--batch 16 --heads 4 --steps 2 --context 16";
    for more in ["", "--accumulate 2 --recompute"] {
        check(2, &format!("{shape} --strategy ring {more}"), TOLERANCE);
    }
    for (strategy, mesh) in
        [("ring", "tp=4"), ("fsdp,ring", "dp=2,tp=2"), ("gpipe,ring", "tp=2,pp=2")]
    {
        check(4, &format!("{shape} --strategy {strategy} --mesh {mesh}"), TOLERANCE);
    }
    let told =
        table(2, &Args { quiet: false, ..args(&format!("{shape} --strategy ring --device cuda")) });
    assert!(
        told.contains("tokens divided by 2, keys and values passed on by the devices"),
        "{told}"
    );
}

/// Threads that are in several groups have their hosts send tiles; processes do not: see
/// `tests/tests/devices.rs`.
#[test]
fn ranks_in_grids_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    check(4, &format!("{SHAPE} --strategy 2d --accumulate 2 --recompute"), TOLERANCE);
    // Squares of one rank.
    check(2, &format!("{SHAPE} --strategy 2.5d"), TOLERANCE);
    check(9, "--batch 18 --heads 3 --width 18 --steps 1 --layers 1 --strategy 2d", TOLERANCE);
    let few = "--batch 16 --heads 4 --steps 1";
    for way in ["2.5d", "3d", "1f1b,2d --mesh pp=2,tp=4"] {
        check(8, &format!("{few} --strategy {way}"), TOLERANCE);
    }
    for (ranks, way) in [(4, "2d"), (8, "3d")] {
        check_bf16(ranks, &format!("--strategy {way}"), few);
    }
    let told =
        table(4, &Args { quiet: false, ..args(&format!("{SHAPE} --strategy 2d --device cuda")) });
    assert!(told.contains("matrices divided by a grid of 4, tiles sent by the hosts"), "{told}");
}

#[test]
fn bf16_stays_near_the_processors_losses() {
    if !has_device() {
        return;
    }
    for way in ["tp", "sp", "ring"] {
        check_bf16(2, &format!("--strategy {way}"), &format!("{SHAPE} --context 12"));
    }
    let shape = format!("{SHAPE} --context 12");
    for way in ["ddp,sp", "ddp,ring"] {
        check_bf16(4, &format!("--strategy {way} --mesh dp=2,tp=2"), &shape);
    }
}

#[test]
fn attention_in_tiles_goes_with_them() {
    if !has_device() {
        return;
    }
    let shape = format!("{SHAPE} --context 24 --strategy tp");
    // Of 1.8 M scores take 0.4 M, and as much again in backward.
    let more = format!("{shape} --device cuda --device-budget 1500K");
    let told = table(2, &Args { quiet: false, ..args(&more) });
    assert!(told.contains("attention in tiles"), "{told}");
    let [plain, tiled] = [format!("{shape} --device cuda"), more]
        .map(|more| world(2, &args(&more)).swap_remove(0).losses);
    for (got, want) in tiled.iter().zip(&plain) {
        assert!((got - want).abs() / want < TOLERANCE, "{got} in tiles, {want} without");
    }
}

#[test]
fn a_checkpoint_goes_from_parts_of_tensors_to_the_processor_and_back() {
    if !has_device() {
        return;
    }
    let legs = [
        (2, "--strategy tp --device cuda", 1),
        (1, "", 2),
        (4, "--strategy ddp,tp --mesh dp=2,tp=2 --device cuda", 3),
    ];
    check_legs(SHAPE, legs);
}
