//! Files and memory of a device: the same bytes by either way, whatever fails on the straight one.
//! What fails by request does so in a process of its own, which is this program again.

use super::{byte, context};
use brigade_cuda::{Context, Cuda, DeviceMemory, Stream};
use brigade_offload::device::{
    DeviceFile, DeviceFiles, FileMemory, FileProblem, FileSettings, Part, Way,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const PART: &str = "BRIGADE_TEST_PART";
const BYTES: usize = 100_001;
const SMALL: FileSettings = FileSettings { piece_bytes: 8192, pieces: 3, direct: true };

/// A file that is gone after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("brigade-files-{name}-{}", std::process::id());
        let scratch = Self(std::env::temp_dir().join(name));
        std::fs::write(&scratch.0, [0; BYTES]).expect("a file");
        scratch
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.0).expect("the file")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that fails has more to say than this.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What moves bytes, and memory of the device.
struct Bench {
    files: DeviceFiles,
    memory: FileMemory,
    stream: Stream,
}

impl Bench {
    fn new(settings: FileSettings) -> Option<Self> {
        Some(Self::on(&context()?, settings))
    }

    fn on(context: &Context, settings: FileSettings) -> Self {
        let files = DeviceFiles::new(context, settings).expect("files");
        let memory = files.memory(DeviceMemory::new(context, BYTES + 5000).expect("memory"));
        Self { files, memory, stream: Stream::new(context).expect("a stream") }
    }

    fn open(&self, path: &Path) -> DeviceFile {
        self.files.open(path).expect("the file")
    }

    fn fill(&mut self, bytes: &[u8]) {
        self.memory.memory_mut().write(&self.stream, 0, bytes).expect("a copy");
    }

    fn held(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.memory.memory().bytes()];
        self.memory.memory().read(&self.stream, 0, &mut bytes).expect("a copy");
        bytes
    }

    fn write(&mut self, file: &mut DeviceFile, part: Part) -> Result<(), FileProblem> {
        self.files.write(file, &self.memory, part, &self.stream)
    }

    fn read(&mut self, file: &mut DeviceFile, part: Part) -> Result<(), FileProblem> {
        self.files.read(file, &mut self.memory, part, &self.stream)
    }
}

/// Parts that begin and end anywhere, in the file as in memory.
fn parts() -> Vec<Part> {
    let mut parts = Vec::new();
    for offset in [0, 1, 4095, 4096, 50_000] {
        for at in [0, 512, 4096, 4099] {
            for bytes in [0, 1, 4096, 8192, 20_000, 50_001] {
                parts.push(Part { offset, at, bytes });
            }
        }
    }
    parts.push(Part { offset: 0, at: 0, bytes: BYTES });
    parts
}

#[test]
fn parts_arrive_whole_by_either_way() {
    for direct in [true, false] {
        let Some(mut bench) = Bench::new(FileSettings { direct, ..SMALL }) else { return };
        let scratch = Scratch::new(if direct { "straight" } else { "staged" });
        let mut file = bench.open(&scratch.0);
        let goes_straight = direct && file.file().is_direct() && !brigade_cuda_fake::is_off();
        for (seed, part) in parts().into_iter().enumerate() {
            let Part { offset, at, bytes } = part;
            let pattern: Vec<u8> = (0..BYTES + 5000).map(|place| byte(place + seed)).collect();
            bench.fill(&pattern);
            let mut expected = scratch.bytes();
            expected[offset as usize..][..bytes].copy_from_slice(&pattern[at..][..bytes]);
            bench.write(&mut file, part).expect("a write");
            assert!(scratch.bytes() == expected, "written: {part:?}, straight: {direct}");

            let empty = vec![0xee; BYTES + 5000];
            bench.fill(&empty);
            bench.read(&mut file, part).expect("a read");
            let (held, mut expected) = (bench.held(), empty);
            expected[at..][..bytes].copy_from_slice(&pattern[at..][..bytes]);
            assert!(held == expected, "read: {part:?}, straight: {direct}");
        }
        assert!((file.way() == Way::Direct) == goes_straight || brigade_cuda_fake::is_off());
        bench.files.storage().sync(file.file()).wait(Duration::from_secs(60)).result.expect("it");
    }
}

