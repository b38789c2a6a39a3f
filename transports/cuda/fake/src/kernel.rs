//! Kernels: libraries that the fake compiler made, run block by block.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_uint, c_ulong, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use crate::compiler::{self, IMAGE_MAGIC};
use crate::device::{BLOCKS_PER_MULTIPROCESSOR, MULTIPROCESSORS, current};
use crate::graph::forbidden_in_capture;
use crate::memory::new_file;
use crate::races;
use crate::stream;
use crate::table::{
    Answer, Code, Handle, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NOT_FOUND, Table, export,
    lock, put, while_all_wait,
};

type Call = extern "C" fn(*mut *mut c_void);
type Sizes = extern "C" fn(*mut c_uint, c_uint) -> c_uint;
type OnStall = extern "C" fn(*mut c_void);
/// `brigade_cpu_run` of `cpu_blocks.h`.
type Run = extern "C" fn(
    *const c_uint,
    *const c_uint,
    *const c_uint,
    c_uint,
    Call,
    *mut *mut c_void,
    OnStall,
    *mut c_void,
    c_ulong,
);

const PARAMETERS_MAX: usize = 64;
const SHARED_BYTES_USUAL: u32 = 48 * 1024;

struct Module {
    library: libloading::Library,
    run: Run,
    /// Closed when the library is unloaded.
    _file: File,
}

struct Function {
    /// Keeps the code where it is.
    module: Arc<Module>,
    call: Call,
    sizes: Vec<usize>,
    /// How many threads its blocks may have.
    threads: u32,
    /// What is not loaded as a whole is so at its first launch.
    is_loaded: AtomicBool,
}

/// A kernel that was launched, with a copy of its arguments.
struct Launch {
    function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    /// Sixteen bytes at a time, so that every type is aligned.
    arguments: Vec<Vec<[u64; 2]>>,
    /// The stream's number.
    stream: c_ulong,
}

/// One run of a launch: blocks are taken in order by however many threads there are.
struct Going {
    launch: Arc<Launch>,
    next: AtomicUsize,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What a block that waits for others is known by.
struct Waiting<'a> {
    going: &'a Arc<Going>,
    has_called: AtomicBool,
}

static MODULES: Table<Module> = Table::new();
static FUNCTIONS: Table<Function> = Table::new();

fn load(image: *const u8) -> Result<Module, Code> {
    let header = IMAGE_MAGIC.len() + 8;
    // SAFETY: the caller owes an image, none of which is empty.
    if unsafe { *image } == b'/' {
        // SAFETY: portable code is a C string, and begins with a comment.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
        let problem = |problem| {
            eprintln!("the fake driver: {problem}");
            INVALID_PTX
        };
        return load(compiler::translated(&text).map_err(problem)?.as_ptr());
    }
    // SAFETY: images of every kind are longer than this header.
    let start = unsafe { std::slice::from_raw_parts(image, header) };
    let (magic, length) = start.split_at(IMAGE_MAGIC.len());
    if magic != IMAGE_MAGIC {
        return Err(INVALID_IMAGE);
    }
    let length = u64::from_le_bytes(length.try_into().map_err(|_| INVALID_IMAGE)?) as usize;
    // SAFETY: the fake compiler wrote how long it is.
    let code = unsafe { std::slice::from_raw_parts(image.add(header), length) };
    let file = File::from(new_file(0)?);
    file.write_all_at(code, 0).map_err(|_| INVALID_IMAGE)?;
    // The loader knows libraries by their names, and so does whoever says what failed where in one:
    // this name is nobody else's while the file is open.
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    // SAFETY: what the fake compiler made of a test's own source.
    let library = unsafe { libloading::Library::new(path) }.map_err(|_| INVALID_IMAGE)?;
    // SAFETY: `cpu_blocks.h` defines it so.
    let run = unsafe { library.get::<Run>(b"brigade_cpu_run\0") }.map(|found| *found);
    Ok(Module { run: run.map_err(|_| INVALID_IMAGE)?, library, _file: file })
}

