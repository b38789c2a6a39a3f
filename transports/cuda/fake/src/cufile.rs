//! GPUDirect Storage with cuFile's names: memory of a "device" is the host's, so a read of the file
//! ends there. What is refused, and how it is told, is as `cufile.h` says and as others recorded of
//! CUDA 13.0's library: codes of cuFile where errno is, nothing read past the end, pieces that are
//! not whole blocks through a descriptor of its own. `BRIGADE_FAKE_CUFILE` says how it is set up.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_long, c_uint, c_void};
use std::fs::{File, OpenOptions};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use crate::device::current;
use crate::fault;
use crate::memory::{Kind, around};
use crate::table::{Handle, Table, lock, put};

const NOT_INITIALIZED: i32 = 5001;
const IO_NOT_SUPPORTED: i32 = 5008;
const CUDA_DRIVER_ERROR: i32 = 5011;
const MEMORY_TYPE_INVALID: i32 = 5013;
const POINTER_RANGE_ERROR: i32 = 5014;
const CONTEXT_MISMATCH: i32 = 5015;
const INVALID_MAPPING_RANGE: i32 = 5017;
const INVALID_FILE_TYPE: i32 = 5018;
const INVALID_FILE_OPEN_FLAG: i32 = 5019;
const INVALID_VALUE: i32 = 5022;
const MEMORY_ALREADY_REGISTERED: i32 = 5023;
const MEMORY_NOT_REGISTERED: i32 = 5024;
const ALREADY_OPEN: i32 = 5026;
const HANDLE_NOT_REGISTERED: i32 = 5027;
const HANDLE_ALREADY_REGISTERED: i32 = 5028;
const INTERNAL_ERROR: i32 = 5030;

/// The kind of a file that is a descriptor.
const OPAQUE_FD: c_int = 1;
/// Where pieces end that go past the page cache.
const BLOCK: u64 = 4096;

#[repr(C)]
pub(crate) struct Status {
    err: c_int,
    cu_err: c_uint,
}

#[repr(C)]
pub(crate) struct Descr {
    kind: c_int,
    handle: DescrHandle,
    fs_ops: *const c_void,
}

#[repr(C)]
pub(crate) union DescrHandle {
    fd: c_int,
    pointer: *const c_void,
}

#[repr(C)]
pub(crate) struct Properties {
    version: [c_uint; 2],
    sizes: [usize; 2],
    status_flags: c_uint,
    control_flags: c_uint,
    rest: [c_uint; 6],
}

/// A file that was registered, by the caller's descriptor.
struct Registered {
    fd: RawFd,
    /// Of the same file, through the page cache.
    buffered: File,
}

static FILES: Table<Registered> = Table::new();
/// Descriptors that have handles.
static TAKEN: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
/// Memory that was registered, by where it begins.
static BUFFERS: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());
static USES: AtomicI32 = AtomicI32::new(0);
/// cufile.json allows it, as NVIDIA's does.
static ALLOWS_COMPAT: AtomicBool = AtomicBool::new(true);

fn mode() -> String {
    std::env::var("BRIGADE_FAKE_CUFILE").unwrap_or_default()
}

/// Whether bytes can go straight at all.
fn has_module() -> bool {
    mode() != "none"
}

fn allows_compat() -> bool {
    ALLOWS_COMPAT.load(Ordering::Relaxed)
}

/// Declare functions that answer with a status: each may be told to fail, and none unwinds.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> Status {
            status(stringify!($name), move || $body)
        }
    )*};
}

fn status(name: &str, body: impl FnOnce() -> Result<(), i32>) -> Status {
    match fault::of(name) {
        Some(code) if code > 5000 => return Status { err: code as c_int, cu_err: 0 },
        Some(code) => return Status { err: CUDA_DRIVER_ERROR, cu_err: code },
        None => {}
    }
    let answer = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(INTERNAL_ERROR));
    Status { err: answer.err().unwrap_or(0), cu_err: 0 }
}

