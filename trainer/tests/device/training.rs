//! A device trains the same model as the processor, whoever holds the state.

use super::has_device;
use super::unchecked::unchecked;
use super::world::{
    Folder, TOLERANCE, args, check, check_bf16, check_failure, is_child_with, near, table, told,
    train, world,
};
use brigade_trainer::Args;
use std::path::Path;

#[test]
fn one_process_has_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    let numbers = "--beta1 0.8 --beta2 0.9 --eps 1e-3 --weight-decay 1";
    for more in ["", "--recompute", "--accumulate 2", numbers] {
        check(1, more, TOLERANCE);
    }
}

#[test]
fn ranks_that_share_a_device_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for stage in ["ddp", "zero1", "zero2", "fsdp"] {
        check(2, &format!("--batch 64 --strategy {stage}"), TOLERANCE);
    }
    check(2, "--ordered --strategy zero2", TOLERANCE);
    // Who holds a state several times, and shares a process, has it with the host.
    check(4, "--batch 64 --strategy fsdp --mesh dp=2,shard=2", TOLERANCE);
    check(4, "--batch 64 --ordered --strategy zero2 --mesh dp=2,shard=2", TOLERANCE);
    check(4, "--batch 64 --strategy zero1 --mesh dp=2,shard=2 --offload cpu", TOLERANCE);
}

/// In bf16, and added up in f32, or by an all-reduce of that; by the hosts where they have the
/// state.
#[test]
fn gradients_that_travel_in_16_bits_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for (ranks, more) in [
        (2, "--strategy zero1 --reduce bf16 --accumulate 2"),
        (2, "--strategy zero2 --reduce bf16"),
        (4, "--strategy fsdp --reduce bf16 --accumulate 2"),
        (2, "--strategy fsdp --reduce bf16 --offload cpu"),
        (2, "--strategy ddp --compress bf16 --accumulate 2"),
        (2, "--strategy ddp --compress bf16 --optimizer lion"),
    ] {
        check(ranks, &format!("--batch 64 {more}"), TOLERANCE);
    }
    let apart = |flags: &str| {
        let told = args(&format!("--batch 64 {flags} --device cuda"));
        table(2, &Args { quiet: false, ..told })
    };
    for flags in ["--strategy fsdp --reduce bf16", "--strategy ddp --compress bf16"] {
        let told = apart(flags);
        assert!(told.contains("gradients summed by the devices"), "{flags}: {told}");
    }
}

/// What devices do not make less of, their hosts do, as without devices: of gradients that come
/// down and of sums that go up, or, of parts, where they have the state.
#[test]
fn what_hosts_make_less_of_has_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for (ranks, more) in [
        (2, "--strategy ddp --compress f16 --accumulate 2"),
        (2, "--strategy ddp --compress topk:0.2 --accumulate 2"),
        (4, "--strategy ddp --compress powersgd:2"),
        (2, "--strategy ddp --compress powersgd:2 --optimizer lion"),
        (2, "--strategy horovod --accumulate 2 --fusion 4K --cycle 2"),
        (2, "--strategy horovod --offload cpu"),
        (2, "--strategy zero1 --reduce f16 --accumulate 2"),
        (2, "--strategy zero2 --reduce bf16 --ordered --lanes 4"),
        (2, "--strategy fsdp --reduce int4 --gather int8"),
        (4, "--strategy fsdp --secondary --mesh dp=2,shard=2 --reduce int4 --gather int8"),
        (4, "--strategy tp,ddp --mesh dp=2,tp=2 --compress powersgd:2"),
        (4, "--strategy ring,ddp --mesh dp=2,tp=2 --context 12 --compress topk:0.2"),
    ] {
        check(ranks, &format!("--batch 64 --steps 3 {more}"), TOLERANCE);
    }
    let of_state = |flags: &str| {
        let told = args(&format!("--batch 64 --stop-at 1 {flags} --device cuda"));
        let told = table(2, &Args { quiet: false, ..told });
        told.contains("units at a time")
    };
    assert!(!of_state("--strategy ddp --compress topk") && !of_state("--strategy horovod"));
    assert!(of_state("--strategy fsdp --gather int8"));
}

