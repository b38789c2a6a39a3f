//! Where the suite runs: every engine, on a disk and in memory, each in a folder that goes away.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use brigade_offload::memory::{Arena, Budget, Buffer, Category};
use brigade_offload::storage::{EngineChoice, File, Outcome, Pending, Settings, Storage};

/// Long enough for a busy machine, short enough for a test.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A folder that is removed with everything in it, however the test ends.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(parent: &Path) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("brigade-storage-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An engine with memory and a folder for its files.
pub(crate) struct World {
    pub(crate) name: String,
    pub(crate) arena: Arena,
    pub(crate) storage: Storage,
    pub(crate) folder: Folder,
}

impl World {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    pub(crate) fn create(&self, name: &str, bytes: u64) -> File {
        self.storage.create(&self.path(name), bytes).unwrap()
    }

    pub(crate) fn take(&self, bytes: usize) -> Buffer {
        self.arena.take(bytes, Category::Staging).unwrap()
    }

    /// A buffer with bytes that depend on the place and the seed.
    pub(crate) fn filled(&self, bytes: usize, seed: u64) -> Buffer {
        let mut buffer = self.take(bytes);
        fastrand::Rng::with_seed(seed).fill(&mut buffer);
        buffer
    }
}

/// Run a check in every world that this machine has.
pub(crate) fn check(settings: Settings, body: impl Fn(&World)) {
    let mut parents = vec![std::env::temp_dir()];
    parents.extend(Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir()));
    for parent in parents {
        for engine in [EngineChoice::IoUring, EngineChoice::Threads] {
            let arena = Arena::new(Budget::new(24 << 20)).unwrap();
            let storage = match Storage::new(&arena, Settings { engine, ..settings }) {
                Ok(storage) => storage,
                Err(why) => {
                    println!("skipped {engine:?}: {why}");
                    continue;
                }
            };
            let name = format!("{engine:?} in {}", parent.display());
            println!("{name}: {}", storage.describe());
            body(&World { name, arena, storage, folder: Folder::new(&parent) });
        }
    }
}

/// Wait, and insist.
pub(crate) fn done(pending: Pending) -> Buffer {
    pending.wait(LIMIT).into_buffer().unwrap()
}

/// Wait.
pub(crate) fn outcome(pending: Pending) -> Outcome {
    pending.wait(LIMIT)
}
