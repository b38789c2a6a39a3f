//! A checkpoint of any number of ranks is read at any other.

use std::path::PathBuf;

use brigade_offload::layout::{Directory, Dtype, Hold, Tensor};
use brigade_offload::store::{Checkpoint, StateFile, StoreError, rank_paths};

use crate::place::{Place, everywhere};

const SHAPE: [u64; 2] = [60, 84];

/// The element of a tensor at this place of its whole, in this version.
fn element(version: u64, at: u64) -> u32 {
    (version * 1_000_000 + at) as u32
}

/// The elements that a part holds, in the order of its bytes.
fn elements(part: &Tensor) -> Vec<u64> {
    match &part.hold {
        Hold::Flat { start, count } => (*start..start + count).collect(),
        Hold::Box { start, extent } => (start[0]..start[0] + extent[0])
            .flat_map(|row| {
                (start[1]..start[1] + extent[1]).map(move |column| row * SHAPE[1] + column)
            })
            .collect(),
    }
}

/// The part of rank `rank` of `ranks`: columns, rows, or a flat range.
fn part(kind: usize, rank: u64, ranks: u64) -> Tensor {
    let cut = |size: u64| (size * rank / ranks, size * (rank + 1) / ranks);
    let whole = Tensor::whole("w", Dtype::U32, &SHAPE);
    let hold = match kind {
        0 => {
            let (begin, end) = cut(SHAPE[1]);
            Hold::Box { start: vec![0, begin], extent: vec![SHAPE[0], end - begin] }
        }
        1 => {
            let (begin, end) = cut(SHAPE[0]);
            Hold::Box { start: vec![begin, 0], extent: vec![end - begin, SHAPE[1]] }
        }
        _ => {
            let (begin, end) = cut(SHAPE[0] * SHAPE[1]);
            Hold::Flat { start: begin, count: end - begin }
        }
    };
    Tensor { hold, ..whole }
}

fn save(place: &Place, kind: usize, rank: usize, ranks: usize, version: u64) {
    let paths = rank_paths(&folders(place), rank, ranks);
    let tensor = part(kind, rank as u64, ranks as u64);
    let values: Vec<u32> = elements(&tensor).iter().map(|at| element(version, *at)).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut state =
        match StateFile::open(&place.carrier, &paths, brigade_offload::store::Which::Newest) {
            Ok(state) => state,
            Err(_) => {
                let other = Tensor::whole(format!("own {rank}"), Dtype::U8, &[100]);
                let directory = Directory::pack([other, tensor], 64).unwrap();
                StateFile::create(&place.carrier, &paths, directory, 4096).unwrap()
            }
        };
    let fill = |placed: &brigade_offload::layout::Placed, from: u64, target: &mut [u8]| {
        match placed.tensor.name.as_str() {
            "w" => target.copy_from_slice(&bytes[from as usize..from as usize + target.len()]),
            _ => target.fill(rank as u8),
        }
        Ok(())
    };
    state.save(version, b"", fill).unwrap();
}

/// Two folders, on two devices perhaps: each rank's state has a stripe in either.
fn folders(place: &Place) -> Vec<PathBuf> {
    let folders: Vec<PathBuf> = ["a", "b"].map(|name| place.folder.join(name)).into();
    folders.iter().for_each(|folder| std::fs::create_dir_all(folder).unwrap());
    folders
}

fn check(checkpoint: &Checkpoint, version: u64) {
    for kind in 0..3 {
        for ranks in [1, 2, 3, 7] {
            for rank in 0..ranks {
                let want = part(kind, rank, ranks);
                let mut bytes = vec![0; want.bytes() as usize];
                checkpoint.load(&want, &mut bytes).unwrap();
                let found =
                    bytes.chunks(4).map(|four| u32::from_le_bytes(four.try_into().unwrap()));
                let wanted = elements(&want).into_iter().map(|at| element(version, at));
                assert!(found.eq(wanted), "{kind}: rank {rank} of {ranks}");
            }
        }
    }
}

#[test]
fn what_four_ranks_saved_any_number_loads() {
    everywhere("ranks", |place| {
        for (kind, ranks) in [(0, 4), (1, 3), (2, 5), (0, 1)] {
            for rank in 0..ranks {
                save(place, kind, rank, ranks, 5);
            }
            let folders = folders(place);
            let paths: Vec<_> = (0..ranks).map(|rank| rank_paths(&folders, rank, ranks)).collect();
            let checkpoint = Checkpoint::open(&place.carrier, &paths).unwrap();
            assert_eq!((checkpoint.ranks(), checkpoint.label()), (ranks, 5));
            assert_eq!(checkpoint.tensors().len(), 1 + ranks);
            check(&checkpoint, 5);
        }
    });
}