/// Each tile is a unit, so the device needs room for fewer parameters at a time.
#[test]
fn layers_in_tiles_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for (ranks, more) in [
        (1, "--tile 4 --accumulate 2"),
        (2, "--tile 2 --strategy ddp"),
        (2, "--tile 4 --strategy fsdp --accumulate 2"),
        (2, "--tile 2 --strategy zero1 --reduce bf16"),
        (4, "--tile 4 --strategy zero2 --mesh dp=2,shard=2 --ordered"),
        (2, "--tile 4 --strategy fsdp --offload cpu"),
    ] {
        check(ranks, &format!("--batch 64 --steps 3 {more}"), TOLERANCE);
    }
    check_bf16(1, "--tile 4", "");
    check_bf16(2, "--tile 2 --strategy fsdp", "");
    check(1, "--tile 4 --precision f16", 2e-3);
    let wide = "--layers 2 --width 96 --heads 4 --context 8 --batch 4 --steps 3";
    let tight = format!("{wide} --device cuda --device-budget 1500K");
    let refused = train(&args(&tight), None).expect_err("no room for two blocks").to_string();
    assert!(refused.contains("a pass needs 2."), "{refused}");
    let host = train(&args(wide), None).unwrap();
    let device = train(&args(&format!("{tight} --tile 8")), None).unwrap();
    near(&device.losses, &host.losses, TOLERANCE, "in 1500K");
}

/// Workers have devices, and servers need none.
#[test]
fn workers_of_servers_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for (ranks, more) in [
        (1, "--strategy ps --servers 1"),
        (2, "--strategy ps"),
        (3, "--strategy ps --servers 1 --accumulate 2 --device-budget 500K"),
        (3, "--strategy ps --servers 1 --ordered --lanes 4 --recompute"),
        (2, "--strategy ps --optimizer lion --experts 4"),
    ] {
        let host = &world(ranks, &args(&more.replace("--device-budget 500K", "")))[0];
        let more = format!("{more} --device cuda");
        for device in world(ranks, &args(&more)) {
            assert_eq!(device.sent_bytes, device.formula_bytes, "{more}");
            near(&device.losses, &host.losses, TOLERANCE, &more);
            near(device.held_out.as_slice(), host.held_out.as_slice(), TOLERANCE, &more);
        }
    }
    check_bf16(2, "--strategy ps", "");
    // Time decides what a worker sees, but it learns.
    let device = &world(3, &args("--strategy ps-async --servers 1 --steps 12 --device cuda"))[0];
    let [first, last] = [device.losses[0], device.losses[11]];
    assert!(last < 0.95 * first, "{:?}", device.losses);
    let told = table(2, &Args { quiet: false, ..args("--strategy ps --device cuda --stop-at 1") });
    assert!(told.contains("units at a time"), "{told}");
}

#[test]
fn parts_of_more_ranks_and_of_several_lanes_have_the_losses_of_the_processor() {
    if !has_device() {
        return;
    }
    for stage in ["zero1", "zero2", "fsdp"] {
        check(2, &format!("--batch 64 --accumulate 2 --recompute --strategy {stage}"), TOLERANCE);
    }
    for stage in ["zero1", "fsdp"] {
        check(4, &format!("--batch 64 --strategy {stage}"), TOLERANCE);
    }
}

#[test]
fn parts_stay_on_the_device_unless_its_budget_is_too_small() {
    if !has_device() {
        return;
    }
    // Beside a pass of some 820 K a rank's part takes 170 K, two units at a time 85 K.
    for (budget, want) in [("100M", "parts of the state too"), ("900K", "units at a time")] {
        let more = format!(
            "--batch 64 --strategy fsdp --device cuda --device-budget {budget} --stop-at 1"
        );
        let table = table(4, &Args { quiet: false, ..args(&more) });
        println!("{budget}: {table}");
        assert!(table.contains(want), "{budget}: {table}");
    }
}