#[test]
fn what_a_stream_still_makes_is_waited_for() {
    let Some(mut bench) = Bench::new(SMALL) else { return };
    let scratch = Scratch::new("stream");
    let mut file = bench.open(&scratch.0);
    for round in 1..=20 {
        let memory = bench.memory.memory();
        // SAFETY: the memory is so long, and outlives the stream's work, which is waited for.
        unsafe { bench.stream.fill(memory.address(), round, BYTES) }.expect("a fill");
        bench.write(&mut file, Part { offset: 0, at: 0, bytes: BYTES }).expect("a write");
        assert!(scratch.bytes().iter().all(|byte| *byte == round), "round {round}");
    }
}

#[test]
fn what_is_not_there_is_an_error_by_either_way() {
    for direct in [true, false] {
        let Some(mut bench) = Bench::new(FileSettings { direct, ..SMALL }) else { return };
        let scratch = Scratch::new(if direct { "short" } else { "short-staged" });
        let mut file = bench.open(&scratch.0);
        let beyond = Part { offset: 1, at: 0, bytes: BYTES };
        for refused in [bench.read(&mut file, beyond), bench.write(&mut file, beyond)] {
            let said = refused.expect_err("there is no such part").to_string();
            assert!(said.contains("100001 bytes at 1 lie beyond the 100001 of"), "{said}");
        }
        let far = Part { offset: 0, at: 6000, bytes: BYTES };
        let said = bench.read(&mut file, far).expect_err("no such memory").to_string();
        assert!(said.contains("lie beyond the 105001 of the memory"), "{said}");
        // Somebody makes it shorter meanwhile.
        let shorter = std::fs::OpenOptions::new().write(true).open(&scratch.0).expect("the file");
        shorter.set_len(50_000).expect("it is ours");
        let all = Part { offset: 0, at: 0, bytes: BYTES };
        let said = bench.read(&mut file, all).expect_err("it ends before").to_string();
        assert!(said.contains("then the file ends"), "{said}");
    }
}

/// Does nothing unless it is a child: a file is written from the device and read back.
#[test]
fn the_part_of_a_child() {
    if std::env::var_os(PART).is_none() {
        return;
    }
    // What it finds is its parent's to say.
    let device = Cuda::load().expect("a driver").device(0).expect("a device");
    let context = Context::new(&device).expect("a context");
    let mut bench = Bench::on(&context, SMALL);
    let scratch = Scratch::new("child");
    let mut file = bench.open(&scratch.0);
    let pattern: Vec<u8> = (0..BYTES).map(byte).collect();
    bench.fill(&pattern);
    let all = Part { offset: 0, at: 0, bytes: BYTES };
    let mut passed = bench.write(&mut file, all);
    let is_written = scratch.bytes() == pattern;
    if passed.is_ok() {
        bench.fill(&[0; BYTES]);
        passed = bench.read(&mut file, all);
    }
    let is_right = is_written && bench.held()[..BYTES] == pattern;
    let is_direct = file.file().is_direct();
    let copied = bench.memory.copied().unwrap_or_default();
    println!("<<{passed:?}|{is_right}|{}|{copied}|{is_direct}>>", file.way());
}

/// How a child fared: its answer, whether the bytes are right, the way, why memory is copied; none
/// where the folder has no way past the page cache.
fn fared(variable: &str, value: &str) -> Option<[String; 4]> {
    let mut command = Command::new(std::env::current_exe().expect("our path"));
    command.args(["--exact", "files::the_part_of_a_child", "--nocapture"]).env(PART, "child");
    command.envs(brigade_cuda_fake::environment()).env(variable, value);
    let output = command.output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = text.split_once("<<").and_then(|(_, rest)| rest.split_once(">>"));
    let said = said.unwrap_or_else(|| panic!("{output:?}")).0;
    let words: Vec<String> = said.split('|').map(str::to_owned).collect();
    let [passed, is_right, way, copied, is_direct] = words.try_into().expect("five words");
    (is_direct == "true").then_some([passed, is_right, way, copied])
}

