//! A store of tensors in tiers, on devices that fail, and with the power cut in its commits.

use std::path::PathBuf;
use std::time::Duration;

use brigade_offload::layout::{Dtype, Tensor};
use brigade_offload::memory::Category;
use brigade_offload::storage::simulated::{Faults, SimulatedDevice, Unsynced};
use brigade_offload::store::{Store, StoreError};

use crate::world::{carrier, device, paths};

const TENSORS: usize = 5;
const BYTES: usize = 10_000;
const LIMIT: Duration = Duration::from_secs(60);
const HOST_BYTES: usize = 2 * 12_288;

fn name(index: usize) -> String {
    format!("tensor {index}")
}

fn create(device: &SimulatedDevice, paths: &[PathBuf]) -> Store {
    let tensors = (0..TENSORS).map(|index| Tensor::whole(name(index), Dtype::U8, &[BYTES as u64]));
    let carrier = carrier(device);
    Store::create(&carrier, paths, tensors, 4096, Category::Other, HOST_BYTES).unwrap()
}

/// Set every tensor to this version, and commit.
fn advance(store: &mut Store, version: u8) -> Result<(), StoreError> {
    change(store, version)?;
    store.commit(u64::from(version), b"")
}

fn change(store: &mut Store, version: u8) -> Result<(), StoreError> {
    for index in 0..TENSORS {
        let mut loan = store.get(&name(index))?;
        loan.fill(version);
        store.put(loan);
    }
    Ok(())
}

/// The one version that all tensors have. Panics if there are two.
fn version_of(store: &mut Store) -> Result<u8, StoreError> {
    let mut versions = Vec::new();
    for index in 0..TENSORS {
        let loan = store.get(&name(index))?;
        versions.extend_from_slice(&loan);
        store.give_back(loan);
    }
    assert!(versions.iter().all(|version| *version == versions[0]), "a mix of versions");
    Ok(versions[0])
}

#[test]
fn every_cut_leaves_one_version_of_all_tensors() {
    let device = device();
    let paths = paths(2);
    let mut store = create(&device, &paths);
    advance(&mut store, 1).unwrap();
    device.start_record();
    advance(&mut store, 2).unwrap();
    let done = device.cuts();
    advance(&mut store, 3).unwrap();
    for at in 0..=device.cuts() {
        for unsynced in [Unsynced::Kept, Unsynced::Lost, Unsynced::Tossed(at as u64)] {
            let after = device.after_cut(at, unsynced);
            let opened = Store::open(&carrier(&after), &paths, Category::Other, HOST_BYTES);
            let mut opened = opened.unwrap_or_else(|error| panic!("cut {at}: {error}"));
            let version = version_of(&mut opened).unwrap();
            let allowed = if at < done { [1, 2] } else { [2, 3] };
            assert!(allowed.contains(&version), "{version} at cut {at}, {unsynced:?}");
        }
    }
}

#[test]
fn a_commit_that_fails_leaves_the_one_before() {
    let mut failed = 0;
    for seed in 0..150 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let device = device();
        let paths = paths(2);
        let mut store = create(&device, &paths);
        advance(&mut store, 1).unwrap();
        let mut version = 1;
        for next in 2..6 {
            let chances = 40_000;
            let faults = match rng.usize(..3) {
                0 => Faults { write_refused: chances, ..Faults::default() },
                1 => Faults { sync_refused: chances * 5, ..Faults::default() },
                _ => Faults { full_after_bytes: Some(rng.u64(..150_000)), ..Faults::default() },
            };
            device.set_faults(Faults { seed: rng.u64(..), ..faults });
            let advanced = advance(&mut store, next);
            device.set_faults(Faults::default());
            if advanced.is_ok() {
                version = next;
                continue;
            }
            failed += 1;
            drop(store);
            store = Store::open(&carrier(&device), &paths, Category::Other, HOST_BYTES)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let found = version_of(&mut store).unwrap();
            // The last sync may have failed after everything was written.
            assert!([version, next].contains(&found), "seed {seed}: {found}");
            version = found;
        }
    }
    assert!(failed > 100, "{failed}");
}

#[test]
fn whichever_sync_of_a_commit_fails_the_store_is_where_it_was() {
    for shelves in 1..=2 {
        let (mut failed, mut refused_sync) = (0, 0);
        loop {
            let device = device();
            let paths = paths(shelves);
            let mut store = create(&device, &paths);
            advance(&mut store, 1).unwrap();
            advance(&mut store, 2).unwrap();
            let last = store.last();
            device.set_faults(Faults { refused_sync: Some(refused_sync), ..Faults::default() });
            if advance(&mut store, 3).is_ok() {
                break;
            }
            failed += 1;
            device.set_faults(Faults::default());
            let told = format!("sync {refused_sync} of {shelves} shelves");
            assert_eq!(store.last(), last, "{told}");
            assert_eq!(version_of(&mut store).unwrap(), 2, "{told}");
            // In the files as well, whatever becomes of this process.
            let opened = Store::open(&carrier(&device), &paths, Category::Other, HOST_BYTES);
            assert_eq!(version_of(&mut opened.unwrap()).unwrap(), 2, "{told}");
            advance(&mut store, 4).unwrap();
            drop(store);
            let opened = Store::open(&carrier(&device), &paths, Category::Other, HOST_BYTES);
            assert_eq!(version_of(&mut opened.unwrap()).unwrap(), 4, "{told}");
            refused_sync += 1;
        }
        assert!(failed >= 2 * shelves, "{failed} syncs of {shelves} shelves");
    }
}

