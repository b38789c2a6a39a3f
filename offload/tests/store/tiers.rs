//! Tensors in tiers: a budget that holds, fetching in time, nothing lost.

use std::path::PathBuf;

use brigade_offload::layout::{Dtype, Tensor};
use brigade_offload::memory::Category;
use brigade_offload::storage::simulated::{Rates, SimulatedDevice};
use brigade_offload::store::{Checkpoint, Store, StoreError, Tally};

use crate::place::{KIB, Place, everywhere};

const TENSORS: usize = 8;
const BYTES: usize = 60_000;

fn name(index: usize) -> String {
    format!("layer {index}")
}

fn create(place: &Place, paths: &[PathBuf], in_memory: usize) -> Store {
    let tensors =
        (0..TENSORS).map(|index| Tensor::whole(name(index), Dtype::U32, &[BYTES as u64 / 4]));
    let host_bytes = in_memory * BYTES.next_multiple_of(4 * KIB);
    Store::create(&place.carrier, paths, tensors, 4096, Category::Optimizer, host_bytes).unwrap()
}

/// Add one to every element of every tensor, forward and backward.
fn step(store: &mut Store, before: u32) {
    for (half, indices) in
        [(0..TENSORS).collect::<Vec<_>>(), (0..TENSORS).rev().collect()].into_iter().enumerate()
    {
        for index in indices {
            let mut loan = store.get(&name(index)).unwrap();
            let wanted = before + half as u32;
            assert!(loan.view::<u32>().iter().all(|value| *value == wanted), "{index}");
            loan.view_mut::<u32>().fill(wanted + 1);
            store.put(loan);
        }
    }
}

fn order() -> Vec<String> {
    (0..TENSORS).chain((0..TENSORS).rev()).map(name).collect()
}

fn check_ledger(place: &Place, store: &Store) {
    let held = store.held();
    let in_memory = held.clean + held.changed + held.moving + held.lent;
    let ledger = place.arena.ledger();
    let lent = ledger.held(Category::Optimizer);
    assert_eq!(in_memory, lent, "{held:?} against {ledger}");
    assert_eq!(in_memory + held.file, TENSORS * BYTES.next_multiple_of(4 * KIB));
}

#[test]
fn a_store_four_times_its_memory_loses_nothing() {
    everywhere("tiers", |place| {
        for paths in 1..=3 {
            let paths = place.paths(&format!("t{paths}"), paths);
            let mut store = create(place, &paths, 2);
            store.expect(&order()).unwrap();
            for round in 0..4 {
                step(&mut store, round * 2);
                check_ledger(place, &store);
                assert!(place.arena.ledger().held(Category::Optimizer) <= 2 * 61440);
                if round % 2 == 1 {
                    store.commit(u64::from(round), b"").unwrap();
                }
            }
            drop(store);
            assert_eq!(place.arena.ledger().held(Category::Optimizer), 0);
            let host_bytes = 3 * BYTES.next_multiple_of(4 * KIB);
            let reopened = Store::open(&place.carrier, &paths, Category::Optimizer, host_bytes);
            let mut store = reopened.unwrap();
            step(&mut store, 8);
            // The files are a checkpoint like any other.
            let ranks: Vec<_> = paths.iter().map(|path| vec![path.clone()]).collect();
            let checkpoint = Checkpoint::open(&place.carrier, &ranks).unwrap();
            assert_eq!(checkpoint.label(), 3);
            let want = Tensor::whole(name(5), Dtype::U32, &[BYTES as u64 / 4]);
            let mut bytes = vec![0; BYTES];
            checkpoint.load(&want, &mut bytes).unwrap();
            assert!(bytes.chunks(4).all(|four| four == [8, 0, 0, 0]));
        }
    });
}

