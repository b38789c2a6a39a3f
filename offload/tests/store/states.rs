//! One state: what is committed is read, what is not leaves no trace, what is damaged is named.

use std::time::Duration;

use brigade_offload::layout::{Directory, Dtype, Placed, Tensor};
use brigade_offload::memory::Category;
use brigade_offload::storage::Priority;
use brigade_offload::storage::simulated::{Rates, SimulatedDevice};
use brigade_offload::store::{Checkpoint, Draft, StateFile, Store, StoreError, Which};

use crate::place::{Place, byte, directory, everywhere, filler};

const BLOCK: u64 = 4096;

/// All tensors of the state are those of this version.
fn check(state: &StateFile, version: u64) {
    let generation = state.generation().expect("a generation");
    assert_eq!((generation.label, generation.note.as_slice()), (version * 10, &b"note"[..]));
    for placed in state.directory().tensors() {
        let mut bytes = vec![0; placed.tensor.bytes() as usize];
        state.read_tensor(placed, 0, &mut bytes).unwrap();
        for (at, found) in bytes.iter().enumerate() {
            assert_eq!(*found, byte(&placed.tensor.name, version, at as u64), "{placed:?} {at}");
        }
    }
    state.verify().unwrap();
}

#[test]
fn what_is_committed_is_read_at_any_number_of_stripes() {
    everywhere("commit", |place| {
        for stripes in 1..=3 {
            let paths = place.paths(&format!("s{stripes}"), stripes);
            let mut state = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
            assert!(state.generation().is_none());
            let error = state.read(0, &mut [0]).unwrap_err();
            assert!(error.to_string().ends_with("any generation, found generations []"), "{error}");
            for version in 1..=3 {
                state.save(version * 10, b"note", filler(version)).unwrap();
                check(&state, version);
                let opened = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap();
                assert_eq!(opened.generation().unwrap().number, version);
                assert!(opened.faults().is_empty());
                check(&opened, version);
            }
            let older = StateFile::open(&place.carrier, &paths, Which::Number(2)).unwrap();
            check(&older, 2);
        }
        assert_eq!(place.arena.ledger().total(), 0, "all staging went back");
    });
}

#[test]
fn a_state_may_have_fewer_blocks_than_stripes_and_none_at_all() {
    everywhere("few", |place| {
        for (name, tensors) in
            [("none", vec![]), ("one", vec![Tensor::whole("t", Dtype::F32, &[2])])]
        {
            let directory = Directory::pack(tensors, 64).unwrap();
            let paths = place.paths(name, 3);
            let mut state = StateFile::create(&place.carrier, &paths, directory, BLOCK).unwrap();
            (1..4).for_each(|version| {
                state.save(version * 10, b"note", filler(version)).unwrap();
            });
            check(&StateFile::open(&place.carrier, &paths, Which::Newest).unwrap(), 3);
        }
        let none: [&str; 0] = [];
        let error = StateFile::open(&place.carrier, &none, Which::Newest).unwrap_err();
        assert!(error.to_string().ends_with("nothing was ever committed"), "{error}");
    });
}

#[test]
fn a_draft_that_is_dropped_leaves_no_trace() {
    everywhere("draft", |place| {
        let paths = place.paths("state", 2);
        let mut state = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
        state.save(10, b"note", filler(1)).unwrap();
        let placed = state.directory().tensors()[3].clone();
        let mut draft = state.begin().unwrap();
        draft.put(&placed, 100, &[7; 5000]).unwrap();
        drop(draft);
        check(&state, 1);
        check(&StateFile::open(&place.carrier, &paths, Which::Newest).unwrap(), 1);
    });
}

#[test]
fn parts_of_tensors_are_changed_in_place() {
    everywhere("parts", |place| {
        let paths = place.paths("state", 2);
        let mut state = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
        state.save(10, b"note", filler(1)).unwrap();
        let placed = state.directory().tensors()[3].clone();
        for version in 2..6 {
            let mut draft = state.begin().unwrap();
            draft.put(&placed, 100, &[version; 9000]).unwrap();
            draft.put(&placed, 200, &[version + 100; 10]).unwrap();
            state.commit(draft, 10, b"note").unwrap();
        }
        let state = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap();
        let mut bytes = vec![0; placed.tensor.bytes() as usize];
        state.read_tensor(&placed, 0, &mut bytes).unwrap();
        for (at, found) in bytes.iter().enumerate() {
            let wanted = match at {
                200..210 => 105,
                100..9100 => 5,
                _ => byte("weights", 1, at as u64),
            };
            assert_eq!(*found, wanted, "byte {at}");
        }
        state.verify().unwrap();
    });
}