/// Before the first commit there is nothing to go back to, in files that were opened for it.
#[test]
fn whichever_sync_of_the_first_commit_fails_the_store_is_new() {
    for shelves in 1..=2 {
        for refused_sync in 0.. {
            let device = device();
            let paths = paths(shelves);
            let open = || Store::open(&carrier(&device), &paths, Category::Other, HOST_BYTES);
            let mut store = create(&device, &paths);
            device.set_faults(Faults { refused_sync: Some(refused_sync), ..Faults::default() });
            let changed = change(&mut store, 1);
            if changed.is_ok() && store.commit(1, b"").is_ok() {
                assert!(refused_sync >= 2 * shelves as u64, "{refused_sync}");
                break;
            }
            device.set_faults(Faults::default());
            let told = format!("sync {refused_sync} of {shelves} shelves");
            assert_eq!(store.last(), None, "{told}");
            let empty = open().unwrap_err().to_string();
            assert!(empty.contains("nothing was ever committed"), "{told}: {empty}");
            if changed.is_ok() {
                assert_eq!(version_of(&mut store).unwrap(), 0, "{told}");
            }
            advance(&mut store, 2).unwrap();
            drop(store);
            assert_eq!(version_of(&mut open().unwrap()).unwrap(), 2, "{told}");
        }
    }
}

/// What cannot be gone back to at once is gone back to before anything else, a commit among it.
#[test]
fn a_store_that_could_not_go_back_does_so_first() {
    let mut unread = 0;
    for refused_sync in 0.. {
        let device = device();
        let paths = paths(2);
        let mut store = create(&device, &paths);
        advance(&mut store, 1).unwrap();
        advance(&mut store, 2).unwrap();
        let last = store.last();
        change(&mut store, 3).unwrap();
        let (refused_sync, read_refused) = (Some(refused_sync), 1_000_000);
        device.set_faults(Faults { refused_sync, read_refused, ..Faults::default() });
        let Err(error) = store.commit(3, b"") else { break };
        if error.to_string().contains("read of") {
            unread += 1;
            assert_eq!(store.last(), last);
            let error = store.get(&name(0)).unwrap_err().to_string();
            assert!(error.contains("read of"), "{error}");
        }
        device.set_faults(Faults::default());
        store.commit(4, b"").unwrap();
        assert_eq!(version_of(&mut store).unwrap(), 2, "{refused_sync:?}");
        drop(store);
        let opened = Store::open(&carrier(&device), &paths, Category::Other, HOST_BYTES);
        assert_eq!(version_of(&mut opened.unwrap()).unwrap(), 2, "{refused_sync:?}");
    }
    assert!(unread > 0, "no commit was one for the first shelf alone");
}

/// What is written again need not fail the commit, nor what only its caller got wrong.
#[test]
fn a_write_that_failed_once_and_a_note_too_long_lose_nothing() {
    let device = device();
    let mut store = create(&device, &paths(2));
    advance(&mut store, 1).unwrap();
    let mut loan = store.get(&name(0)).unwrap();
    loan.fill(2);
    device.set_faults(Faults { write_refused: 1_000_000, ..Faults::default() });
    let error = store.put_out(loan).unwrap().wait(&mut store, LIMIT).unwrap_err();
    assert!(error.to_string().contains("write of"), "{error}");
    device.set_faults(Faults::default());
    change(&mut store, 2).unwrap();
    let error = store.commit(2, &[0; 4000]).unwrap_err();
    assert!(error.to_string().contains("a note of 4000 bytes"), "{error}");
    store.commit(2, b"").unwrap();
    assert_eq!((version_of(&mut store).unwrap(), store.last()), (2, Some((2, 2))));
}

#[test]
fn a_store_goes_on_after_a_commit_that_failed() {
    let device = device();
    let mut store = create(&device, &paths(2));
    advance(&mut store, 1).unwrap();
    device.set_faults(Faults { sync_refused: 1_000_000, ..Faults::default() });
    let error = advance(&mut store, 2).unwrap_err();
    assert!(error.to_string().contains("sync of"), "{error}");
    device.set_faults(Faults::default());
    let version = version_of(&mut store).unwrap();
    assert_eq!(version, 1);
    advance(&mut store, 3).unwrap();
    assert_eq!(version_of(&mut store).unwrap(), 3);
}
