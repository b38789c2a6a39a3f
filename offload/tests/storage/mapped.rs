//! The read path without an engine sees what the engines wrote.

use brigade_offload::storage::{Mapped, Priority, Settings, StorageError};

use crate::world::{LIMIT, check, done};

#[test]
fn a_mapped_file_shows_what_was_written_and_knows_where_it_ends() {
    check(Settings::default(), |world| {
        let file = world.create("state", 300_000);
        let wrote = world.filled(300_000, 11);
        let wrote = done(world.storage.write(&file, 0, wrote, 0..300_000, Priority::Background));
        world.storage.sync(&file).wait(LIMIT).result.unwrap();
        if world.is_simulated() {
            return;
        }
        let mapped = Mapped::open(file.path()).unwrap();
        assert_eq!(mapped.bytes(), 300_000);
        mapped.ahead(100_000..300_000);
        let mut part = vec![0; 150_001];
        mapped.read(99_999, &mut part).unwrap();
        assert_eq!(part[..], wrote[99_999..250_000], "{}", world.name);
        world.set_length("state", 200_000);
        match mapped.read(99_999, &mut part) {
            Err(StorageError::Truncated { got_bytes: 100_001, wanted_bytes: 150_001, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert!(mapped.read(u64::MAX, &mut part).is_err());
        assert!(Mapped::open(&world.path("missing")).is_err());
    });
}