/// A device that does not hold a model computes it all the same, though nobody says how much of it
/// may be used: ranks take nine tenths of what is free, but for some that other things need.
#[test]
fn a_model_that_is_larger_than_the_device_streams_through_it() {
    let name = "training::a_model_that_is_larger_than_the_device_streams_through_it";
    let memory = Path::new("150000000");
    if brigade_cuda_fake::is_off() || !is_child_with(&[("BRIGADE_FAKE_CUDA_MEMORY", memory)], name)
    {
        return;
    }
    let shape = "--batch 8 --accumulate 2";
    check(2, &format!("{shape} --strategy fsdp"), TOLERANCE);
    // What one rank has room for is too much for each of two.
    for (ranks, where_it_is) in [(1, "which has the state too"), (2, "units at a time")] {
        let told = args(&format!("{shape} --strategy ddp --device cuda --stop-at 1"));
        let told = table(ranks, &Args { quiet: false, ..told });
        assert!(told.contains(where_it_is), "{ranks} ranks: {told}");
    }
}

#[test]
fn rules_that_only_the_host_has_update_there() {
    if !has_device() {
        return;
    }
    check(1, "--optimizer lion", TOLERANCE);
    check(1, "--optimizer lamb --accumulate 2", TOLERANCE);
}

#[test]
fn state_in_cheaper_memory_streams_through_the_device() {
    if !has_device() {
        return;
    }
    let folder = Folder::new();
    check(1, "--offload cpu", TOLERANCE);
    check(1, &format!("--offload nvme:{} --host-budget 4M", folder.0.display()), TOLERANCE);
    check(2, &format!("--strategy fsdp --offload nvme:{}", folder.0.display()), TOLERANCE);
}

#[test]
fn bf16_stays_near_the_processors_losses() {
    if !has_device() {
        return;
    }
    // The processor rounds weights only, a device what products read.
    check(1, "--precision bf16", 1e-2);
    check(2, "--precision bf16 --strategy fsdp", 1e-2);
    check(2, "--precision bf16 --strategy zero1", 1e-2);
    check(1, "--precision bf16 --offload cpu", 1e-2);
}

/// The host has the state, and no rank makes a step whose gradients overflow on any.
#[test]
fn f16_stays_near_the_processors_losses_and_leaves_out_what_overflows() {
    if !has_device() {
        return;
    }
    let shape = "--batch 8 --accumulate 2";
    for (ranks, more) in [
        (1, ""),
        (2, "--strategy fsdp --recompute"),
        (2, "--strategy ddp --compress f16"),
        (1, "--device-budget 400K"),
    ] {
        let host = more.replace("--device-budget 400K", "");
        let host = &world(ranks, &args(&format!("{shape} --precision f16 {host}")))[0];
        let more = format!("{shape} --precision f16 {more} --device cuda");
        for device in world(ranks, &args(&more)) {
            assert_eq!(device.sent_bytes, device.formula_bytes, "{more}");
            near(&device.losses, &host.losses, 2e-3, &more);
            near(device.held_out.as_slice(), host.held_out.as_slice(), 2e-3, &more);
        }
    }
    // From a scale that no gradient survives down to one that all do.
    let folder = Folder::new();
    let file = |name: &str| Some(folder.0.join(name));
    let flags = "--precision f16 --strategy zero2 --device cuda";
    let first = args(&format!("{flags} --stop-at 1"));
    world(2, &Args { checkpoint: file("first"), ..first });
    let mut state = unchecked(&std::fs::read(folder.0.join("first")).unwrap());
    let place = state.windows(7).position(|bytes| bytes == b"65536.0").unwrap();
    state[place..place + 7].copy_from_slice(b"8388608");
    std::fs::write(folder.0.join("large"), state).unwrap();
    let rest = args(&format!("{flags} --steps 12"));
    let rest = &world(2, &Args { resume: file("large"), checkpoint: file("after"), ..rest })[0];
    assert!(rest.losses.iter().all(|loss| loss.is_finite()), "{:?}", rest.losses);
    assert!(rest.losses[10] < rest.losses[0], "{:?}", rest.losses);
    let after = std::fs::read(folder.0.join("after")).unwrap();
    let large = after.windows(7).any(|bytes| bytes == b"8388608");
    assert!(!large, "the scale fell with the first overflow");
}

