//! Reading beside a writer: what is read is whole, or it is said who has written over it. Nothing
//! is called damaged.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use brigade_offload::memory::Category;
use brigade_offload::storage::{EngineChoice, Priority, StorageError};
use brigade_offload::store::{Checkpoint, StateFile, StoreError, Which, rank_paths};

use crate::place::{Place, directory, everywhere, filler};

const BLOCK: u64 = 4096;

#[test]
fn a_generation_stays_until_the_one_after_the_next_and_then_it_is_said_who_came() {
    everywhere("readers", |place| {
        let paths = place.paths("state", 2);
        let mut writer = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
        writer.save(1, b"", filler(1)).unwrap();
        let reader = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap();
        writer.save(2, b"", filler(2)).unwrap();
        reader.verify().unwrap();
        writer.save(3, b"", filler(3)).unwrap();
        let overtaken = reader.verify().unwrap_err();
        assert!(matches!(overtaken, StoreError::Overtaken { .. }), "{overtaken}");
        let said = overtaken.to_string();
        assert!(said.contains("[1] when it was opened, [3, 2] now"), "{said}");
    });
}

#[test]
fn an_older_generation_that_is_being_written_over_names_who_does() {
    let place = Place::new("readers-owned", EngineChoice::Auto);
    let paths = place.paths("state", 1);
    let mut writer = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    writer.save(1, b"", filler(1)).unwrap();
    writer.save(2, b"", filler(2)).unwrap();
    let reader = StateFile::open(&place.carrier, &paths, Which::Number(1)).unwrap();
    reader.verify().unwrap();
    // The third goes where the first is, and is not committed.
    let mut draft = writer.begin().unwrap();
    let buffer = place.arena.take(BLOCK as usize, Category::Staging).unwrap();
    let going = draft.write_block(0, buffer, Priority::Urgent).unwrap();
    going.wait(Duration::from_secs(10)).into_buffer().unwrap();
    let owned = reader.verify().unwrap_err();
    assert!(matches!(owned, StoreError::Storage(StorageError::Owned { .. })), "{owned}");
    // Nobody does any more, and the bytes are not what was written.
    drop((draft, writer));
    let damaged = reader.verify().unwrap_err();
    assert!(matches!(damaged, StoreError::Damaged { .. }), "{damaged}");
}

#[test]
fn damage_to_the_newest_generation_is_damage_whoever_writes_beside_it() {
    let place = Place::new("readers-damaged", EngineChoice::Auto);
    let paths = place.paths("state", 1);
    let mut writer = StateFile::create(&place.carrier, &paths, directory(), BLOCK).unwrap();
    writer.save(1, b"", filler(1)).unwrap();
    let reader = StateFile::open(&place.carrier, &paths, Which::Newest).unwrap();
    let Place { carrier, .. } = &place;
    let begin = reader.generation().unwrap().place(&reader.geometry(), 0).offset;
    let file = std::fs::File::options().write(true).open(&paths[0]).unwrap();
    file.write_all_at(&[0xa5; 7], begin).unwrap();
    let damaged = StateFile::open(carrier, &paths, Which::Newest).unwrap().verify().unwrap_err();
    assert!(matches!(damaged, StoreError::Damaged { .. }), "{damaged}");
    drop(writer);
}

/// Read a state, which must be of this version.
fn is_of(state: &StateFile, version: u64) -> Result<(), StoreError> {
    for placed in state.directory().tensors() {
        let mut found = vec![0; placed.tensor.bytes() as usize];
        let mut wanted = found.clone();
        state.read_tensor(placed, 0, &mut found)?;
        filler(version)(placed, 0, &mut wanted)?;
        assert_eq!(found, wanted, "{} of version {version}", placed.tensor.name);
    }
    Ok(())
}

/// Open, read and compare until `is_over`, beside somebody who commits; how often that was whole.
fn look(is_over: &AtomicBool, read: impl Fn() -> Result<(), StoreError>) -> (u32, u32) {
    let (mut whole, mut overtaken) = (0, 0);
    let start = Instant::now();
    while !is_over.load(Ordering::Acquire) && start.elapsed() < Duration::from_secs(60) {
        match read() {
            Ok(()) => whole += 1,
            Err(StoreError::Overtaken { .. })
            | Err(StoreError::Storage(StorageError::Owned { .. })) => overtaken += 1,
            Err(StoreError::NoGeneration { found, .. }) => {
                assert!(!found.is_empty());
                overtaken += 1;
            }
            Err(other) => panic!("{other}"),
        }
    }
    (whole, overtaken)
}

#[test]
fn what_somebody_commits_to_all_the_time_is_never_called_damaged() {
    // On a simulated device nobody knows who writes.
    for engine in [EngineChoice::Auto, EngineChoice::Threads] {
        let place = Place::new(&format!("readers-busy-{engine:?}"), engine);
        let paths: Vec<Vec<PathBuf>> =
            (0..2).map(|rank| rank_paths(&[&place.folder], rank, 2)).collect();
        let create = |paths: &Vec<PathBuf>| {
            let mut state = StateFile::create(&place.carrier, paths, directory(), BLOCK).unwrap();
            state.save(1, b"", filler(1)).unwrap();
            state
        };
        let mut writers: Vec<StateFile> = paths.iter().map(create).collect();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let one = scope.spawn(|| {
                look(&is_over, || {
                    let state = StateFile::open(&place.carrier, &paths[0], Which::Newest)?;
                    let label = state.generation().unwrap().label;
                    is_of(&state, label)?;
                    assert!(state.faults().is_empty(), "{:?}", state.faults());
                    Ok(())
                })
            });
            let both = scope.spawn(|| {
                look(&is_over, || {
                    let checkpoint = Checkpoint::open(&place.carrier, &paths)?;
                    (0..2).try_for_each(|rank| checkpoint.state(rank).verify())
                })
            });
            for version in 2..300 {
                for writer in &mut writers {
                    writer.save(version, b"", filler(version)).unwrap();
                }
            }
            is_over.store(true, Ordering::Release);
            for (whole, overtaken) in [one.join().unwrap(), both.join().unwrap()] {
                println!("{whole} times whole, {overtaken} times overtaken");
                assert!(whole > 0, "{overtaken} times overtaken");
            }
        });
        writers.iter().for_each(|writer| is_of(writer, 299).unwrap());
    }
}
