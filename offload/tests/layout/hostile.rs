//! Bytes that are not what was written: refused with their place, or harmless, and never a panic.

use brigade_offload::layout::{
    Checksum, Directory, Dtype, Fault, Geometry, SLOT_BYTES, Superblock, Unrecoverable, Wrong,
    recover,
};

use crate::disk::{Disk, UNIT, blueprint, commit_steps, load, recover_from};

/// Two generations of three blocks on two stripes, all of it durable.
fn written() -> (Disk, [Vec<u8>; 2]) {
    let blueprint = blueprint(3, 2);
    let mut disk = Disk::new(2);
    let (first, steps) = commit_steps(&blueprint, None, 1, &[0, 1, 2]);
    steps.iter().for_each(|step| disk.apply(step));
    let before = loaded(&disk).unwrap();
    let (_, steps) = commit_steps(&blueprint, Some(&first), 2, &[0, 1, 2]);
    steps.iter().for_each(|step| disk.apply(step));
    let after = loaded(&disk).unwrap();
    (disk, [before, after])
}

/// The newest generation that is whole, or what is wrong with all of them.
fn loaded(disk: &Disk) -> Result<Vec<u8>, String> {
    let recovered = recover_from(disk).map_err(|error| error.to_string())?;
    let mut wrong = String::new();
    for candidate in &recovered.candidates {
        match load(disk, candidate) {
            Ok((.., state)) => return Ok(state),
            Err(error) => wrong += &error,
        }
    }
    Err(wrong)
}

#[test]
fn a_flipped_bit_anywhere_is_reported_or_harmless() {
    let (disk, truths) = written();
    let geometry = blueprint(3, 2).geometry;
    let (mut reported, mut older, mut harmless) = (0, 0, 0);
    for stripe in 0..2 {
        let end = geometry.file_bytes(stripe);
        let slots = (0..SLOT_BYTES).chain(64 << 10..(64 << 10) + SLOT_BYTES);
        for offset in slots.chain(128 << 10..end).step_by(3) {
            let mut flipped = disk.clone();
            flipped.change(stripe, offset, |byte| *byte ^= 1 << (offset % 8));
            match loaded(&flipped) {
                Err(_) => reported += 1,
                Ok(state) if state == truths[1] => harmless += 1,
                Ok(state) if state == truths[0] => older += 1,
                Ok(_) => panic!("bit {} of byte {offset} of stripe {stripe}", offset % 8),
            }
        }
    }
    // One slot, one index and half of the blocks of each stripe hold the newest generation.
    assert!(older > 1000, "{older}");
    assert!(harmless > 1000, "{harmless}");
    assert_eq!(reported, 0, "the older generation was whole, so it is found");
}

#[test]
fn the_newest_generation_says_what_is_wrong_with_it() {
    let (mut disk, _) = written();
    let newest = recover_from(&disk).unwrap().candidates[0].clone();
    let (blueprint, generation, _) = load(&disk, &newest).unwrap();
    let place = generation.place(&blueprint.geometry, 1);
    disk.change(place.stripe, place.offset + 17, |byte| *byte ^= 4);
    assert!(load(&disk, &newest).unwrap_err().starts_with("block 1: wanted"));
    disk.change(1, blueprint.geometry.index_offset(2), |byte| *byte ^= 1);
    let error = load(&disk, &newest).unwrap_err();
    assert!(error.starts_with("1: at byte 131072: checksum of the index: wanted"), "{error}");
    disk.change(0, Geometry::slot_offset(0) + 30, |byte| *byte ^= 1);
    let recovered = recover_from(&disk).unwrap();
    assert_eq!(recovered.candidates[0].number(), 1);
    assert_eq!(recovered.faults.len(), 1);
    let (stripe, fault) = &recovered.faults[0];
    assert_eq!((*stripe, fault.offset), (0, 0));
    assert!(matches!(fault.wrong, Wrong::Checksum { what: "the superblock", .. }));
}

