//! Linear layers in tiles: the same forward as whole ones, the same training wherever the tiles
//! come from, in less memory by the formula.

use brigade_trainer::Args;

use crate::world::{Folder, bits, train, world};

/// A block is much longer than the embedding.
fn args(tiles: Option<usize>, more: &str) -> Args {
    let args = crate::world::args(&format!("--ordered --steps 3 {more}"));
    Args { tile: tiles, layers: 1, width: 64, lanes: 6, ..args }
}

#[test]
fn one_tile_is_the_whole_layer_and_several_begin_with_its_bits() {
    let whole = train(&args(None, ""), None).unwrap().losses;
    assert_eq!(bits(&train(&args(Some(1), ""), None).unwrap().losses), bits(&whole));
    for tiles in [2, 4, 16] {
        let losses = train(&args(Some(tiles), ""), None).unwrap().losses;
        // Four columns are multiplied in another way than many.
        let is_alike = losses[0].to_bits() == whole[0].to_bits();
        assert!(is_alike || tiles == 16, "{tiles} tiles");
        for (here, there) in losses.iter().zip(&whole) {
            assert!((here - there).abs() / there < 1e-5, "{tiles} tiles: {here}, not {there}");
        }
    }
}

#[test]
fn tiles_have_one_training_wherever_they_come_from() {
    let alone = train(&args(Some(4), ""), None).unwrap();
    let folder = Folder::new();
    for strategy in ["ddp", "zero1", "zero2", "fsdp"] {
        for tier in ["", "--offload cpu", &folder.nvme()] {
            for ranks in [1, 2, 3] {
                let flags = format!("--strategy {strategy} {tier}");
                for outcome in world(ranks, &args(Some(4), &flags)) {
                    let what = format!("{flags}, {ranks} ranks");
                    assert_eq!(bits(&outcome.losses), bits(&alone.losses), "{what}");
                    assert_eq!(
                        outcome.held_out.map(f64::to_bits),
                        alone.held_out.map(f64::to_bits),
                        "{what}"
                    );
                    assert_eq!(outcome.sent_bytes, outcome.formula_bytes, "{what}");
                    let (used, formula) = (outcome.disk, outcome.disk_formula);
                    assert_eq!(used.read_bytes, formula.read_bytes, "{what}");
                    assert_eq!(used.written_bytes, formula.written_bytes, "{what}");
                }
            }
        }
    }
}

/// Whole units are in memory four times, two of parameters and two of gradients, and two more in
/// parts of all ranks: each is as long as the embedding now, not as a block.
#[test]
fn rooms_are_as_long_as_the_longest_that_is_left() {
    let held = |tiles| world(2, &args(tiles, "--strategy fsdp"))[0].ranks[0].memory_bytes;
    let (c, rows, tiles) = (64, 2 * 24, 4);
    let (block, embedding) = (12 * c * c + 13 * c, (256 + 24) * c);
    let saved = 6 * (block - embedding);
    // What a tile makes, and gradients of it and of what went into it.
    let room = rows * 4 * c / tiles + rows * 5 * c;
    assert_eq!(held(None) - held(Some(tiles)), 4 * (saved - room) as u64);
}

/// A checkpoint knows nothing of tiles.
#[test]
fn a_run_goes_on_in_tiles_and_back() {
    let folder = Folder::new();
    let file = folder.file("state");
    let first = args(None, "--strategy zero1");
    world(2, &Args { checkpoint: file.clone(), stop_at: Some(1), ..first });
    let second = Args { resume: file, checkpoint: folder.file("next"), ..args(Some(4), "") };
    let losses = train(&Args { stop_at: Some(2), ..second }, None).unwrap().losses;
    let third = Args { resume: folder.file("next"), ..args(None, "--strategy fsdp") };
    let whole = train(&args(None, ""), None).unwrap().losses;
    assert_eq!(losses[0].to_bits(), whole[1].to_bits(), "the same forward from the same state");
    for outcome in world(2, &third) {
        assert!((outcome.losses[0] - whole[2]).abs() / whole[2] < 1e-5);
    }
}

#[test]
fn what_has_no_tiles_is_refused() {
    for (tiles, flags, ranks) in [
        (3, "", 1),
        (0, "", 1),
        (4, "--recompute", 1),
        (4, "--strategy tp", 2),
        (4, "--strategy 1f1b", 2),
        (4, "--experts 2", 1),
        (4, "--optimizer lamb", 1),
    ] {
        let mut args = args(Some(tiles), "");
        if !flags.is_empty() {
            args = Args { tile: Some(tiles), ..crate::world::args(flags) };
        }
        let refused = args.validate(ranks).unwrap_err().to_string();
        assert!(refused.starts_with("--tile: "), "{flags}: {refused}");
    }
}
