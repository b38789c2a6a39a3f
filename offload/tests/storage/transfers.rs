//! Bytes in, the same bytes out: any offset, any length, many at once, both ways.

use std::time::Duration;

use brigade_offload::storage::{Priority, Settings, StorageError, wait_all};

use crate::world::{LIMIT, check, done, outcome};

const MIB: usize = 1 << 20;

#[test]
fn what_is_written_is_read_again_and_is_in_the_file() {
    check(Settings::default(), |world| {
        for bytes in [0, 1, 511, 512, 4096, 4097, MIB, MIB + 1, 3 * MIB + 12_345] {
            let file = world.create("state", bytes as u64);
            let wrote = world.filled(bytes, 7);
            let copy = wrote.to_vec();
            let wrote = done(world.storage.write(&file, 0, wrote, 0..bytes, Priority::Background));
            assert_eq!(wrote[..], copy[..], "{}: a write changed its buffer", world.name);
            drop(wrote);
            world.storage.sync(&file).wait(LIMIT).result.unwrap();
            assert_eq!(world.contents("state").unwrap(), copy, "{}", world.name);
            let read = world.storage.read(&file, 0, world.take(bytes), 0..bytes, Priority::Urgent);
            assert_eq!(done(read)[..], copy[..], "{}: {bytes} bytes", world.name);
        }
    });
}

#[test]
fn any_offset_and_any_part_of_a_buffer_will_do() {
    let seed = fastrand::u64(..);
    check(Settings { block_bytes: 64 << 10, ..Settings::default() }, |world| {
        let mut random = fastrand::Rng::with_seed(seed);
        let size = 2 * MIB + 777;
        let file = world.create("state", size as u64);
        let mut model = vec![0_u8; size];
        for _ in 0..200 {
            let edge = |random: &mut fastrand::Rng| match random.u8(..3) {
                0 => random.usize(..size / 4096) * 4096,
                1 => random.usize(..size / 512) * 512,
                _ => random.usize(..size),
            };
            let (a, b) = (edge(&mut random), edge(&mut random));
            let (from, to) = (a.min(b), a.max(b));
            // Half of them so that whole pages of the file are whole pages of the memory too.
            let at = if random.bool() { from % 4096 } else { edge(&mut random) % 5000 };
            let range = at..at + (to - from);
            if random.bool() {
                let buffer = world.filled(range.end, random.u64(..));
                model[from..to].copy_from_slice(&buffer[range.clone()]);
                let from = from as u64;
                done(world.storage.write(&file, from, buffer, range, Priority::Background));
            } else {
                let buffer = world.filled(range.end + 9, 1);
                let before = buffer.to_vec();
                let from_offset = from as u64;
                let read =
                    world.storage.read(&file, from_offset, buffer, range.clone(), Priority::Urgent);
                let read = done(read);
                assert_eq!(read[range.clone()], model[from..to], "{} seed {seed}", world.name);
                assert_eq!(read[..at], before[..at], "{} seed {seed}", world.name);
                assert_eq!(read[range.end..], before[range.end..], "{} seed {seed}", world.name);
            }
        }
        world.storage.sync(&file).wait(LIMIT).result.unwrap();
        assert_eq!(world.contents("state").unwrap(), model, "{} seed {seed}", world.name);
    });
}

#[test]
fn many_requests_at_once_all_complete_with_their_own_bytes() {
    check(Settings { block_bytes: 256 << 10, in_flight: 4, ..Settings::default() }, |world| {
        let piece = 700 << 10;
        let files = [0, 1, 2].map(|n| world.create(&format!("part-{n}"), 8 * piece as u64));
        let writes: Vec<_> = (0..24_u64)
            .map(|n| {
                let (file, offset) = (&files[n as usize % 3], n / 3 * piece as u64);
                let buffer = world.filled(piece, n);
                world.storage.write(file, offset, buffer, 0..piece, Priority::Background)
            })
            .collect();
        writes.into_iter().for_each(|write| drop(done(write)));
        let reads: Vec<_> = (0..24_u64)
            .map(|n| {
                let (file, offset) = (&files[n as usize % 3], n / 3 * piece as u64);
                let buffer = world.take(piece);
                world.storage.read(file, offset, buffer, 0..piece, Priority::Background)
            })
            .collect();
        for (n, read) in wait_all(reads, LIMIT).into_iter().enumerate() {
            let read = read.into_buffer().unwrap();
            let mut want = vec![0; piece];
            fastrand::Rng::with_seed(n as u64).fill(&mut want);
            assert_eq!(read[..], want[..], "{}: request {n}", world.name);
        }
    });
}

