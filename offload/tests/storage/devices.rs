//! Real devices that are full or broken, as far as root can make them here: a small file system in
//! a file, and a block device whose backing ends too early.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use brigade_offload::layout::{Directory, Dtype, Placed, Tensor};
use brigade_offload::memory::{Arena, Budget, Category};
use brigade_offload::storage::{
    EngineChoice, Operation, Priority, Settings, Storage, StorageError,
};
use brigade_offload::store::{Carrier, StateFile, StoreError, Which};

use crate::world::{LIMIT, outcome};

const MIB: usize = 1 << 20;
const IMAGE_BYTES: u64 = 48 << 20;

/// A folder, perhaps mounted on, and a loop device, all of which go away however the test ends.
struct Bench {
    folder: PathBuf,
    device: Option<String>,
    is_mounted: bool,
}

impl Bench {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("brigade-devices-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        Self { folder, device: None, is_mounted: false }
    }

    /// A block device over a file.
    fn attach(&mut self) -> Result<PathBuf, String> {
        let image = self.folder.join("image");
        let file = std::fs::File::create(&image).map_err(|e| e.to_string())?;
        file.set_len(IMAGE_BYTES).map_err(|e| e.to_string())?;
        let found = run("losetup", &["--show", "--find", path(&image)])?;
        self.device = Some(found.trim().to_owned());
        Ok(PathBuf::from(found.trim()))
    }