#[test]
fn blocks_stream_through_a_draft() {
    everywhere("stream", |place| {
        let paths = place.paths("state", 2);
        let mut state = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
        state.save(1, b"", filler(1)).unwrap();
        let before = all(&state);
        let mut draft = state.begin().unwrap();
        for block in 0..state.geometry().blocks() {
            let buffer = place.arena.take(BLOCK as usize, Category::Staging).unwrap();
            let coming = state.read_block(block, buffer, Priority::Urgent);
            let mut buffer = coming.wait(&place.carrier).unwrap();
            buffer.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
            let going = draft.write_block(block, buffer, Priority::Background).unwrap();
            going.wait(Duration::from_secs(10)).into_buffer().unwrap();
        }
        state.commit(draft, 2, b"").unwrap();
        let after = all(&state);
        for placed in state.directory().tensors() {
            let range = placed.offset as usize..placed.end() as usize;
            let pairs = before[range.clone()].iter().zip(&after[range]);
            assert!(pairs.into_iter().all(|(a, b)| a.wrapping_add(1) == *b), "{placed:?}");
        }
        for gap in state.directory().gaps(0, state.geometry().state_bytes()) {
            assert!(after[gap.start as usize..gap.end as usize].iter().all(|byte| *byte == 0));
        }
    });
}

fn all(state: &StateFile) -> Vec<u8> {
    let mut bytes = vec![0; state.geometry().state_bytes() as usize];
    state.read(0, &mut bytes).unwrap();
    bytes
}

/// Who streams through all of the arena but a little can commit all the same.
#[test]
fn a_commit_needs_little_memory() {
    let place = Place::simulated("little", &SimulatedDevice::new(Rates::default()));
    let paths = place.paths("state", 2);
    let mut state = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    state.save(10, b"note", filler(1)).unwrap();
    let draft = state.begin().unwrap();
    let most = place.arena.take(place.arena.capacity() - (72 << 10), Category::Other).unwrap();
    state.commit(draft, 10, b"note").unwrap();
    let opened = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap();
    check(&opened, 1);
    drop(most);
}

#[test]
fn what_is_shared_between_threads_may_be() {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<StateFile>();
    is_shared::<Checkpoint>();
    is_shared::<Store>();
    is_shared::<Draft>();
}

#[test]
fn a_draft_is_void_when_another_is_begun() {
    let place = Place::simulated("void", &SimulatedDevice::new(Rates::default()));
    let paths = place.paths("state", 1);
    let mut state = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    let mut first = state.begin().unwrap();
    let second = state.begin().unwrap();
    let placed = state.directory().tensors()[0].clone();
    let error = first.put(&placed, 0, &[1]).unwrap_err();
    assert!(matches!(error, StoreError::Superseded { number: 1 }), "{error}");
    let error = state.commit(first, 1, b"").unwrap_err();
    assert!(matches!(error, StoreError::Superseded { number: 1 }), "{error}");
    let error = state.commit(second, 1, b"").unwrap_err().to_string();
    assert_eq!(error, "block 0 of 12 was never written");
}

/// Nor does what is left of one write any more.
#[test]
fn what_is_left_of_a_run_is_void_with_its_draft() {
    let place = Place::simulated("void-runs", &SimulatedDevice::new(Rates::default()));
    let paths = place.paths("state", 2);
    let tensor = Tensor::whole("t", Dtype::U8, &[2 * BLOCK]);
    let directory = Directory::pack([tensor], BLOCK).unwrap();
    let mut state = StateFile::create(&place.carrier, &paths, directory, BLOCK).unwrap();
    let placed = state.directory().tensors()[0].clone();
    let bytes = placed.tensor.bytes() as usize;
    let buffer = place.arena.take(bytes, Category::Other).unwrap();
    let mut first = state.begin().unwrap();
    let run = first.write_part(&placed, 0, bytes, buffer, Priority::Urgent).unwrap();
    state.save(1, b"", filler(1)).unwrap();
    let broken = run.wait(Duration::from_secs(10)).unwrap_err();
    assert!(matches!(*broken.error, StoreError::Superseded { number: 1 }), "{}", broken.error);
    assert!(broken.buffer.is_some());
    state.verify().unwrap();
}

/// On two stripes a part goes block by block, each when the one before has ended.
#[test]
fn parts_move_block_by_block_and_one_not_waited_for_fails_the_commit() {
    everywhere("parts-unsent", |place| {
        let paths = place.paths("state", 2);
        let tensor = Tensor::whole("t", Dtype::U8, &[5 * BLOCK - 100]);
        let directory = Directory::pack([tensor], BLOCK).unwrap();
        let mut state = StateFile::create(&place.carrier, &paths, directory, BLOCK).unwrap();
        let placed = state.directory().tensors()[0].clone();
        let bytes = placed.tensor.bytes() as usize;
        let write = |draft: &mut Draft, value: u8| {
            let mut buffer = place.arena.take(bytes, Category::Other).unwrap();
            buffer.fill(value);
            draft.write_part(&placed, 0, bytes, buffer, Priority::Background).unwrap()
        };
        let limit = Duration::from_secs(10);
        let mut draft = state.begin().unwrap();
        let buffer = write(&mut draft, 1).wait(limit).unwrap();
        state.commit(draft, 1, b"").unwrap();
        let mut draft = state.begin().unwrap();
        drop(write(&mut draft, 2));
        let error = state.commit(draft, 2, b"").unwrap_err();
        assert!(matches!(error, StoreError::Unsent { runs: 1 }), "{error}");
        let draft = state.begin().unwrap();
        let coming = draft.read_part(&placed, 0, bytes, buffer, Priority::Urgent).unwrap();
        assert!(coming.wait(limit).unwrap().iter().all(|byte| *byte == 1));
        // The last block written for itself, out of memory with something else behind the tensor.
        let mut draft = draft;
        let mut last = place.arena.take(BLOCK as usize, Category::Other).unwrap();
        last.fill(9);
        let going = draft.write_block(4, last, Priority::Urgent).unwrap();
        let buffer = going.wait(limit).into_buffer().unwrap();
        assert_eq!(buffer[BLOCK as usize - 101..].iter().filter(|byte| **byte == 9).count(), 1);
        state.commit(draft, 3, b"").unwrap();
        let draft = state.begin().unwrap();
        let buffer = place.arena.take(bytes, Category::Other).unwrap();
        let coming = draft.read_part(&placed, 0, bytes, buffer, Priority::Urgent).unwrap();
        let buffer = coming.wait(limit).unwrap();
        assert_eq!(buffer.iter().filter(|byte| **byte == 9).count(), BLOCK as usize - 100);
        let broken = draft.read_part(&placed, 100, 100, buffer, Priority::Urgent).unwrap_err();
        assert!(matches!(*broken.error, StoreError::Shared { .. }) && broken.buffer.is_some());
    });
}

