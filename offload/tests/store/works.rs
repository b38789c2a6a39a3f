//! Works: asked for ahead, waited for when one likes, and counted when they were not there in time.

use std::time::{Duration, Instant};

use brigade_offload::layout::{Dtype, Tensor};
use brigade_offload::memory::Category;
use brigade_offload::storage::Settings;
use brigade_offload::storage::simulated::{Clock, Rates, SimulatedDevice};
use brigade_offload::store::{Store, StoreError};

use crate::place::Place;

const TENSORS: usize = 8;
const BYTES: usize = 256 << 10;
const LIMIT: Duration = Duration::from_secs(60);

fn name(index: usize) -> String {
    format!("layer {index}")
}

/// Tensors in files only, each full of its number; and room for so many in memory. They are read
/// one after the other.
fn filled(place: &Place, in_memory: usize) -> Store {
    let paths = place.paths("t", 1);
    let tensors = (0..TENSORS).map(|index| Tensor::whole(name(index), Dtype::U8, &[BYTES as u64]));
    let category = Category::Optimizer;
    let mut store =
        Store::create(&place.carrier, &paths, tensors, 4096, category, 2 * BYTES).unwrap();
    for index in 0..TENSORS {
        let mut loan = store.get(&name(index)).unwrap();
        loan.fill(index as u8);
        store.put(loan);
    }
    store.commit(1, b"").unwrap();
    drop(store);
    Store::open(&place.carrier, &paths, category, in_memory * BYTES).unwrap()
}

/// A device that takes so long to read a tensor.
fn slow(name: &str, seconds: f64) -> (SimulatedDevice, Place) {
    let rate = BYTES as f64 / seconds;
    let (read_bytes_s, write_bytes_s, clock) = (rate, 1e9, Clock::Real);
    let rates = Rates { read_bytes_s, write_bytes_s, clock, ..Rates::default() };
    let device = SimulatedDevice::new(rates);
    let settings = Settings { block_bytes: BYTES, in_flight: 1, ..Settings::default() };
    let place = Place::simulated_with(name, &device, settings);
    (device, place)
}

#[test]
fn a_prefetch_can_be_asked_and_waited_for() {
    let (_device, place) = slow("works", 0.5);
    let mut store = filled(&place, 4);
    let work = store.prefetch(&name(3), None).unwrap();
    assert!(!work.is_done(&mut store), "half a second is not over");
    let late = work.wait(&mut store, Duration::from_millis(1)).unwrap_err();
    assert!(matches!(&late, StoreError::Late { waited_ms: 1, is_write: false, .. }), "{late}");
    assert!(late.to_string().contains("layer 3"), "{late}");
    work.wait(&mut store, LIMIT).unwrap();
    assert!(work.is_done(&mut store));
    let before = store.tally();
    let loan = store.get(&name(3)).unwrap();
    assert!(loan.iter().all(|byte| *byte == 3));
    store.give_back(loan);
    assert_eq!(store.tally().hits, before.hits + 1, "it was there");
    assert!(work.is_done(&mut store), "whatever has become of the tensor since");
    // What is there already, or was never written, is done at once.
    assert!(store.prefetch(&name(3), None).unwrap().is_done(&mut store));
    assert!(matches!(store.prefetch("layer 9", None), Err(StoreError::NoTensor { .. })));
}

#[test]
fn what_is_waited_for_overtakes_what_is_only_prefetched() {
    let (device, place) = slow("hurry", 0.05);
    let mut store = filled(&place, TENSORS);
    let start = device.moved().read_bytes;
    for index in 0..TENSORS {
        store.prefetch(&name(index), None).unwrap();
    }
    // Asked for last, needed first.
    let loan = store.get(&name(TENSORS - 1)).unwrap();
    let read = (device.moved().read_bytes - start) as usize;
    assert!(read <= 5 * BYTES, "{read}: it waited for all that was asked for before it");
    assert!(loan.iter().all(|byte| usize::from(*byte) == TENSORS - 1));
    store.give_back(loan);
}

#[test]
fn a_get_that_takes_too_long_can_be_tried_again() {
    let (device, place) = slow("again", 0.5);
    let mut store = filled(&place, 4);
    let start = device.moved().read_bytes;
    let uses = store.tally().uses;
    let late = store.get_within(&name(2), Duration::from_millis(1)).unwrap_err();
    assert!(matches!(late, StoreError::Late { .. }), "{late}");
    let loan = store.get(&name(2)).unwrap();
    assert!(loan.iter().all(|byte| *byte == 2));
    assert_eq!((device.moved().read_bytes - start) as usize, BYTES, "it was read once");
    assert_eq!(store.tally().uses, uses + 1, "and used once");
    store.give_back(loan);
}

#[test]
fn what_was_not_there_in_time_is_counted_and_named() {
    let (_device, place) = slow("missed", 0.05);
    let mut store = filled(&place, 4);
    let now = Instant::now();
    let soon = store.prefetch(&name(1), Some(now)).unwrap();
    let later = store.prefetch(&name(5), Some(now + LIMIT)).unwrap();
    soon.wait(&mut store, LIMIT).unwrap();
    later.wait(&mut store, LIMIT).unwrap();
    // Waited for past its time by who uses it.
    store.prefetch(&name(6), Some(Instant::now() + Duration::from_millis(5))).unwrap();
    let loan = store.get(&name(6)).unwrap();
    store.give_back(loan);
    let loan = store.get(&name(5)).unwrap();
    store.give_back(loan);
    assert_eq!(store.tally().missed, 2);
    let missed: Vec<_> = store.missed().collect();
    assert_eq!(missed, [("layer 1", 1), ("layer 6", 1)]);
}

#[test]
fn what_is_put_out_is_in_its_file_when_its_work_is_done() {
    let (device, place) = slow("out", 0.05);
    let mut store = filled(&place, 4);
    let mut loan = store.get(&name(4)).unwrap();
    loan.fill(44);
    let written = device.moved().write_bytes;
    let work = store.put_out(loan).unwrap();
    work.wait(&mut store, LIMIT).unwrap();
    assert!(device.moved().write_bytes - written >= BYTES as u64);
    assert_eq!(store.held().file, TENSORS * BYTES, "it has left memory");
    // Wanted again while it goes, it stays.
    let mut loan = store.get(&name(4)).unwrap();
    assert!(loan.iter().all(|byte| *byte == 44));
    loan.fill(45);
    store.put_out(loan).unwrap();
    store.prefetch(&name(4), None).unwrap().wait(&mut store, LIMIT).unwrap();
    assert_eq!(store.held().clean, BYTES);
    store.commit(2, b"").unwrap();
    let loan = store.get(&name(4)).unwrap();
    assert!(loan.iter().all(|byte| *byte == 45));
    store.give_back(loan);
}