    /// An ext4 of 48 MiB.
    fn mount(&mut self) -> Result<PathBuf, String> {
        let device = self.attach()?;
        let at = self.folder.join("mounted");
        std::fs::create_dir(&at).map_err(|e| e.to_string())?;
        run("mkfs.ext4", &["-q", "-m", "0", path(&device)])?;
        run("mount", &[path(&device), path(&at)])?;
        self.is_mounted = true;
        Ok(at)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = run("umount", &["--lazy", path(&self.folder.join("mounted"))]);
        }
        if let Some(device) = &self.device {
            let _ = run("losetup", &["--detach", device]);
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().expect("made here, of plain letters")
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn fill(byte: u8) -> impl FnMut(&Placed, u64, &mut [u8]) -> Result<(), StoreError> {
    move |_, _, target| {
        target.fill(byte);
        Ok(())
    }
}

/// On each engine that moves bytes of real files, with a bench that was prepared.
fn each_engine<T>(
    prepare: impl Fn(&mut Bench) -> Result<T, String>,
    check: impl Fn(&Bench, &T, &Storage, &Arena),
) {
    for engine in [EngineChoice::IoUring, EngineChoice::Threads] {
        let mut bench = Bench::new();
        let prepared = match prepare(&mut bench) {
            Ok(prepared) => prepared,
            Err(why) => return println!("skipped: no such device can be made here: {why}"),
        };
        let arena = Arena::new(Budget::new(16 * MIB)).unwrap();
        match Storage::new(&arena, Settings { engine, ..Settings::default() }) {
            Ok(storage) => check(&bench, &prepared, &storage, &arena),
            Err(why) => println!("skipped {engine:?}: {why}"),
        }
    }
}

#[test]
fn a_full_file_system_is_told_by_whom_it_happened_to() {
    each_engine(Bench::mount, |_, at, storage, arena| {
        let refused = storage.create(&at.join("big"), 1 << 30).unwrap_err();
        assert!(refused.is_full() && refused.to_string().contains("big"), "{refused}");
        assert!(!at.join("big").exists());
        // A file of holes: what is written into it finds the file system full sooner or later.
        std::fs::File::create(at.join("holes")).unwrap().set_len(1 << 30).unwrap();
        let file = storage.open(&at.join("holes")).unwrap();
        let (mut kept, mut full) = (Vec::new(), None);
        for n in 0..IMAGE_BYTES as usize / MIB {
            let mut buffer = arena.take(MIB, Category::Staging).unwrap();
            fastrand::Rng::with_seed(n as u64).fill(&mut buffer);
            let write =
                storage.write(&file, (n * MIB) as u64, buffer, 0..MIB, Priority::Background);
            match outcome(write).result {
                Ok(_) => kept.push(n),
                Err(why) => full = full.or(Some((n, why))),
            }
        }
        let (n, why) = full.expect("48 MiB do not fit into an ext4 of that size");
        match &why {
            StorageError::Refused { operation: Operation::Write, offset, got_bytes, .. } => {
                assert_eq!(*offset, (n * MIB) as u64);
                assert!(*got_bytes < MIB as u64, "{why}");
            }
            other => panic!("{other:?}"),
        }
        assert!(why.is_full() && why.to_string().contains("holes"), "{why}");
        let sync = outcome(storage.sync(&file)).result.unwrap_err();
        assert!(matches!(sync, StorageError::WriteFailed { .. }) && sync.is_full(), "{sync}");
        assert!(kept.len() > 8, "{} MiB in 48", kept.len());
        for n in kept {
            let buffer = arena.take(MIB, Category::Staging).unwrap();
            let read = storage.read(&file, (n * MIB) as u64, buffer, 0..MIB, Priority::Urgent);
            let mut wanted = vec![0; MIB];
            fastrand::Rng::with_seed(n as u64).fill(&mut wanted);
            assert!(outcome(read).into_buffer().unwrap()[..] == wanted[..], "MiB {n} was claimed");
        }
    });
}

#[test]
fn a_state_on_a_full_file_system_is_refused_and_the_one_there_stays() {
    each_engine(Bench::mount, |_, at, storage, arena| {
        let carrier = Carrier::new(storage, arena);
        let tensors =
            |bytes: u64| Directory::pack([Tensor::whole("t", Dtype::U8, &[bytes])], 4096).unwrap();
        let small = at.join("small");
        let mut state =
            StateFile::create(&carrier, &[&small], tensors(5_000_000), 1 << 20).unwrap();
        state.save(1, b"", fill(1)).unwrap();
        let big = StateFile::create(&carrier, &[at.join("big")], tensors(40_000_000), 1 << 20);
        match big.unwrap_err() {
            StoreError::Storage(why) => assert!(why.is_full(), "{why}"),
            other => panic!("{other}"),
        }
        assert!(!at.join("big").exists(), "what does not fit is not left behind");
        // The space was reserved, so the next generation of what is there finds its place.
        std::fs::write(at.join("filler"), vec![7; 30 << 20]).ok();
        state.save(2, b"", fill(2)).unwrap();
        state.verify().unwrap();
    });
}

#[test]
fn a_device_that_cannot_read_says_where() {
    each_engine(Bench::attach, |bench, device, storage, arena| {
        let carrier = Carrier::new(storage, arena);
        let tensor = Tensor::whole("t", Dtype::U8, &[16 << 20]);
        let directory = Directory::pack([tensor], 4096).unwrap();
        let mut state = StateFile::create(&carrier, &[device], directory, 1 << 20).unwrap();
        for version in 1..=2 {
            state.save(version, b"", fill(version as u8)).unwrap();
        }
        drop(state);
        let open = || StateFile::open(&carrier, &[device], Which::Newest);
        open().unwrap().verify().unwrap();
        // The file under the device ends now in the middle of the blocks.
        let image = std::fs::OpenOptions::new().write(true).open(bench.folder.join("image"));
        image.unwrap().set_len(8 << 20).unwrap();
        run("blockdev", &["--flushbufs", path(device)]).unwrap();
        let why = open().unwrap().verify().unwrap_err();
        match &why {
            StoreError::Storage(why @ StorageError::Refused { offset, errno, .. }) => {
                assert_eq!(*errno, libc::EIO, "{why}");
                assert!(*offset >= 7 << 20, "{why}");
                assert!(why.to_string().contains(path(device)), "{why}");
            }
            other => panic!("{other:?}"),
        }
        println!("{why}");
    });
}

#[test]
fn a_state_on_a_device_that_held_other_bytes_is_what_was_written() {
    each_engine(Bench::attach, |_, device, storage, arena| {
        std::fs::write(device, vec![0xA5; IMAGE_BYTES as usize]).unwrap();
        run("blockdev", &["--flushbufs", path(device)]).unwrap();
        let carrier = Carrier::new(storage, arena);
        let bytes = 3 * MIB + 5000;
        let tensor = Tensor::whole("t", Dtype::U8, &[bytes as u64]);
        let directory = Directory::pack([tensor], 1 << 20).unwrap();
        let mut state = StateFile::create(&carrier, &[device], directory, 1 << 20).unwrap();
        let placed = state.directory().tensors()[0].clone();
        for byte in 1..=3 {
            let mut buffer = arena.take(bytes, Category::Staging).unwrap();
            buffer.fill(byte);
            let mut draft = state.begin().unwrap();
            let run = draft.write_part(&placed, 0, bytes, buffer, Priority::Urgent).unwrap();
            drop(run.wait(LIMIT).unwrap());
            state.commit(draft, u64::from(byte), b"").unwrap();
            state.verify().unwrap();
        }
        drop(state);
        StateFile::open(&carrier, &[device], Which::Newest).unwrap().verify().unwrap();
    });
}