#[test]
fn a_superblock_with_a_right_sum_is_not_believed_either() {
    let (disk, _) = written();
    let bytes = disk.read(0, Geometry::slot_offset(0), SLOT_BYTES);
    let whole = Superblock::parse(&bytes, 0).unwrap();
    assert!(whole.encode() == bytes);
    assert!(Superblock::parse(&bytes, 1).is_err(), "generation 2 belongs into slot 0");
    for length in 0..bytes.len() {
        let found = Superblock::parse(&bytes[..length], 0).unwrap_err();
        let wanted = Wrong::Truncated { wanted: SLOT_BYTES, found: length as u64 };
        assert_eq!(found, Fault { offset: 0, wrong: wanted });
    }
    for seed in 0..20_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut hostile = bytes.clone();
        for _ in 0..rng.usize(1..4) {
            hostile[rng.usize(..164)] = [0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)];
        }
        let sum = brigade_offload::layout::checksum(&hostile[..UNIT - 8]);
        hostile[UNIT - 8..].copy_from_slice(&sum.0.to_le_bytes());
        if let Ok(parsed) = Superblock::parse(&hostile, 0) {
            // What passes is within its bounds: arithmetic on it does not overflow.
            let geometry = parsed.geometry;
            assert!(parsed.stripe < geometry.stripes(), "seed {seed}");
            assert!(geometry.file_bytes(parsed.stripe) < 1 << 63, "seed {seed}");
            assert!(parsed.encode() == hostile, "seed {seed}");
        }
    }
}

#[test]
fn files_that_do_not_belong_together_are_named() {
    let (disk, _) = written();
    let slot = |stripe: u32, slot: usize| {
        Superblock::parse(&disk.read(stripe, Geometry::slot_offset(slot), SLOT_BYTES), slot)
    };
    let pair = |stripe| [slot(stripe, 0), slot(stripe, 1)];
    let text = |slots: &[_]| recover(slots).unwrap_err().to_string();
    assert_eq!(text(&[pair(1), pair(0)]), "file 0 of 2 is stripe 1 of 2");
    assert_eq!(text(&[pair(0)]), "file 0 of 1 is stripe 0 of 2");
    let empty = || Err(Fault { offset: 0, wrong: Wrong::Empty });
    assert_eq!(recover(&[[empty(), empty()]]).unwrap_err(), Unrecoverable::Empty);
    let old_only = [empty(), slot(1, 1)];
    let new_only = [slot(0, 0), empty()];
    let wanted = "no generation is on all stripes; found [[2], [1]]";
    assert_eq!(text(&[new_only, old_only]), wanted);
    let foreign = slot(1, 0).map(|superblock| Superblock { state: 7, ..superblock });
    let error = text(&[pair(0), [foreign, empty()]]);
    assert!(error.starts_with("file 1 is part of another state: at byte 0: wanted state"));
    let unbound = slot(1, 0).map(|superblock| Superblock { index: Checksum(9), ..superblock });
    let recovered = recover(&[pair(0), [unbound, slot(1, 1)]]).unwrap();
    assert_eq!(recovered.candidates[0].number(), 1, "the digest is not over that index");
}

#[test]
fn directories_have_bounds() {
    use brigade_offload::layout::Tensor;
    let bad = |tensor: Tensor| Directory::pack([tensor], 64).unwrap_err().to_string();
    assert!(bad(Tensor::flat("t", Dtype::F32, &[4], 2, 3)).contains("no 3 from element 2"));
    assert!(bad(Tensor::flat("t", Dtype::F32, &[4], u64::MAX, 2)).contains("has 4 elements"));
    assert!(bad(Tensor::whole("t", Dtype::F32, &[1 << 40, 1 << 40])).contains("too large"));
    assert!(bad(Tensor::whole("t", Dtype::F32, &[1; 17])).contains("16 dimensions at most"));
    assert!(bad(Tensor::whole("t".repeat(5000), Dtype::F32, &[1])).contains("5000 bytes"));
    let twice = [Tensor::whole("t", Dtype::F32, &[1]), Tensor::whole("t", Dtype::F32, &[1])];
    let error = Directory::pack(twice, 64).unwrap_err().to_string();
    assert_eq!(error, "tensor \"t\" holds the same part twice");
}