fn function(module: Arc<Module>, name: &CStr) -> Result<Function, Code> {
    let symbol = |what: &str| {
        let mut symbol = OsString::from(format!("brigade_cpu_{what}_")).into_vec();
        symbol.extend_from_slice(name.to_bytes());
        CString::new(symbol).map_err(|_| NOT_FOUND)
    };
    let (call, sizes, threads) = (symbol("call")?, symbol("sizes")?, symbol("threads")?);
    // SAFETY: the fake compiler defines both of these types for each kernel.
    let found = unsafe {
        let call = module.library.get::<Call>(call.as_bytes_with_nul()).map(|found| *found);
        let sizes = module.library.get::<Sizes>(sizes.as_bytes_with_nul()).map(|found| *found);
        (call, sizes)
    };
    let (Ok(call), Ok(ask)) = found else { return Err(NOT_FOUND) };
    // SAFETY: what was translated defines it as a number, and what was rewritten not at all.
    let threads = unsafe { module.library.get::<*const u32>(threads.as_bytes_with_nul()) };
    // SAFETY: as above.
    let threads = threads.map_or(1024, |found| unsafe { **found });
    let mut room = [0; PARAMETERS_MAX];
    let count = ask(room.as_mut_ptr(), PARAMETERS_MAX as c_uint) as usize;
    let sizes = room.get(..count).ok_or(INVALID_IMAGE)?;
    let sizes = sizes.iter().map(|size| *size as usize).collect();
    Ok(Function { module, call, sizes, threads, is_loaded: AtomicBool::new(false) })
}

/// As a driver may load code: once the device has done all that it was given.
fn load_whole(function: &Function) -> Answer {
    let device = current()?;
    if !function.is_loaded.swap(true, Ordering::Relaxed) {
        while_all_wait(|| stream::wait_for_device(device));
    }
    Ok(())
}

fn launch(
    function: Handle,
    [grid, block]: [[u32; 3]; 2],
    shared_bytes: u32,
    stream: Handle,
    arguments: *mut *mut c_void,
    is_cooperative: bool,
) -> Answer {
    let function = FUNCTIONS.find(function)?;
    load_whole(&function)?;
    let product = |of: [u32; 3]| of.iter().map(|one| u64::from(*one)).product::<u64>();
    let (blocks, threads) = (product(grid), product(block));
    if blocks == 0
        || threads == 0
        || threads > function.threads.into()
        || shared_bytes > SHARED_BYTES_USUAL
    {
        return Err(INVALID_VALUE);
    }
    if grid[1].max(grid[2]) > 65_535 || block[2] > 64 {
        return Err(INVALID_VALUE);
    }
    if is_cooperative && blocks > (MULTIPROCESSORS * BLOCKS_PER_MULTIPROCESSOR) as u64 {
        return Err(720);
    }
    let copied = |(at, bytes): (usize, &usize)| {
        let mut copy = vec![[0_u64; 2]; bytes.div_ceil(16)];
        // SAFETY: the caller owes one pointer for each parameter, to a value of its size.
        unsafe {
            let source = (*arguments.add(at)).cast::<u8>();
            ptr::copy_nonoverlapping(source, copy.as_mut_ptr().cast(), *bytes);
        }
        copy
    };
    let arguments = function.sizes.iter().enumerate().map(copied).collect();
    let stream = stream::find(stream)?;
    let launch = Launch { function, grid, block, shared_bytes, arguments, stream: stream.number };
    let launch = Arc::new(launch);
    races::kernel_begins();
    races::go_before(&*launch);
    stream.submit(move || {
        races::come_behind(&*launch);
        let (launch, next) = (launch.clone(), AtomicUsize::new(0));
        let going = Arc::new(Going { launch, next, threads: Mutex::new(Vec::new()) });
        going.take_blocks();
        // Threads may start further ones until the last block is taken.
        loop {
            let Some(thread) = lock(&going.threads).pop() else { break };
            // A panic of a block has ended that thread, and says so itself.
            let _ = thread.join();
        }
        races::come_behind(&*going);
        races::kernel_ends();
    })
}