/// Commits to some of a store's files would leave no generation that all of them have.
#[test]
fn a_store_opens_with_all_of_its_files_each_once() {
    everywhere("all", |place| {
        let paths = place.paths("t", 3);
        let mut store = create(place, &paths, 2);
        store.commit(1, b"").unwrap();
        drop(store);
        let open = |paths: &[&PathBuf]| {
            Store::open(&place.carrier, paths, Category::Optimizer, 1 << 20)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let [a, b, c] = [&paths[0], &paths[1], &paths[2]];
        for some in [&[a][..], &[c, a]] {
            let error = open(some).unwrap_err();
            let wanted = format!("of the 3 of a store, of which {} are named", some.len());
            assert!(error.contains(&wanted) && error.contains("name all of them"), "{error}");
        }
        assert!(open(&[a, b, c, b]).unwrap_err().contains("the same state twice"));
        let others = place.paths("u", 3);
        let mut other = create(place, &others, 2);
        other.commit(1, b"").unwrap();
        drop(other);
        assert!(open(&[a, b, &others[2]]).unwrap_err().contains("of which 2 are named"));
        // In which order does not matter, nor what stands beside them.
        open(&[c, a, b]).unwrap();
        let (limit_bytes, paths) = (BYTES, place.paths("v", 1));
        let tensor = || [Tensor::whole("long", Dtype::U8, &[BYTES as u64])];
        let short =
            Store::create(&place.carrier, &paths, tensor(), 4096, Category::Optimizer, limit_bytes);
        let error = short.unwrap_err().to_string();
        assert!(error.contains("61440 bytes of memory, and the store has 60000"), "{error}");
    });
}

/// Who opened a store while another was committing to it sees what was there before, and must not
/// take the commit away when it writes.
#[test]
fn a_commit_that_was_seen_on_some_files_only_is_not_erased() {
    let place = Place::new("halfway", Default::default());
    let paths = place.paths("t", 2);
    let mut store = create(&place, &paths, 4);
    let mut halfway = Vec::new();
    for label in 1..=3 {
        halfway = std::fs::read(&paths[1]).unwrap();
        step(&mut store, 2 * (label - 1));
        store.commit(u64::from(label), b"").unwrap();
    }
    drop(store);
    let whole = std::fs::read(&paths[1]).unwrap();
    std::fs::write(&paths[1], halfway).unwrap();
    let open = || Store::open(&place.carrier, &paths, Category::Optimizer, 8 * 61440).unwrap();
    let mut late = open();
    assert_eq!(late.last().map(|(_, label)| label), Some(2));
    std::fs::write(&paths[1], whole).unwrap();
    for index in [0, 1] {
        let loan = late.get(&name(index)).unwrap();
        late.put(loan);
    }
    let error = late.commit(3, b"").unwrap_err().to_string();
    assert!(error.contains("somebody else has written to it"), "{error}");
    drop(late);
    assert_eq!(open().last().map(|(_, label)| label), Some(3));
}

#[test]
fn what_is_needed_next_is_there_in_time() {
    let place = Place::simulated("ahead", &SimulatedDevice::new(Rates::default()));
    let mut store = create(&place, &place.paths("t", 2), 4);
    store.expect(&order()).unwrap();
    step(&mut store, 0);
    step(&mut store, 2);
    let before = store.tally();
    step(&mut store, 4);
    let after = store.tally();
    assert_eq!(after.uses - before.uses, 2 * TENSORS as u64);
    assert_eq!(after.surprises, 0);
    // On a machine that is busy elsewhere, a write may not have made room yet when it is needed.
    assert!(after.misses - before.misses <= 3, "most is fetched ahead: {before:?} {after:?}");
    assert_eq!(after.hits + after.late + after.misses, after.uses);
    // Forward and backward with four in memory: at either turn four are there already.
    let moved = (after.read_bytes - before.read_bytes) / 61440;
    assert!(moved <= 10, "{moved} tensors read: what is needed last makes room");
}

#[test]
fn a_use_out_of_order_is_served_and_counted() {
    let place = Place::simulated("surprise", &SimulatedDevice::new(Rates::default()));
    let mut store = create(&place, &place.paths("t", 1), 3);
    store.expect(&order()).unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut truth = [0_u32; TENSORS];
    for _ in 0..200 {
        let index = rng.usize(..TENSORS);
        let mut loan = store.get(&name(index)).unwrap();
        assert!(loan.view::<u32>().iter().all(|value| *value == truth[index]));
        if rng.bool() {
            truth[index] += 1;
            loan.view_mut::<u32>().fill(truth[index]);
            store.put(loan);
        } else {
            store.give_back(loan);
        }
        check_ledger(&place, &store);
    }
    let Tally { surprises, uses, .. } = store.tally();
    assert!(surprises > 100 && surprises < uses, "{surprises} of {uses}");
}

#[test]
fn what_cannot_be_is_refused_with_the_numbers() {
    let place = Place::simulated("full", &SimulatedDevice::new(Rates::default()));
    let mut store = create(&place, &place.paths("t", 1), 2);
    let first = store.get(&name(0)).unwrap();
    assert!(matches!(store.get(&name(0)).unwrap_err(), StoreError::Lent { .. }));
    let second = store.get(&name(1)).unwrap();
    let error = store.get(&name(2)).unwrap_err().to_string();
    assert!(error.starts_with("61440 bytes do not fit into a host tier of 122880"), "{error}");
    assert!(matches!(store.commit(1, b"").unwrap_err(), StoreError::Lent { .. }));
    store.give_back(first);
    store.put(second);
    let third = store.get(&name(2)).unwrap();
    store.put(third);
    assert!(matches!(store.get("layer 9").unwrap_err(), StoreError::NoTensor { .. }));
    store.commit(1, b"").unwrap();
}