export! {
    fn cuFileDriverOpen() {
        if !has_module() && !allows_compat() {
            return Err(NOT_INITIALIZED);
        }
        USES.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn cuFileDriverClose_v2() {
        let closed = USES.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |uses| {
            (uses > 0).then_some(uses - 1)
        });
        closed.map(drop).map_err(|_| NOT_INITIALIZED)
    }
    fn cuFileGetVersion(target: *mut c_int) {
        put(target, if mode() == "old" { 1130 } else { 1140 }).map_err(|_| INVALID_VALUE)
    }
    fn cuFileSetParameterBool(which: c_int, value: bool) {
        if USES.load(Ordering::Relaxed) > 0 {
            return Err(ALREADY_OPEN);
        }
        if which != 1 || mode() == "old" {
            return Err(INVALID_VALUE);
        }
        ALLOWS_COMPAT.store(value, Ordering::Relaxed);
        Ok(())
    }
    fn cuFileGetParameterBool(which: c_int, target: *mut bool) {
        let value = match which {
            _ if mode() == "old" => return Err(INVALID_VALUE),
            1 => allows_compat(),
            2 => mode() == "forced",
            _ => return Err(INVALID_VALUE),
        };
        put(target, value).map_err(|_| INVALID_VALUE)
    }
    fn cuFileDriverGetProperties(target: *mut Properties) {
        let without = ["none", "p2p", "p2p-late"];
        let version = if without.contains(&mode().as_str()) { [0, 0] } else { [2, 25] };
        let status_flags = if mode() == "p2p" { 1 << 11 } else { 1 << 4 };
        // What cufile.json says, whatever was set since.
        let (control_flags, sizes) = (1 << 1, [4, 16384]);
        let rest = [if mode() == "p2p-late" { 1 << 4 } else { 0 }, 0, 0, 0, 0, 0];
        let properties = Properties { version, sizes, status_flags, control_flags, rest };
        put(target, properties).map_err(|_| INVALID_VALUE)
    }
    fn cuFileHandleRegister(target: *mut Handle, descr: *const Descr) {
        if target.is_null() || descr.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller owes one, and all of it.
        let (kind, fd) = unsafe { ((*descr).kind, (*descr).handle.fd) };
        if kind != OPAQUE_FD {
            return Err(IO_NOT_SUPPORTED);
        }
        register(fd).and_then(|handle| put(target, handle).map_err(|_| INVALID_VALUE))
    }
    fn cuFileBufRegister(base: *const c_void, bytes: usize, _flags: c_int) {
        let start = base as u64;
        if start == 0 || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let found = around(start, |at, range| {
            (start + bytes as u64 <= at + range.bytes as u64, is_mappable(&range.kind))
        });
        match found {
            Some((_, false)) => Err(MEMORY_TYPE_INVALID),
            Some((false, _)) | None => Err(POINTER_RANGE_ERROR),
            Some(_) => match lock(&BUFFERS).insert(start, bytes) {
                None => Ok(()),
                Some(_) => Err(MEMORY_ALREADY_REGISTERED),
            },
        }
    }
    fn cuFileBufDeregister(base: *const c_void) {
        lock(&BUFFERS).remove(&(base as u64)).map(drop).ok_or(MEMORY_NOT_REGISTERED)
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileHandleDeregister(handle: Handle) {
    if let Ok(gone) = FILES.remove(handle) {
        lock(&TAKEN).retain(|fd| *fd != gone.fd);
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuFileRead(
    handle: Handle,
    base: *mut c_void,
    bytes: usize,
    offset: c_long,
    at: c_long,
) -> isize {
    moved("cuFileRead", bytes, |bytes| {
        let (file, memory) = checked(handle, base as u64, bytes, offset, at)?;
        // SAFETY: the range is memory of a device, mapped here, and the caller's until we return.
        let target = unsafe { std::slice::from_raw_parts_mut(memory as *mut u8, bytes) };
        match is_whole(memory, offset, bytes) {
            true => with(file.fd, |file| file.read_at(target, offset as u64)),
            false => file.buffered.read_at(target, offset as u64),
        }
        .map_err(errno)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuFileWrite(
    handle: Handle,
    base: *const c_void,
    bytes: usize,
    offset: c_long,
    at: c_long,
) -> isize {
    moved("cuFileWrite", bytes, |bytes| {
        let (file, memory) = checked(handle, base as u64, bytes, offset, at)?;
        // SAFETY: as above.
        let source = unsafe { std::slice::from_raw_parts(memory as *const u8, bytes) };
        match is_whole(memory, offset, bytes) {
            true => with(file.fd, |file| file.write_at(source, offset as u64)),
            false => file.buffered.write_at(source, offset as u64),
        }
        .map_err(errno)
    })
}

/// Memory that a device can show to a drive.
fn is_mappable(kind: &Kind) -> bool {
    !matches!(kind, Kind::Device { is_pooled: true, .. } | Kind::Opened { .. })
}

fn register(fd: RawFd) -> Result<Handle, i32> {
    // SAFETY: the call takes any number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(INVALID_VALUE);
    }
    if !with(fd, |file| file.metadata()).is_ok_and(|found| found.is_file()) {
        return Err(INVALID_FILE_TYPE);
    }
    if flags & libc::O_APPEND != 0 || (flags & libc::O_DIRECT == 0 && !allows_compat()) {
        return Err(INVALID_FILE_OPEN_FLAG);
    }
    let mut taken = lock(&TAKEN);
    if taken.contains(&fd) {
        return Err(HANDLE_ALREADY_REGISTERED);
    }
    let path = format!("/proc/self/fd/{fd}");
    let buffered = OpenOptions::new().read(true).write(true).open(path).map_err(errno)?;
    taken.push(fd);
    Ok(FILES.add(Registered { fd, buffered }))
}

/// Use a descriptor that somebody else closes.
fn with<T>(fd: RawFd, body: impl FnOnce(&File) -> T) -> T {
    // SAFETY: it is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    body(&file)
}

/// The file, and where in memory the bytes are.
fn checked(
    handle: Handle,
    base: u64,
    bytes: usize,
    offset: c_long,
    at: c_long,
) -> Result<(Arc<Registered>, u64), i32> {
    if handle.is_null() || base == 0 {
        return Err(libc::EINVAL);
    }
    if offset < 0 || at < 0 {
        return Err(INVALID_VALUE);
    }
    current().map_err(|_| CONTEXT_MISMATCH)?;
    let file = FILES.find(handle).map_err(|_| HANDLE_NOT_REGISTERED)?;
    let (start, end) = (base + at as u64, base + at as u64 + bytes as u64);
    if let Some(known) = lock(&BUFFERS).get(&base) {
        let fits = end <= base + *known as u64;
        return if fits { Ok((file, start)) } else { Err(INVALID_MAPPING_RANGE) };
    }
    let fits = around(start, |at, range| {
        end <= at + range.bytes as u64 && !matches!(range.kind, Kind::Pinned { .. })
    });
    if fits == Some(true) { Ok((file, start)) } else { Err(libc::EIO) }
}

fn is_whole(memory: u64, offset: c_long, bytes: usize) -> bool {
    [memory, offset as u64, bytes as u64].iter().all(|number| number.is_multiple_of(BLOCK))
}

fn errno(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// What a call returns that moves bytes. A fault of 0 lets it move half of its whole blocks.
fn moved(name: &str, bytes: usize, body: impl FnOnce(usize) -> Result<usize, i32>) -> isize {
    let bytes = match fault::of(name) {
        None => bytes,
        Some(0) => bytes / 2 / BLOCK as usize * BLOCK as usize,
        Some(code) => return failed(code as i32),
    };
    if bytes == 0 {
        return 0;
    }
    let moved = catch_unwind(AssertUnwindSafe(|| body(bytes)));
    match moved.unwrap_or(Err(INTERNAL_ERROR)) {
        Ok(count) => count as isize,
        Err(code) => failed(code),
    }
}

fn failed(code: i32) -> isize {
    // SAFETY: the place is this thread's.
    unsafe { *libc::__errno_location() = code };
    -1
}