#[test]
fn ranks_that_were_broken_off_apart_are_read_at_what_all_have() {
    let place = Place::new("apart", Default::default());
    for (version, ranks_done) in [(1, 3), (2, 3), (3, 1)] {
        (0..ranks_done).for_each(|rank| save(&place, 0, rank, 3, version));
    }
    let checkpoint = Checkpoint::find(&place.carrier, &folders(&place)).unwrap();
    assert_eq!(checkpoint.label(), 2);
    check(&checkpoint, 2);
}

#[test]
fn the_folder_is_searched_for_the_newest_whole_checkpoint() {
    let place = Place::new("find", Default::default());
    let find = || Checkpoint::find(&place.carrier, &folders(&place));
    let error = find().unwrap_err().to_string();
    assert!(error.ends_with("no file of a checkpoint"), "{error}");
    (0..4).for_each(|rank| save(&place, 2, rank, 4, 8));
    (0..3).for_each(|rank| save(&place, 0, rank, 3, 9));
    // Copied by somebody, under a name that nobody looks for.
    folders(&place)
        .iter()
        .for_each(|it| std::fs::write(it.join("rank-0-of-2.brigade"), "").unwrap());
    let found = find().unwrap();
    assert_eq!((found.ranks(), found.label()), (3, 9));
    check(&found, 9);
    let remove = |name: &str| {
        folders(&place).iter().for_each(|it| std::fs::remove_file(it.join(name)).unwrap());
    };
    remove("rank-00002-of-00003.brigade");
    let error = find().unwrap_err().to_string();
    assert!(error.ends_with("2 files of a checkpoint of 3 ranks"), "{error}");
}

#[test]
fn what_a_writer_left_that_was_killed_hides_no_checkpoint() {
    let place = Place::new("killed", Default::default());
    let find = || Checkpoint::find(&place.carrier, &folders(&place));
    let begin = |rank: usize, ranks: usize| {
        let directory = Directory::pack([part(0, rank as u64, ranks as u64)], 64).unwrap();
        let paths = rank_paths(&folders(&place), rank, ranks);
        StateFile::create(&place.carrier, &paths, directory, 4096).unwrap();
    };
    // At its start, with nothing beside it: there is nothing to be had.
    begin(0, 1);
    assert!(find().unwrap_err().to_string().contains("nothing was ever committed"));
    (0..4).for_each(|rank| save(&place, 2, rank, 4, 8));
    let check = |ranks: usize, label: u64| {
        let found = find().unwrap();
        assert_eq!((found.ranks(), found.label()), (ranks, label));
        check(&found, label);
    };
    check(4, 8);
    // While ranks make their files, one after the other, of which the last has no length yet.
    begin(0, 3);
    check(4, 8);
    begin(1, 3);
    let last = rank_paths(&folders(&place), 2, 3);
    last.iter().for_each(|path| std::fs::write(path, "").unwrap());
    check(4, 8);
    // One of them has committed, and the others have not.
    save(&place, 0, 0, 3, 8);
    check(4, 8);
    // While it removes what it has gone on from.
    (0..3).for_each(|rank| save(&place, 0, rank, 3, 8));
    for rank in 0..4 {
        let paths = rank_paths(&folders(&place), rank, 4);
        paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        check(3, 8);
    }
}

#[test]
fn what_nobody_holds_is_an_error() {
    let place = Place::new("nobody", Default::default());
    (0..2).for_each(|rank| save(&place, 0, rank, 2, 1));
    let folders = folders(&place);
    let one = Checkpoint::open(&place.carrier, &[rank_paths(&folders, 0, 2)]).unwrap();
    let want = Tensor::whole("w", Dtype::U32, &SHAPE);
    let mut bytes = vec![0; want.bytes() as usize];
    let error = one.load(&want, &mut bytes).unwrap_err().to_string();
    assert!(error.starts_with("nobody holds 2520 of the 5040 elements"), "{error}");
    let other = Tensor::whole("x", Dtype::U32, &SHAPE);
    let error = one.load(&other, &mut bytes).unwrap_err();
    assert!(matches!(error, StoreError::NoTensor { .. }), "{error}");
}