#[test]
fn a_budget_makes_units_stream_and_a_smaller_one_is_refused() {
    if !has_device() {
        return;
    }
    let all = train(&args("--device cuda"), None).unwrap();
    // All of the state takes some 600 K, two units at a time with a pass 350 K.
    let few = Args { quiet: false, ..args("--device cuda --device-budget 500K") };
    let (streamed, text) = told(&few);
    assert!(text.contains("units at a time"), "{text}");
    near(streamed.held_out.as_slice(), all.held_out.as_slice(), TOLERANCE, "streamed");
    let refused = train(&args("--device cuda --device-budget 100K"), None).unwrap_err().to_string();
    assert!(refused.starts_with("--device-budget: a pass needs "), "{refused}");
}

#[test]
fn attention_in_tiles_has_the_losses_of_the_processor_in_less_memory() {
    if !has_device() {
        return;
    }
    let shape = "--context 24 --heads 5 --steps 2";
    for (precision, tolerance, budget) in [("f32", TOLERANCE, "880K"), ("bf16", 1e-2, "815K")] {
        let more = format!("{shape} --precision {precision}");
        let host = train(&args(&more), None).unwrap();
        // Tiles are for a budget between what passes take with scores and without.
        for (budget, want) in [("16M", false), (budget, true)] {
            let more = format!("{more} --device cuda --device-budget {budget}");
            let (device, text) = told(&Args { quiet: false, ..args(&more) });
            println!("{more}: {text}");
            assert_eq!(text.contains("attention in tiles"), want, "{more}: {text}");
            for (got, want) in device.losses.iter().zip(&host.losses) {
                assert!((got - want).abs() / want < tolerance, "{more}: {got}, not {want}");
            }
        }
    }
}

/// A rank that fails gives its memory back, which waits for the device, where calls of the others
/// may wait for it: they hear of it before.
#[test]
fn a_rank_that_fails_on_a_device_ends_the_others_at_once() {
    let name = "training::a_rank_that_fails_on_a_device_ends_the_others_at_once";
    check_failure(2, "--batch 64 --strategy fsdp", name);
}

/// The same where each block has calls of its own.
#[test]
fn a_rank_that_fails_among_those_who_divide_tensors_ends_the_others_at_once() {
    let name = "training::a_rank_that_fails_among_those_who_divide_tensors_ends_the_others_at_once";
    check_failure(2, "--batch 64 --strategy tp", name);
}

/// A driver need not wait for what uses memory that is freed.
#[test]
fn a_run_that_fails_waits_for_its_kernels_before_their_memory_goes() {
    let fault = ("BRIGADE_FAKE_CUDA_FAULTS", Path::new("cuLaunchKernel@300=1"));
    let frees = ("BRIGADE_FAKE_CUDA_FREES", Path::new("at-once"));
    let name = "training::a_run_that_fails_waits_for_its_kernels_before_their_memory_goes";
    if brigade_cuda_fake::is_off() || !is_child_with(&[fault, frees], name) {
        return;
    }
    let error = train(&args("--batch 64 --device cuda"), None).unwrap_err().to_string();
    assert!(error.contains("CUDA_ERROR_INVALID_VALUE"), "{error}");
}
