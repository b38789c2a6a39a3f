//! Where the suite runs: every engine, on a disk and in memory, each in a folder that goes away.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use brigade_offload::memory::{Arena, Budget, Buffer, Category};
use brigade_offload::storage::simulated::{Clock, Faults, Rates, SimulatedDevice};
use brigade_offload::storage::{EngineChoice, File, Outcome, Pending, Settings, Storage};

/// Long enough for a busy machine, short enough for a test.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A folder that is removed with everything in it, however the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(parent: &Path) -> Self {
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
    place: Place,
}

/// Where the files are.
enum Place {
    Folder(Folder),
    Device(SimulatedDevice),
}

impl World {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match &self.place {
            Place::Folder(folder) => folder.0.join(name),
            Place::Device(_) => PathBuf::from(name),
        }
    }

    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self.place, Place::Device(_))
    }

    /// A file's bytes, past the engine. None when it is not there.
    pub(crate) fn contents(&self, name: &str) -> Option<Vec<u8>> {
        match &self.place {
            Place::Folder(_) => std::fs::read(self.path(name)).ok(),
            Place::Device(device) => device.contents(Path::new(name)),
        }
    }

    /// Change a file's length, past the engine.
    pub(crate) fn set_length(&self, name: &str, bytes: u64) {
        match &self.place {
            Place::Folder(_) => {
                let file = std::fs::OpenOptions::new().write(true).open(self.path(name)).unwrap();
                file.set_len(bytes).unwrap();
            }
            Place::Device(device) => assert!(device.truncate(Path::new(name), bytes)),
        }
    }

    /// Another storage over the same arena and files.
    pub(crate) fn second_storage(&self) -> Storage {
        match &self.place {
            Place::Folder(_) => Storage::new(&self.arena, Settings::default()),
            Place::Device(device) => Storage::simulated(device, Settings::default()),
        }
        .unwrap()
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
    let run = |storage: Storage, arena: Arena, name: String, place: Place| {
        let world = World { name, arena, storage, place };
        body(&world);
        println!("{}: {}", world.name, world.storage.describe());
    };
    let new_arena = || Arena::new(Budget::new(24 << 20)).unwrap();
    let mut parents = vec![std::env::temp_dir()];
    parents.extend(Some(PathBuf::from("/dev/shm")).filter(|path| path.is_dir()));
    for parent in parents {
        let engines = [
            (EngineChoice::IoUring, false),
            (EngineChoice::IoUring, true),
            (EngineChoice::Threads, false),
        ];
        for (engine, is_polled) in engines {
            let arena = new_arena();
            match Storage::new(&arena, Settings { engine, is_polled, ..settings }) {
                Ok(storage) => {
                    let polled = if is_polled { ", polled" } else { "" };
                    let name = format!("{engine:?}{polled} in {}", parent.display());
                    run(storage, arena, name, Place::Folder(Folder::new(&parent)));
                }
                Err(why) => println!("skipped {engine:?}: {why}"),
            }
        }
    }
    for clock in [Clock::Virtual, Clock::Real] {
        for short in [0, 300_000] {
            let rate = 4e9;
            let (read_bytes_s, write_bytes_s) = (rate, rate);
            let rates = Rates { clock, read_bytes_s, write_bytes_s, ..Rates::default() };
            let device = SimulatedDevice::new(rates);
            device.set_faults(Faults {
                short,
                seed: 5,
                capacity_bytes: Some(1 << 40),
                ..Faults::default()
            });
            let storage = Storage::simulated(&device, settings).unwrap();
            let name = format!("simulated, {clock:?} time, {short} ppm short");
            run(storage, new_arena(), name, Place::Device(device));
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
