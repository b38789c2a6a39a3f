//! What a run on devices leaves is a checkpoint for any other, and the other way round.

use super::has_device;
use super::world::{Folder, TOLERANCE, args, check_legs, near, train, world};
use brigade_trainer::Args;

#[test]
fn a_checkpoint_goes_from_the_device_to_the_processor() {
    if !has_device() {
        return;
    }
    let folder = Folder::new();
    let file = folder.0.join("state.gpt");
    let whole = train(&args(""), None).unwrap();
    let first = args("--device cuda --stop-at 2");
    train(&Args { checkpoint: Some(file.clone()), ..first }, None).unwrap();
    let rest = train(&Args { resume: Some(file), ..args("") }, None).unwrap();
    for (got, want) in rest.losses.iter().zip(&whole.losses[2..]) {
        assert!((got - want).abs() / want < TOLERANCE, "{got} after the device, {want} without");
    }
}

#[test]
fn a_checkpoint_of_parts_goes_to_other_ranks_and_back() {
    if !has_device() {
        return;
    }
    // Four ranks' parts, one processor, two ranks' parts.
    let legs = [
        (4, "--strategy fsdp --device cuda", 1),
        (1, "", 2),
        (2, "--strategy zero2 --device cuda", 4),
    ];
    check_legs("--batch 64", legs);
}

/// Checkpoints know nothing of tiles, whoever has the state.
#[test]
fn a_checkpoint_goes_out_of_tiles_on_devices_and_back() {
    if !has_device() {
        return;
    }
    let streamed = "--tile 2 --strategy zero2 --offload cpu --device cuda";
    let legs = [
        (1, "--tile 4 --device cuda", 1),
        (2, "--strategy fsdp --tile 2 --device cuda", 2),
        (2, streamed, 3),
    ];
    check_legs("--batch 64 --steps 4", legs);
    let back = [(2, streamed, 1), (1, "", 2), (1, "--tile 4 --device cuda", 4)];
    check_legs("--batch 64 --steps 4", back);
}

#[test]
fn files_that_a_device_streamed_its_state_through_are_a_checkpoint() {
    if !has_device() {
        return;
    }
    let whole = train(&args("--batch 12"), None).unwrap().losses;
    let folder = Folder::new();
    let nvme = format!("--offload nvme:{}", folder.0.display());
    let kept = format!("--strategy fsdp --keep {nvme}");
    let mut from = 0;
    for (ranks, device, to) in [(2, "--device cuda", 1), (1, "", 2), (3, "--device cuda", 4)] {
        let more = format!("{kept} {device} --stop-at {to} --batch 12");
        let resume = (from > 0).then(|| folder.0.clone());
        for leg in world(ranks, &Args { resume, ..args(&more) }) {
            near(&leg.losses, &whole[from..to], TOLERANCE, &more);
        }
        from = to;
    }
}