/// What lies behind a tensor in its last block would be gone with it.
#[test]
fn tensors_that_share_a_block_are_not_moved_alone() {
    let device = SimulatedDevice::new(Rates::default());
    let place = Place::simulated("shared", &device);
    let small = ["a", "b"].map(|name| Tensor::whole(name, Dtype::U8, &[100]));
    let directory = Directory::pack(small, 64).unwrap();
    let paths = place.paths("state", 1);
    let mut state = StateFile::create(&place.carrier, &paths, directory, BLOCK).unwrap();
    state.save(1, b"", filler(1)).unwrap();
    let placed: Vec<Placed> = state.directory().tensors().to_vec();
    let mut draft = state.begin().unwrap();
    let take = || place.arena.take(BLOCK as usize, Category::Other).unwrap();
    for placed in &placed {
        let read = draft.read_part(placed, 0, 100, take(), Priority::Urgent).unwrap_err();
        let wrote = draft.write_part(placed, 0, 100, take(), Priority::Urgent).unwrap_err();
        for broken in [read, wrote] {
            assert!(matches!(*broken.error, StoreError::Shared { .. }), "{}", broken.error);
        }
    }
}

#[test]
fn damage_is_named_with_its_place() {
    let device = SimulatedDevice::new(Rates::default());
    let place = Place::simulated("damage", &device);
    let paths = place.paths("state", 2);
    let mut state = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    state.save(10, b"note", filler(1)).unwrap();
    let at = state.generation().unwrap().place(&state.geometry(), 3);
    assert!(device.flip(&paths[1], at.offset + 1000, 3));
    let error = state.verify().unwrap_err().to_string();
    let start = format!("{}: at byte {}: checksum of a block", paths[1].display(), at.offset);
    assert!(error.starts_with(&start), "{error}");
    // What does not touch the block is still read.
    state.read(0, &mut [0; 3 * BLOCK as usize]).unwrap();
    state.read(0, &mut [0; 3 * BLOCK as usize + 1]).unwrap_err();

    let bytes = device.contents(&paths[0]).unwrap().len() as u64;
    device.truncate(&paths[0], bytes - 1);
    let error = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap_err();
    let wanted = format!("wanted {bytes} bytes, found {}: truncated?", bytes - 1);
    assert!(error.to_string().ends_with(&wanted), "{error}");
    device.truncate(&paths[0], 100);
    let error = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap_err();
    assert!(error.to_string().contains("100 of 4096 bytes, then the file ends"), "{error}");
}

#[test]
fn files_that_are_no_state_are_refused() {
    let device = SimulatedDevice::new(Rates::default());
    let place = Place::simulated("refused", &device);
    let paths = place.paths("state", 2);
    let open = |paths: &[std::path::PathBuf]| {
        StateFile::open(&place.carrier, paths, Which::Newest).unwrap_err().to_string()
    };
    assert!(open(&paths).contains("open of"), "{}", open(&paths));
    let mut state = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    assert!(open(&paths).ends_with("nothing was ever committed"));
    state.save(1, b"", filler(1)).unwrap();
    let turned: Vec<_> = paths.iter().rev().cloned().collect();
    assert!(open(&turned).ends_with("file 0 of 2 is stripe 1 of 2"));
    assert!(open(&paths[..1]).ends_with("file 0 of 1 is stripe 0 of 2"));
    let error = StateFile::open(&place.carrier, &paths, Which::Number(7)).unwrap_err();
    assert!(error.to_string().ends_with("wanted generation 7, found generations [1]"));
    let none = Directory::pack([], 64).unwrap();
    let error = StateFile::create(&place.carrier, &place.paths("b", 1), none, 1000).unwrap_err();
    assert_eq!(
        error.to_string(),
        "block bytes: wanted a power of two from 4 KiB to 64 MiB, got 1000"
    );
}
