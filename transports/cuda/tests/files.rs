//! Files and memory that cuFile knows: what comes, how much of it, and what is refused. The fake's
//! way of refusing is that of the real library; on a device `brigade offload bench direct` is the
//! test.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use brigade_cuda::cufile::{DirectFile, DirectMemory, GpuDirect};
use brigade_cuda::{Context, Cuda, DeviceMemory, Stream};

const BYTES: usize = 3 * 4096 + 100;
/// `O_DIRECT` of x86-64, for which the fake is.
const DIRECT: i32 = 0o40000;

struct Bench {
    path: PathBuf,
    memory: DirectMemory,
    context: Context,
    direct: GpuDirect,
}

impl Bench {
    fn new(name: &str) -> Option<Bench> {
        if brigade_cuda_fake::is_off() || !brigade_cuda_fake::has_device() {
            return None;
        }
        let path = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        let pattern: Vec<u8> = (0..BYTES).map(byte).collect();
        std::fs::write(&path, pattern).expect("a file");
        let context = Context::new(&Cuda::load().expect("the fake").device(0).expect("a device"));
        let context = context.expect("a context");
        let direct = GpuDirect::open().expect("cuFile");
        let memory = DeviceMemory::new(&context, 4 * 4096).expect("memory");
        let memory = DirectMemory::new(direct, memory);
        assert!(memory.refused().is_none(), "{:?}", memory.refused());
        Some(Bench { path, memory, context, direct })
    }

    fn file(&self, flags: i32) -> Option<File> {
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).custom_flags(flags).open(&self.path);
        opened.inspect_err(|why| eprintln!("skipped: no way past the page cache: {why}")).ok()
    }

    fn open(&self) -> Option<DirectFile> {
        let file = self.file(DIRECT)?.into();
        Some(DirectFile::new(self.direct, file).expect("cuFile takes it"))
    }

    fn held(&self) -> Vec<u8> {
        let stream = Stream::new(&self.context).expect("a stream");
        let mut bytes = vec![0; self.memory.memory().bytes()];
        self.memory.memory().read(&stream, 0, &mut bytes).expect("a copy");
        bytes
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // A test that fails has more to say than this.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

#[test]
fn bytes_come_whole_or_not_and_end_with_the_file() {
    let Some(bench) = Bench::new("cufile-come") else { return };
    let Some(file) = bench.open() else { return };
    let _here = bench.context.enter().expect("the context");
    for (at, offset, bytes, come) in [
        (0, 0, 8192, 8192),
        (3, 5, 4000, 4000),
        (0, 4096, 16384, BYTES - 4096),
        (100, BYTES as u64 - 7, 4096, 7),
        (0, BYTES as u64, 4096, 0),
        (0, 0, 0, 0),
    ] {
        // SAFETY: nobody else uses the memory.
        let moved = unsafe { file.read(&bench.memory, at, offset, bytes) }.expect("a read");
        assert_eq!(moved, come, "{bytes} at {offset}");
        let held = bench.held();
        assert!((0..come).all(|place| held[at + place] == byte(offset as usize + place)));
    }
    // SAFETY: as above.
    let written = unsafe { file.write(&bench.memory, 0, 4096, 4096) }.expect("a write");
    assert_eq!(written, 4096);
    let there = std::fs::read(&bench.path).expect("the file");
    assert_eq!((there.len(), &there[4096..8192]), (BYTES, &bench.held()[..4096]));
}

#[test]
fn what_makes_no_sense_is_refused_with_a_sentence() {
    let Some(bench) = Bench::new("cufile-refused") else { return };
    let Some(file) = bench.open() else { return };
    let buffered = bench.file(0).expect("the file").into();
    let said = DirectFile::new(bench.direct, buffered).err().expect("not past the page cache");
    let said = said.to_string();
    assert!(said.contains("CU_FILE_INVALID_FILE_OPEN_FLAG (5019)"), "{said}");
    let folder = File::open(std::env::temp_dir()).expect("a folder").into();
    let said = DirectFile::new(bench.direct, folder).err().expect("a folder").to_string();
    assert!(said.contains("only regular files can be used"), "{said}");
    // SAFETY: it is refused.
    let said = unsafe { file.read(&bench.memory, 4096, 0, 4 * 4096) }.expect_err("too much");
    assert_eq!(said.to_string(), "16384 bytes at 4096 lie beyond the 16384 there");
    // SAFETY: as above.
    let said = unsafe { file.read(&bench.memory, 0, 0, 4096) }.expect_err("no context here");
    assert!(said.to_string().contains("CU_FILE_CUDA_CONTEXT_MISMATCH (5015)"), "{said}");
    let stream = Stream::new(&bench.context).expect("a stream");
    let pooled = DeviceMemory::pooled(&stream, 4096).expect("memory");
    let pooled = DirectMemory::new(bench.direct, pooled);
    let said = pooled.refused().expect("of a pool").to_string();
    assert!(said.contains("memory of pools cannot be used"), "{said}");
}

#[test]
fn what_goes_is_given_back_and_can_be_taken_again() {
    let Some(bench) = Bench::new("cufile-back") else { return };
    for _ in 0..100 {
        let Some(file) = bench.open() else { return };
        let memory = DeviceMemory::new(&bench.context, 4096).expect("memory");
        let memory = DirectMemory::new(bench.direct, memory);
        assert!(memory.refused().is_none(), "{:?}", memory.refused());
        drop((file, memory));
    }
}
