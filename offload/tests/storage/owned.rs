//! Who makes a file has the one that bears its name, whoever had it before.

use std::time::{Duration, Instant};

use brigade_offload::storage::{Settings, StorageError};

use crate::world::{LIMIT, check};

#[test]
fn a_file_that_goes_while_it_is_claimed_is_made_anew() {
    check(Settings::default(), |world| {
        if world.is_simulated() {
            return;
        }
        let path = world.path("state");
        let first = world.create("state", 4096);
        let owned = world.storage.create(&path, 4096).map(drop).unwrap_err();
        assert!(matches!(owned, StorageError::Owned { .. }), "{}: {owned}", world.name);
        let second = std::thread::scope(|scope| {
            // It has the first one's file open before that goes, as far as this moment is enough.
            let second = scope.spawn(|| {
                let due = Instant::now() + LIMIT;
                loop {
                    match world.storage.create(&path, 8192) {
                        Err(StorageError::Owned { .. }) if Instant::now() < due => {}
                        made => break made.unwrap(),
                    }
                }
            });
            std::thread::sleep(Duration::from_millis(100));
            std::fs::remove_file(&path).unwrap();
            drop(first);
            second.join().unwrap()
        });
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192, "{}", world.name);
        // What is too long does not take along what was there.
        drop(second);
        world.storage.create(&path, 1 << 60).map(drop).unwrap_err();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 8192, "{}", world.name);
        let elsewhere = world.path("elsewhere");
        world.storage.create(&elsewhere, 1 << 60).map(drop).unwrap_err();
        assert!(!elsewhere.exists(), "{}", world.name);
    });
}
