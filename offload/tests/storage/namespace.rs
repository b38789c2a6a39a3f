//! Commands straight to a drive. Only where a namespace may be overwritten: its generic device is
//! named in BRIGADE_TEST_NAMESPACE, as /dev/ng0n1 of a virtual machine.

use std::path::PathBuf;

use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::storage::{EngineChoice, Priority, Settings, Storage, StorageError};

use crate::world::{LIMIT, done, outcome};

const MIB: usize = 1 << 20;

#[test]
fn a_namespace_takes_whole_blocks_and_nothing_else() {
    let Some(path) = std::env::var_os("BRIGADE_TEST_NAMESPACE").map(PathBuf::from) else {
        return println!("skipped: BRIGADE_TEST_NAMESPACE names no namespace to overwrite");
    };
    let arena = Arena::new(Budget::new(32 * MIB)).unwrap();
    let take = |bytes| arena.take(bytes, Category::Staging).unwrap();
    let engine = EngineChoice::IoUring;
    let storage = Storage::new(&arena, Settings { engine, ..Settings::default() }).unwrap();
    let drive = storage.open(&path).unwrap();
    assert!(drive.bytes() >= 16 * MIB as u64, "{} bytes", drive.bytes());
    let bytes = 8 * MIB + 4096;
    let mut wrote = take(bytes);
    fastrand::Rng::with_seed(9).fill(&mut wrote);
    let wrote = done(storage.write(&drive, 4096, wrote, 0..bytes, Priority::Background));
    storage.sync(&drive).wait(LIMIT).result.unwrap();
    let read = done(storage.read(&drive, 4096, take(bytes), 0..bytes, Priority::Urgent));
    assert!(read[..] == wrote[..], "what was read is not what was written");

    // The block device beside it shows the same bytes.
    let block = path.to_str().unwrap().replace("/ng", "/nvme");
    let block = storage.open(&PathBuf::from(block)).unwrap();
    assert_eq!(block.bytes(), drive.bytes());
    let read = done(storage.read(&block, 4096, read, 0..bytes, Priority::Urgent));
    assert!(read[..] == wrote[..], "the block device shows other bytes");

    let odd = outcome(storage.write(&drive, 0, take(4096), 0..100, Priority::Urgent));
    assert_eq!(odd.result.unwrap_err().errno(), Some(libc::EINVAL));
    let end = drive.bytes() - 4096;
    let past = outcome(storage.write(&drive, end, take(8192), 0..8192, Priority::Urgent));
    assert!(past.result.unwrap_err().is_full());
    let past = outcome(storage.read(&drive, end + 4096, take(4096), 0..4096, Priority::Urgent));
    assert!(matches!(past.result, Err(StorageError::Truncated { got_bytes: 0, .. })));
    println!("{}", storage.describe());
}