/// Children in which something fails, and the begin of what the way is afterwards.
fn check(variable: &str, cases: &[(&str, &str)]) {
    if brigade_cuda_fake::is_off() || context().is_none() {
        return eprintln!("skipped: only the fake fails by request");
    }
    for (value, expected) in cases {
        let Some([passed, is_right, way, copied]) = fared(variable, value) else {
            return eprintln!("skipped: nothing goes past the page cache here");
        };
        assert_eq!([passed.as_str(), is_right.as_str()], ["Ok(())", "true"], "{value}: {way}");
        assert!(way.contains(expected), "{value}: {way}");
        let is_copied = value.starts_with("cuFileBufRegister");
        assert_eq!(copied.contains("CU_FILE_GPU_MEMORY_PINNING_FAILED"), is_copied, "{copied}");
    }
}

#[test]
fn what_fails_goes_the_other_way_and_nothing_is_lost() {
    check(
        "BRIGADE_FAKE_CUDA_FAULTS",
        &[
            ("cuFileWrite@1=5", "failed once: moving 8192 bytes: cuFileWrite said Input/output"),
            ("cuFileWrite@7=28", "memory of the host: it failed once: moving 8192 bytes"),
            ("cuFileRead@2=5017", "cuFileRead said CU_FILE_INVALID_MAPPING_RANGE (5017)"),
            ("cuFileRead=5030", "cuFileRead said CU_FILE_INTERNAL_ERROR (5030): cufile.log"),
            ("cuFileHandleRegister=5008", "CU_FILE_IO_NOT_SUPPORTED (5008): gdscheck -p"),
            // Short ones are gone on with; one that does not move at all is not.
            ("cuFileRead@1=0,cuFileWrite@2=0", "GPUDirect Storage"),
            ("cuFileRead=0", "cuFile moved 0 of 4096 bytes at offset"),
            // Memory that cannot be shown is copied by cuFile, on the device.
            ("cuFileBufRegister=5036", "GPUDirect Storage"),
        ],
    );
}

#[test]
fn what_is_missing_is_said_and_the_compatibility_mode_is_not_taken() {
    check(
        "BRIGADE_FAKE_CUFILE",
        &[
            ("", "GPUDirect Storage"),
            ("p2p", "GPUDirect Storage"),
            ("p2p-late", "GPUDirect Storage"),
            ("none", "cuFileDriverOpen said CU_FILE_DRIVER_NOT_INITIALIZED (5001)"),
            ("old", "may use its compatibility mode, which goes through the host's memory"),
            ("forced", "is told to use its compatibility mode always"),
        ],
    );
    check(
        "BRIGADE_CUFILE_LIBRARY",
        &[("/nowhere/libcufile.so", "BRIGADE_CUFILE_LIBRARY=/nowhere/libcufile.so has no cuFile")],
    );
    check(
        "BRIGADE_FAKE_CUDA_FAULTS",
        &[
            ("cuFileDriverOpen=5004", "CU_FILE_DRIVER_VERSION_MISMATCH (5004)"),
            ("cuFileDriverOpen=3", "cuFileDriverOpen said CUDA_ERROR_NOT_INITIALIZED (3)"),
            ("cuFileDriverOpen=5026", "GPUDirect Storage"),
            ("cuFileSetParameterBool=5026", "may use its compatibility mode"),
            ("cuFileDriverGetProperties=5001", "cuFileDriverGetProperties said"),
        ],
    );
}

#[test]
fn what_neither_way_can_do_is_an_error() {
    if brigade_cuda_fake::is_off() || context().is_none() {
        return eprintln!("skipped: only the fake fails by request");
    }
    let faults = "cuFileWrite=5,cuMemcpyAsync@3=801";
    if let Some([passed, ..]) = fared("BRIGADE_FAKE_CUDA_FAULTS", faults) {
        assert!(passed.contains("cuMemcpyAsync said CUDA_ERROR_NOT_SUPPORTED"), "{passed}");
    }
}