impl Going {
    fn blocks(&self) -> usize {
        self.launch.grid.iter().map(|one| *one as usize).product()
    }

    fn take_blocks(self: &Arc<Self>) {
        loop {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            if at >= self.blocks() {
                return;
            }
            if races::is_seen() { self.run_apart(at) } else { self.run(at) }
        }
    }

    /// That one block ends before the next begins is no order that a device has. So each has a
    /// thread, and ends in a way that is not seen.
    fn run_apart(self: &Arc<Self>, at: usize) {
        let going = self.clone();
        let (sender, end) = channel::<()>();
        thread::spawn(move || {
            going.run(at);
            races::go_before(&*going);
            drop(sender);
        });
        // Nothing is sent: it ends when the sender is gone.
        let _ = end.recv();
    }

    fn run(self: &Arc<Self>, at: usize) {
        let launch = &self.launch;
        let [wide, high, _] = launch.grid.map(|one| one as usize);
        let index = [at % wide, at / wide % high, at / wide / high].map(|one| one as u32);
        let pointer = |copy: &Vec<[u64; 2]>| copy.as_ptr().cast_mut().cast::<c_void>();
        let mut arguments: Vec<*mut c_void> = launch.arguments.iter().map(pointer).collect();
        let waiting = Waiting { going: self, has_called: AtomicBool::new(false) };
        let data = ptr::from_ref(&waiting).cast_mut().cast();
        (launch.function.module.run)(
            launch.grid.as_ptr(),
            launch.block.as_ptr(),
            index.as_ptr(),
            launch.shared_bytes,
            launch.function.call,
            arguments.as_mut_ptr(),
            on_stall,
            data,
            launch.stream,
        );
    }
}

/// A block waits, perhaps for a later one: a thread of its own for that.
extern "C" fn on_stall(data: *mut c_void) {
    // SAFETY: `take_blocks` passes it, and it outlives the block.
    let waiting = unsafe { &*data.cast::<Waiting<'_>>() };
    if waiting.has_called.swap(true, Ordering::Relaxed) {
        return;
    }
    let going = waiting.going.clone();
    if going.next.load(Ordering::Relaxed) < going.blocks() {
        let more = going.clone();
        lock(&going.threads).push(thread::spawn(move || more.take_blocks()));
    }
}

export! {
    fn cuModuleLoadData(target: *mut Handle, image: *const c_void) {
        forbidden_in_capture()?;
        let device = current()?;
        let module = while_all_wait(|| {
            stream::wait_for_device(device);
            load(image.cast())
        })?;
        put(target, MODULES.add(module))
    }
    fn cuModuleUnload(module: Handle) {
        forbidden_in_capture()?;
        MODULES.remove(module).map(drop)
    }
    fn cuModuleGetFunction(target: *mut Handle, module: Handle, name: *const c_char) {
        forbidden_in_capture()?;
        // SAFETY: the caller owes a C string.
        let name = unsafe { CStr::from_ptr(name) };
        put(target, FUNCTIONS.add(function(MODULES.find(module)?, name)?))
    }
    fn cuFuncLoad(handle: Handle) {
        forbidden_in_capture()?;
        load_whole(&*FUNCTIONS.find(handle)?)
    }
    fn cuFuncGetAttribute(target: *mut c_int, which: c_int, handle: Handle) {
        let function = FUNCTIONS.find(handle)?;
        put(target, match which {
            // Barriers of many take long where somebody looks on.
            0 if races::is_seen() => 32,
            0 => function.threads as c_int,
            4 => 32,
            _ => 0,
        })
    }
    fn cuLaunchKernel(
        handle: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void, _extra: *mut *mut c_void,
    ) {
        let shape = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
        launch(handle, shape, shared, stream, arguments, false)
    }
    fn cuLaunchCooperativeKernel(
        handle: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: Handle,
        arguments: *mut *mut c_void,
    ) {
        let shape = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
        launch(handle, shape, shared, stream, arguments, true)
    }
}
