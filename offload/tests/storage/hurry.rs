//! A request that somebody has begun to wait for goes before those that nobody waits for.

use std::path::Path;

use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::storage::simulated::{Clock, Rates, SimulatedDevice};
use brigade_offload::storage::{Pending, Priority, Settings, Storage};

use crate::world::done;

const PIECE: usize = 256 << 10;
const PIECES: usize = 32;

/// A device on which all pieces take half a second, two blocks at a time.
fn slow() -> (SimulatedDevice, Storage, Arena) {
    let (read_bytes_s, write_bytes_s) = (16e6, 16e6);
    let rates = Rates { read_bytes_s, write_bytes_s, clock: Clock::Real, ..Rates::default() };
    let device = SimulatedDevice::new(rates);
    let settings = Settings { block_bytes: PIECE, in_flight: 2, ..Settings::default() };
    let storage = Storage::simulated(&device, settings).unwrap();
    (device, storage, Arena::new(Budget::new(2 * PIECE * PIECES)).unwrap())
}

#[test]
fn what_is_hurried_overtakes_what_was_asked_for_before_it() {
    let (device, storage, arena) = slow();
    let file = storage.create(Path::new("state"), (PIECE * PIECES) as u64).unwrap();
    let begin = |n: usize| {
        let buffer = arena.take(PIECE, Category::Staging).unwrap();
        storage.read(&file, (n * PIECE) as u64, buffer, 0..PIECE, Priority::Background)
    };
    let mut reads: Vec<Pending> = (0..PIECES).map(begin).collect();
    let last = reads.pop().unwrap();
    last.hurry();
    // Again is as good as once.
    last.hurry();
    drop(done(last));
    let read_bytes = device.moved().read_bytes as usize;
    assert!(read_bytes <= 8 * PIECE, "{read_bytes}: it waited its turn");
    assert!(!reads[PIECES - 2].is_done(), "the others are still on their way");
    for read in reads {
        drop(done(read));
    }
    assert_eq!(device.moved().read_bytes as usize, PIECES * PIECE, "each was read once");
}

#[test]
fn hurrying_what_is_done_or_dropped_does_nothing() {
    let (_device, storage, arena) = slow();
    let file = storage.create(Path::new("state"), PIECE as u64).unwrap();
    let buffer = arena.take(4096, Category::Staging).unwrap();
    let read = storage.read(&file, 0, buffer, 0..4096, Priority::Background);
    while !read.is_done() {
        std::thread::yield_now();
    }
    read.hurry();
    let buffer = done(read);
    storage.read(&file, 0, buffer, 0..4096, Priority::Background).hurry();
    storage.sync(&file).hurry();
    drop(storage);
    assert_eq!(arena.ledger().total(), 0);
}