#[test]
fn a_file_that_ends_too_early_is_an_error_with_numbers() {
    check(Settings::default(), |world| {
        for length in [0_u64, 100, 4096, 5000, MIB as u64 + 4096] {
            let file = world.create("short", 2 * MIB as u64);
            world.set_length("short", length);
            let buffer = world.take(2 * MIB);
            let read = outcome(world.storage.read(&file, 0, buffer, 0..2 * MIB, Priority::Urgent));
            assert!(read.buffer.is_some(), "{}: the memory comes back", world.name);
            match read.result {
                Err(StorageError::Truncated { path, offset: 0, wanted_bytes, got_bytes }) => {
                    assert_eq!(&*path, file.path());
                    assert_eq!(wanted_bytes, 2 * MIB as u64);
                    assert!(got_bytes <= length, "{}: {got_bytes} of {length}", world.name);
                }
                other => panic!("{}: {length} bytes: {other:?}", world.name),
            }
        }
    });
}

#[test]
fn requests_that_nobody_waits_for_end_all_the_same() {
    check(Settings::default(), |world| {
        let file = world.create("state", 8 * MIB as u64);
        for n in 0..8_usize {
            let buffer = world.filled(MIB, n as u64);
            let offset = (n * MIB) as u64;
            drop(world.storage.write(&file, offset, buffer, 0..MIB, Priority::Background));
        }
        world.storage.sync(&file).wait(LIMIT).result.unwrap();
        assert_eq!(world.arena.ledger().free(), world.arena.capacity(), "{}", world.name);
        for n in 0..8_usize {
            let buffer = world.take(MIB);
            let offset = (n * MIB) as u64;
            let read = done(world.storage.read(&file, offset, buffer, 0..MIB, Priority::Urgent));
            let mut want = vec![0; MIB];
            fastrand::Rng::with_seed(n as u64).fill(&mut want);
            assert_eq!(read[..], want[..], "{}", world.name);
        }
    });
}

#[test]
fn the_last_user_leaves_when_every_write_has_ended() {
    check(Settings::default(), |world| {
        let storage = world.second_storage();
        let file = storage.create(&world.path("left"), 8 * MIB as u64).unwrap();
        let buffer = world.filled(8 * MIB, 3);
        let want = buffer.to_vec();
        let pending = storage.write(&file, 0, buffer, 0..8 * MIB, Priority::Background);
        drop(storage);
        assert!(pending.is_done());
        assert!(pending.wait(Duration::ZERO).result.is_ok());
        assert_eq!(world.contents("left").unwrap(), want, "{}", world.name);
    });
}

#[test]
fn what_cannot_be_opened_or_does_not_fit_is_refused_at_once() {
    check(Settings::default(), |world| {
        let missing = world.storage.open(&world.path("missing")).unwrap_err();
        assert_eq!(missing.errno(), Some(libc::ENOENT), "{}: {missing}", world.name);
        let huge = world.storage.create(&world.path("huge"), 1 << 43).unwrap_err();
        let is_said = huge.is_full() || huge.errno() == Some(libc::EFBIG);
        assert!(is_said, "{}: {huge}", world.name);
        assert!(world.contents("huge").is_none(), "{}", world.name);
    });
}

#[test]
fn places_that_no_file_has_are_refused() {
    check(Settings::default(), |world| {
        let file = world.create("state", 4096);
        for offset in [u64::MAX, u64::MAX - 4096, i64::MAX as u64 - 100] {
            let write =
                world.storage.write(&file, offset, world.take(4096), 0..4096, Priority::Background);
            assert!(outcome(write).result.is_err(), "{}: {offset}", world.name);
            let read =
                world.storage.read(&file, offset, world.take(4096), 0..4096, Priority::Urgent);
            assert!(outcome(read).result.is_err(), "{}: {offset}", world.name);
        }
        assert_eq!(world.contents("state").unwrap().len(), 4096, "{}", world.name);
    });
}
