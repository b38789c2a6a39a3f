//! A thousand seeded mishaps: every one is reported by whom it happened to, or it did not matter.

use std::path::Path;
use std::time::Duration;

use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::storage::simulated::{Clock, Faults, Moved, Rates, SimulatedDevice, Unsynced};
use brigade_offload::storage::{Operation, Priority, Settings, Storage, StorageError, wait_all};

use crate::world::{LIMIT, done, outcome};

const KIB: usize = 1 << 10;
const SETTINGS: Settings = Settings {
    engine: brigade_offload::storage::EngineChoice::Auto,
    block_bytes: 16 << 10,
    in_flight: 4,
    is_polled: false,
};

fn arena() -> Arena {
    Arena::new(Budget::new(8 << 20)).unwrap()
}

/// Write four requests, sync, read them back; say what was claimed and what is true.
fn trial(seed: u64, faults: Faults) {
    let arena = arena();
    let device = SimulatedDevice::new(Rates::default());
    let storage = Storage::simulated(&device, SETTINGS).unwrap();
    let piece = 100 * KIB;
    let file = storage.create(Path::new("state"), 4 * piece as u64).unwrap();
    device.set_faults(Faults { seed, ..faults });
    let mut random = fastrand::Rng::with_seed(seed);
    let mut want = vec![0; 4 * piece];
    random.fill(&mut want);
    let writes: Vec<_> = want
        .chunks(piece)
        .enumerate()
        .map(|(n, bytes)| {
            let mut buffer = arena.take(piece, Category::Staging).unwrap();
            buffer.copy_from_slice(bytes);
            storage.write(&file, (n * piece) as u64, buffer, 0..piece, Priority::Background)
        })
        .collect();
    let sync = storage.sync(&file);
    let results: Vec<_> = writes.into_iter().map(|write| outcome(write).result).collect();
    let sync = outcome(sync).result;
    let stored = device.contents(Path::new("state")).unwrap();
    for (n, result) in results.iter().enumerate() {
        let range = n * piece..(n + 1) * piece;
        match result {
            Ok(bytes) => {
                assert_eq!(*bytes, piece, "seed {seed}");
                assert_eq!(stored[range.clone()], want[range], "seed {seed}: claimed, not there");
            }
            Err(StorageError::Refused { operation, offset, wanted_bytes, got_bytes, .. }) => {
                assert_eq!((*operation, *offset), (Operation::Write, range.start as u64));
                assert_eq!(*wanted_bytes, piece as u64);
                assert!(*got_bytes < piece as u64, "seed {seed}");
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    if results.iter().any(Result::is_err) {
        let is_told = matches!(sync, Err(StorageError::WriteFailed { .. }));
        assert!(is_told, "seed {seed}: the sync kept quiet: {sync:?}");
    }
    for (n, result) in results.iter().enumerate().filter(|(_, result)| result.is_ok()) {
        let buffer = arena.take(piece, Category::Staging).unwrap();
        let offset = (n * piece) as u64;
        let read = outcome(storage.read(&file, offset, buffer, 0..piece, Priority::Urgent));
        match read.result {
            Ok(_) => {
                let read = read.buffer.unwrap();
                assert_eq!(read[..], want[n * piece..][..piece], "seed {seed}: {result:?}");
            }
            Err(why) => assert_eq!(why.errno(), Some(libc::EIO), "seed {seed}: {why}"),
        }
    }
    drop(storage);
    assert_eq!(arena.ledger().free(), arena.capacity(), "seed {seed}: memory was lost");
}

#[test]
fn a_thousand_trials_of_refused_and_short_transfers_claim_nothing_untrue() {
    for seed in 0..1000 {
        let full_after_bytes = (seed % 4 == 0).then_some(seed * 811 % 420_000);
        let refused = if seed % 3 == 0 { 60_000 } else { 0 };
        trial(
            seed,
            Faults {
                read_refused: refused,
                write_refused: refused,
                sync_refused: refused,
                short: if seed % 2 == 0 { 200_000 } else { 0 },
                full_after_bytes,
                ..Faults::default()
            },
        );
    }
}

#[test]
fn a_full_device_is_an_error_at_creation_or_at_the_write_that_meets_it() {
    let arena = arena();
    let device = SimulatedDevice::new(Rates::default());
    let storage = Storage::simulated(&device, SETTINGS).unwrap();
    device.set_faults(Faults { capacity_bytes: Some(50_000), ..Faults::default() });
    let refused = storage.create(Path::new("big"), 60_000).unwrap_err();
    assert!(refused.is_full() && refused.to_string().contains("big"), "{refused}");
    let file = storage.create(Path::new("fits"), 50_000).unwrap();
    assert!(storage.extend(&file, 50_001).unwrap_err().is_full());
    device.set_faults(Faults { full_after_bytes: Some(20_000), ..Faults::default() });
    let buffer = arena.take(50_000, Category::Staging).unwrap();
    let write = outcome(storage.write(&file, 0, buffer, 0..50_000, Priority::Background));
    match write.result {
        Err(StorageError::Refused { wanted_bytes: 50_000, got_bytes, errno, .. }) => {
            assert_eq!(errno, libc::ENOSPC);
            assert!(got_bytes <= 20_000);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_sync_stays_failed_and_a_failed_write_is_told_once() {
    let arena = arena();
    let device = SimulatedDevice::new(Rates::default());
    let storage = Storage::simulated(&device, SETTINGS).unwrap();
    let file = storage.create(Path::new("state"), 4096).unwrap();
    let write = |refused| {
        device.set_faults(Faults { write_refused: refused, ..Faults::default() });
        let buffer = arena.take(4096, Category::Staging).unwrap();
        outcome(storage.write(&file, 0, buffer, 0..4096, Priority::Background)).result.is_ok()
    };
    assert!(!write(1_000_000));
    let told = outcome(storage.sync(&file)).result.unwrap_err();
    assert_eq!(told.errno(), Some(libc::EIO), "{told}");
    assert!(write(0));
    outcome(storage.sync(&file)).result.unwrap();
    device.set_faults(Faults { sync_refused: 1_000_000, ..Faults::default() });
    outcome(storage.sync(&file)).result.unwrap_err();
    device.set_faults(Faults::default());
    outcome(storage.sync(&file)).result.unwrap_err();
    let again = storage.open(Path::new("state")).unwrap();
    outcome(storage.sync(&again)).result.unwrap();
}

#[test]
fn flipped_bits_pass_the_engine_unseen_and_are_counted_by_the_device() {
    let arena = arena();
    let device = SimulatedDevice::new(Rates::default());
    let storage = Storage::simulated(&device, SETTINGS).unwrap();
    let file = storage.create(Path::new("state"), 64 << 10).unwrap();
    device.set_faults(Faults { read_flipped: 1_000_000, ..Faults::default() });
    let buffer = arena.take(64 << 10, Category::Staging).unwrap();
    let read = done(storage.read(&file, 0, buffer, 0..64 << 10, Priority::Urgent));
    let ones: u32 = read.iter().map(|byte| byte.count_ones()).sum();
    assert_eq!(u64::from(ones), device.moved().faults);
    assert_eq!(ones, 4);
    assert!(device.flip(Path::new("state"), 9, 3));
    assert_eq!(device.contents(Path::new("state")).unwrap()[9], 8);
}

#[test]
fn rates_hold_and_both_directions_run_at_once() {
    let arena = arena();
    let rates = Rates {
        read_bytes_s: 20e6,
        write_bytes_s: 20e6,
        clock: Clock::Real,
        latency: Duration::from_micros(100),
        ..Rates::default()
    };
    // A busy machine makes it slower; whether both directions run at once one try in five shows.
    let took_s = |is_half_duplex: bool, want_s: f64| {
        let device = SimulatedDevice::new(Rates { is_half_duplex, ..rates });
        let storage = Storage::simulated(&device, SETTINGS).unwrap();
        let bytes = 1 << 20;
        let file = storage.create(Path::new("state"), 4 << 20).unwrap();
        let take = || arena.take(bytes, Category::Staging).unwrap();
        let start = std::time::Instant::now();
        let both = [
            storage.write(&file, 0, take(), 0..bytes, Priority::Background),
            storage.write(&file, 1 << 20, take(), 0..bytes, Priority::Background),
            storage.read(&file, 2 << 20, take(), 0..bytes, Priority::Background),
            storage.read(&file, 3 << 20, take(), 0..bytes, Priority::Background),
        ];
        both.into_iter().for_each(|one| drop(done(one)));
        let took_s = start.elapsed().as_secs_f64();
        assert!(took_s >= want_s * 0.97, "{took_s} s: faster than the device");
        let want = Moved { reads: 128, writes: 128, ..device.moved() };
        assert_eq!(device.moved(), want);
        took_s
    };
    for (is_half_duplex, want_s) in [(false, 0.105), (true, 0.21)] {
        let limit_s = want_s * 1.9;
        let is_quick = (0..5).any(|_| took_s(is_half_duplex, want_s) < limit_s);
        assert!(is_quick, "five times more than {limit_s} s: it is serial");
    }
}

#[test]
fn an_urgent_read_overtakes_what_was_asked_for_before_it() {
    let arena = arena();
    let (read_bytes_s, write_bytes_s) = (4e6, 4e6);
    let clock = Clock::Real;
    let rates =
        Rates { read_bytes_s, write_bytes_s, clock, is_half_duplex: true, ..Rates::default() };
    let device = SimulatedDevice::new(rates);
    let storage = Storage::simulated(&device, SETTINGS).unwrap();
    let file = storage.create(Path::new("state"), 8 << 20).unwrap();
    let take = |bytes| arena.take(bytes, Category::Staging).unwrap();
    let behind: Vec<_> = [
        storage.write(&file, 0, take(2 << 20), 0..2 << 20, Priority::Background),
        storage.read(&file, 2 << 20, take(2 << 20), 0..2 << 20, Priority::Background),
    ]
    .into();
    let urgent = storage.read(&file, 4 << 20, take(128 << 10), 0..128 << 10, Priority::Urgent);
    drop(done(urgent));
    let moved = device.moved();
    let is_early = moved.read_bytes + moved.write_bytes < 1 << 20;
    assert!(is_early, "{moved:?}: the urgent read waited its turn");
    behind.into_iter().for_each(|one| drop(done(one)));
}

#[test]
fn power_cut_at_any_moment_leaves_what_was_synced() {
    let arena = arena();
    let device = SimulatedDevice::new(Rates::default());
    let storage = Storage::simulated(&device, SETTINGS).unwrap();
    let bytes = 40 * KIB;
    let file = storage.create(Path::new("state"), bytes as u64).unwrap();
    device.start_record();
    let mut synced_at = vec![0];
    for generation in 1..=3_u8 {
        let mut buffer = arena.take(bytes, Category::Staging).unwrap();
        buffer.fill(generation);
        drop(storage.write(&file, 0, buffer, 0..bytes, Priority::Background));
        outcome(storage.sync(&file)).result.unwrap();
        synced_at.push(device.cuts());
    }
    assert_eq!(synced_at, [0, 11, 22, 33]);
    for at in 0..=device.cuts() {
        let generation = synced_at.iter().rposition(|synced| *synced <= at).unwrap() as u8;
        let lost = device.after_cut(at, Unsynced::Lost).contents(Path::new("state")).unwrap();
        assert!(lost.iter().all(|byte| *byte == generation), "moment {at}");
        for seed in 0..20 {
            let after = device.after_cut(at, Unsynced::Tossed(seed));
            let found = after.contents(Path::new("state")).unwrap();
            let is_allowed = |byte: &u8| *byte == generation || *byte == generation + 1;
            assert!(found.iter().all(is_allowed), "moment {at}, seed {seed}");
        }
    }
}

#[test]
fn a_wait_that_is_too_short_says_so_and_the_request_goes_on() {
    let arena = arena();
    let (read_bytes_s, write_bytes_s) = (1e6, 1e6);
    let rates = Rates { read_bytes_s, write_bytes_s, clock: Clock::Real, ..Rates::default() };
    let device = SimulatedDevice::new(rates);
    let storage = Storage::simulated(&device, SETTINGS).unwrap();
    let file = storage.create(Path::new("state"), 200_000).unwrap();
    let mut buffer = arena.take(200_000, Category::Staging).unwrap();
    buffer.fill(3);
    let write = storage.write(&file, 0, buffer, 0..200_000, Priority::Background);
    assert!(!write.is_done());
    assert!(!write.wait_until_done(Duration::from_millis(5)));
    let late = wait_all(vec![write], Duration::from_millis(5)).remove(0);
    assert!(late.buffer.is_none());
    assert!(matches!(late.result, Err(StorageError::Late { waited_ms: 5, .. })), "{late:?}");
    assert!(arena.ledger().total() >= 200_000, "the memory is the device's until it is done");
    storage.sync(&file).wait(LIMIT).result.unwrap();
    assert_eq!(arena.ledger().total(), 0);
    assert!(device.contents(Path::new("state")).unwrap().iter().all(|byte| *byte == 3));
}
