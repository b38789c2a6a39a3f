//! Kernels on the fake device: the same source, compiled and kept, launched and waited for.

use std::path::PathBuf;
use std::sync::{Arc, Barrier, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use brigade_cuda::nvrtc::{self, Source};
use brigade_cuda::{
    Arg, CaptureMode, Context, Cuda, CudaError, DeviceMemory, Launch, Pinned, Stream,
};

const KERNELS: &str = r#"
#include "brigade.cuh"

extern "C" __global__ void add(float *sum, const float *a, const float *b, u32 count) {
    for (u32 at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += gridDim.x * blockDim.x)
        sum[at] = a[at] + b[at];
}

// Every block waits for every other one, as persistent kernels do.
extern "C" __global__ void meet(u32 *arrived, u32 *seen) {
    if (threadIdx.x == 0) {
        fetch_add(arrived, 1u);
        while (load_acquire(arrived) < gridDim.x) pause();
        seen[blockIdx.x] = load_acquire(arrived);
    }
}

// The sum of a block's numbers, through shuffles and both kinds of shared memory.
extern "C" __global__ void __launch_bounds__(256) total(const u32 *numbers, u32 *sums) {
    extern __shared__ __align__(16) u32 warps[];
    __shared__ u32 whole;
    u32 sum = numbers[blockIdx.x * blockDim.x + threadIdx.x];
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        whole = 0;
        for (u32 warp = 0; warp < blockDim.x / 32; warp++) whole += warps[warp];
    }
    __syncthreads();
    if (threadIdx.x == blockDim.x - 1) sums[blockIdx.x] = whole;
}
"#;

fn context() -> Option<Context> {
    if !brigade_cuda_fake::is_usable() {
        eprintln!("skipped: no C++ compiler for the fake device");
        return None;
    }
    // It stays, as in most programs: to end and make one takes a device as long as many a test.
    static KEPT: OnceLock<Context> = OnceLock::new();
    let context = KEPT.get_or_init(|| {
        brigade_cuda_fake::install();
        let device = Cuda::load().expect("the fake driver").device(0).expect("a device");
        Context::new(&device).expect("a context")
    });
    Some(context.clone())
}

fn bytes<T: Copy>(numbers: &[T]) -> Vec<u8> {
    // SAFETY: numbers are read as the bytes that they are.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }.to_vec()
}

fn memory<T: Copy>(context: &Context, stream: &Stream, numbers: &[T]) -> DeviceMemory {
    let bytes = bytes(numbers);
    let mut memory = DeviceMemory::new(context, bytes.len()).expect("memory");
    memory.write(stream, 0, &bytes).expect("a copy");
    memory
}

fn read<T: Copy + Default>(memory: &DeviceMemory, stream: &Stream, count: usize) -> Vec<T> {
    let mut bytes = vec![0; count * size_of::<T>()];
    memory.read(stream, 0, &mut bytes).expect("a copy");
    let mut numbers = vec![T::default(); count];
    // SAFETY: as many bytes as the numbers have, of which any are a number.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), numbers.as_mut_ptr().cast(), bytes.len())
    };
    numbers
}

#[test]
fn a_kernel_adds() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).expect("a stream");
    let module = nvrtc::module(&context, &Source::new("test", KERNELS)).expect("kernels");
    let add = module.function("add").expect("a kernel");
    let count = 10_007_u32;
    let a: Vec<f32> = (0..count).map(|at| at as f32).collect();
    let [a, b, sum] = [&a, &a, &vec![0.0; count as usize]].map(|x| memory(&context, &stream, x));
    let addresses = [sum.address(), a.address(), b.address()];
    let [to, from, other] = &addresses;
    let args = [Arg::of(to), Arg::of(from), Arg::of(other), Arg::of(&count)];
    // SAFETY: the kernel's parameters, of memory that outlives the wait.
    unsafe { add.launch(&stream, &Launch::linear(7, 128), &args) }.expect("a launch");
    let sums: Vec<f32> = read(&sum, &stream, count as usize);
    assert!(sums.iter().enumerate().all(|(at, sum)| *sum == 2.0 * at as f32));
}

/// Where another thread captures in the mode that forbids the most, too.
#[test]
fn kernels_are_loaded_and_let_go_of_beside_a_capture() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).expect("a stream");
    let source = Source::new("test", KERNELS);
    nvrtc::module(&context, &source).expect("kernels");
    stream.begin_capture(CaptureMode::Global).expect("a capture");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let module = nvrtc::module(&context, &source).expect("kernels");
            drop(module.function("add").expect("a kernel"));
        });
    });
    stream.end_capture().expect("a capture that nobody has spoilt");
}

#[test]
fn blocks_wait_for_each_other_and_threads_for_their_block() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).expect("a stream");
    let module = nvrtc::module(&context, &Source::new("test", KERNELS)).expect("kernels");
    let arrived = memory(&context, &stream, &[0_u32]);
    let seen = memory(&context, &stream, &[0_u32; 48]);
    let addresses = [arrived.address(), seen.address()];
    let args = addresses.each_ref().map(Arg::of);
    let meet = module.function("meet").expect("a kernel");
    let shape = Launch::linear(48, 32).cooperative();
    // SAFETY: the kernel's parameters, of memory that outlives the wait.
    unsafe { meet.launch(&stream, &shape, &args) }.expect("a launch");
    assert_eq!(read::<u32>(&seen, &stream, 48), [48; 48]);

    let numbers: Vec<u32> = (0..1024).collect();
    let numbers = memory(&context, &stream, &numbers);
    let sums = memory(&context, &stream, &[0_u32; 4]);
    let addresses = [numbers.address(), sums.address()];
    let args = addresses.each_ref().map(Arg::of);
    let total = module.function("total").expect("a kernel");
    // SAFETY: as above.
    unsafe { total.launch(&stream, &Launch::linear(4, 256).shared(32), &args) }.expect("a launch");
    let expected: Vec<u32> = (0..4).map(|block| (256 * block..256 * block + 256).sum()).collect();
    assert_eq!(read::<u32>(&sums, &stream, 4), expected);
    let too_large = Launch::linear(100_000, 32).cooperative();
    // SAFETY: it is refused.
    let refused = unsafe { meet.launch(&stream, &too_large, &args) };
    assert!(refused.expect_err("too many blocks").to_string().contains("COOPERATIVE"));
}

#[test]
fn what_does_not_compile_says_where() {
    let Some(_context) = context() else { return };
    let source = Source::new("wrong", "extern \"C\" __global__ void wrong() { no_such_thing(); }");
    let error = nvrtc::image(&source, "sm_90").expect_err("it does not compile");
    let CudaError::Compile { kernels, arch, log } = error else { panic!("{error}") };
    assert_eq!((kernels.as_str(), arch.as_str()), ("wrong", "sm_90"));
    assert!(log.contains("no_such_thing"), "{log}");
}

#[test]
fn what_was_compiled_is_kept_and_what_was_cut_is_compiled_again() {
    let Some(_context) = context() else { return };
    let source = Source::new("kept", "extern \"C\" __global__ void kept() {}");
    let image = nvrtc::image(&source, "sm_90").expect("an image");
    let folder = nvrtc::folder().expect("a folder");
    // Other versions of the fake may have left theirs in the folder.
    let entries = std::fs::read_dir(&folder).expect("the folder");
    let mut paths = entries.map(|entry| entry.expect("an entry").path());
    let is_ours = |path: &PathBuf| std::fs::read(path).is_ok_and(|bytes| bytes.ends_with(&image));
    let kept = paths.find(is_ours).expect("a file");
    assert_eq!(nvrtc::image(&source, "sm_90").expect("the same"), image, "it is compiled once");
    let whole = std::fs::read(&kept).expect("what was kept");
    std::fs::write(&kept, &whole[..whole.len() - 1]).expect("a cut");
    let again = nvrtc::image(&source, "sm_90").expect("an image");
    assert!(again.len() > 100, "{} bytes", again.len());
    assert_eq!(std::fs::read(&kept).expect("what is kept").len(), again.len() + 32);
}

/// Ranks that are threads of one process begin alike.
#[test]
fn what_threads_want_at_once_is_compiled_once() {
    const THREADS: usize = 3;
    let Some(_context) = context() else { return };
    // Nobody has compiled it before.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_nanos();
    let text = format!("// {now}\nextern \"C\" __global__ void at_once() {{}}");
    let source = Source::new("at-once", text.leak());
    let begin = Barrier::new(THREADS);
    let compile = || {
        begin.wait();
        nvrtc::image(&source, "sm_90").expect("an image")
    };
    let images: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(compile)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    // Nobody else looks for it; another run of this test may have removed it.
    for entry in std::fs::read_dir(nvrtc::folder().expect("a folder")).expect("the folder") {
        let entry = entry.expect("an entry");
        if entry.file_name().to_string_lossy().starts_with("at-once-") {
            drop(std::fs::remove_file(entry.path()));
        }
    }
    assert!(images.iter().all(|image| Arc::ptr_eq(image, &images[0])), "several were made");
}

#[test]
fn pinned_memory_is_the_hosts_and_the_devices() {
    let Some(context) = context() else { return };
    let stream = Stream::new(&context).expect("a stream");
    let mut pinned = Pinned::new(&context, 4096).expect("pinned memory");
    pinned.as_mut_slice().fill(7);
    let memory = DeviceMemory::pooled(&stream, 4096).expect("memory");
    let mut back = Pinned::new(&context, 4096).expect("pinned memory");
    // SAFETY: all three live until the stream is waited for.
    unsafe {
        stream.copy(memory.address(), pinned.as_ptr() as u64, 4096).expect("a copy");
        stream.copy(back.as_mut_ptr() as u64, memory.address(), 4096).expect("a copy");
    }
    stream.synchronize().expect("a wait");
    assert_eq!(back.as_slice(), pinned.as_slice());
}
