//! Memory: of devices (files without a name, so that other processes can map them) and pinned.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::access;
use crate::device::{count, current, memory_bytes, peers};
use crate::graph::forbidden_in_capture;
use crate::stream::{self, Stream};
use crate::table::{
    ALREADY_MAPPED, Answer, Code, Handle, INVALID_CONTEXT, INVALID_VALUE, NOT_FOUND, OUT_OF_MEMORY,
    export, lock, put,
};

/// What is at an address.
pub(crate) struct Range {
    pub(crate) bytes: usize,
    pub(crate) kind: Kind,
}

pub(crate) enum Kind {
    /// Of a device. The file is kept to be mapped by others.
    Device { device: usize, file: OwnedFd, is_pooled: bool },
    /// Of another process's device. The file is locked for as long as it is open here.
    Opened { device: usize, source: Source, _lock: File },
    /// Mapped through a handle that is shared.
    Shared { device: usize },
    /// Of the host, allocated here, or by somebody else.
    Pinned { is_ours: bool },
}

/// Where memory of another process lies there, and the number of its allocation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    process: u64,
    start: u64,
    number: u64,
}

/// Drivers put short allocations so far apart.
const STEP: usize = 512;

static RANGES: Mutex<BTreeMap<u64, Range>> = Mutex::new(BTreeMap::new());

/// Look at the range around an address.
pub(crate) fn around<T>(address: u64, look: impl FnOnce(u64, &Range) -> T) -> Option<T> {
    let ranges = lock(&RANGES);
    let (start, range) = ranges.range(..=address).next_back()?;
    (address < start + range.bytes as u64).then(|| look(*start, range))
}

pub(crate) fn add(start: u64, range: Range) {
    lock(&RANGES).insert(start, range);
    lock(&NUMBERS).insert(start, NEXT_NUMBER.fetch_add(1, Ordering::Relaxed));
}

/// The number of the allocation that was last at each address: no two are alike.
static NUMBERS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

pub(crate) fn remove(start: u64) -> Result<Range, Code> {
    lock(&RANGES).remove(&start).ok_or(INVALID_VALUE)
}

/// A file of zeroes without a name.
pub(crate) fn new_file(bytes: usize) -> Result<OwnedFd, Code> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"brigade-fake-cuda".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(OUT_OF_MEMORY);
    }
    // SAFETY: just opened, and ours.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes as u64).map_err(|_| OUT_OF_MEMORY)?;
    Ok(file.into())
}

/// Map a file, at `place` if it is not null.
pub(crate) fn map(file: &impl AsRawFd, bytes: usize, place: u64) -> Result<u64, Code> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | if place == 0 { 0 } else { libc::MAP_FIXED };
    let (place, fd) = (place as *mut c_void, file.as_raw_fd());
    // SAFETY: a place that is not null was reserved for this by its caller.
    let mapped = unsafe { libc::mmap(place, bytes, protection, flags, fd, 0) };
    if mapped == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(mapped as u64) }
}

pub(crate) fn unmap(start: u64, bytes: usize) {
    // SAFETY: mapped by us, and taken off the list before.
    unsafe { libc::munmap(start as *mut c_void, bytes) };
}

impl Range {
    /// The bytes that are told: what lies close together on a device has steps of its own.
    fn told(&self) -> usize {
        match self.kind {
            Kind::Device { .. } | Kind::Opened { .. } => self.bytes.next_multiple_of(STEP),
            Kind::Shared { .. } | Kind::Pinned { .. } => self.bytes,
        }
    }
}

/// Zero bytes cannot be mapped.
fn whole(bytes: usize) -> usize {
    bytes.next_multiple_of(4096).max(4096)
}

fn used(device: usize) -> usize {
    let of = |range: &Range| match range.kind {
        Kind::Device { device: owner, .. } if owner == device => whole(range.bytes),
        _ => 0,
    };
    lock(&RANGES).values().map(of).sum()
}

fn allocate(device: usize, bytes: usize, is_pooled: bool) -> Result<u64, Code> {
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    if used(device) + whole(bytes) > memory_bytes() {
        return Err(OUT_OF_MEMORY);
    }
    let file = new_file(whole(bytes))?;
    let start = map(&file, whole(bytes), 0)?;
    // Fresh memory holds anything on a device: what is no number, of any type, finds who adds to
    // it.
    // SAFETY: just mapped, and this long.
    unsafe { ptr::write_bytes(start as *mut u8, 0xff, bytes) };
    add(start, Range { bytes, kind: Kind::Device { device, file, is_pooled } });
    Ok(start)
}

fn free(start: u64, pooled: bool) -> Answer {
    let is_such = |at: u64, range: &Range| match range.kind {
        Kind::Device { is_pooled, .. } => at == start && is_pooled == pooled,
        _ => false,
    };
    if !around(start, is_such).unwrap_or(false) {
        return Err(INVALID_VALUE);
    }
    let range = remove(start)?;
    if let Kind::Device { file, .. } = &range.kind
        && !flock(file, libc::LOCK_EX)
    {
        // On a device anything may happen now.
        eprintln!("memory of a device is freed that another process has open");
        std::process::abort();
    }
    unmap(start, whole(range.bytes));
    Ok(())
}

/// Memory that is given back to pools, each when a stream has done so much.
static FREED: Mutex<Vec<(Arc<Stream>, u64)>> = Mutex::new(Vec::new());

/// What is taken of a pool may be what another stream is about to give back to it: then the one
/// that takes it waits for the other, as a driver lets it unless it is told not to
/// (`CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES`).
fn after_frees(stream: &Arc<Stream>) -> Answer {
    let mut freed = lock(&FREED);
    freed.retain(|(other, given)| !other.has_done(*given));
    let others = freed
        .iter()
        .filter(|(other, _)| other.device == stream.device && !Arc::ptr_eq(other, stream));
    for (other, given) in others.cloned() {
        stream.submit(move || other.wait_for(given))?;
    }
    Ok(())
}

/// Lock a file, among all that have it open; false where others are in the way.
fn flock(file: &impl AsRawFd, how: c_int) -> bool {
    // SAFETY: the descriptor is open.
    unsafe { libc::flock(file.as_raw_fd(), how | libc::LOCK_NB) == 0 }
}

/// What an IPC handle holds: who has the memory open, and as what.
#[repr(C)]
#[derive(Clone, Copy)]
struct Token {
    magic: u64,
    process: u64,
    fd: u64,
    bytes: u64,
    device: u64,
    start: u64,
    /// Memory at the same place has another handle when it was allocated anew.
    number: u64,
    rest: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"fakecuda");

/// Open a file that another process has open.
pub(crate) fn open_of(process: u64, fd: u64) -> Result<File, Code> {
    let path = format!("/proc/{process}/fd/{fd}");
    OpenOptions::new().read(true).write(true).open(path).map_err(|_| INVALID_VALUE)
}

fn open(token: Token) -> Result<u64, Code> {
    if token.magic != MAGIC || token.device as usize >= count() {
        return Err(INVALID_VALUE);
    }
    if token.process == u64::from(std::process::id()) {
        return Err(INVALID_CONTEXT);
    }
    let device = token.device as usize;
    if peers() == "no" && device != current()? {
        return Err(217);
    }
    let bytes = token.bytes as usize;
    let source = Source { process: token.process, start: token.start, number: token.number };
    if is_in_the_way(source, bytes) {
        return Err(ALREADY_MAPPED);
    }
    let file = open_of(token.process, token.fd)?;
    if !flock(&file, libc::LOCK_SH) {
        return Err(INVALID_VALUE);
    }
    let start = match peers() {
        "broken" => map(&new_file(whole(bytes))?, whole(bytes), 0)?,
        _ => map(&file, whole(bytes), 0)?,
    };
    add(start, Range { bytes, kind: Kind::Opened { device, source, _lock: file } });
    Ok(start)
}

/// Whether memory is still open here that lay, in the other process, where this lies now.
fn is_in_the_way(new: Source, bytes: usize) -> bool {
    let lay_there = |range: &Range| match range.kind {
        Kind::Opened { source: old, .. } => {
            let (old_end, new_end) = (old.start + range.bytes as u64, new.start + bytes as u64);
            old.process == new.process && old != new && old.start < new_end && new.start < old_end
        }
        _ => false,
    };
    lock(&RANGES).values().any(lay_there)
}

fn host_memory(bytes: usize) -> Result<u64, Code> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for fresh memory anywhere.
    let start = unsafe { libc::mmap(ptr::null_mut(), whole(bytes), protection, flags, -1, 0) };
    if start == libc::MAP_FAILED { Err(OUT_OF_MEMORY) } else { Ok(start as u64) }
}

/// The answers to one question of `cuPointerGetAttributes`.
fn put_attribute(which: c_uint, target: *mut c_void, address: u64) -> Answer {
    let found = around(address, |start, range| {
        let (kind, device) = match range.kind {
            Kind::Device { device, .. } | Kind::Opened { device, .. } | Kind::Shared { device } => {
                (2_u32, device as c_int)
            }
            Kind::Pinned { .. } => (1, 0),
        };
        let access = current().map_or(0, |reader| access::flags(reader, start, range));
        (kind, device, start, range.told(), access)
    });
    let (kind, device, start, bytes, access) = found.unwrap_or((0, -2, 0, 0, 0));
    match which {
        2 => put(target.cast(), kind),
        7 => put(target.cast(), lock(&NUMBERS).get(&start).copied().unwrap_or(0)),
        8 => put(target.cast(), 0_u8),
        9 => put(target.cast(), device),
        11 => put(target.cast(), start),
        12 => put(target.cast(), bytes),
        16 => put(target.cast(), access),
        _ => Err(INVALID_VALUE),
    }
}

export! {
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        put(free, memory_bytes().saturating_sub(used(current()?)))?;
        put(total, memory_bytes())
    }
    fn cuMemAlloc_v2(target: *mut u64, bytes: usize) {
        forbidden_in_capture()?;
        let device = current()?;
        stream::settle();
        put(target, allocate(device, bytes, false)?)
    }
    fn cuMemFree_v2(address: u64) {
        forbidden_in_capture()?;
        stream::settle_to_free();
        free(address, false)
    }
    fn cuMemAllocAsync(target: *mut u64, bytes: usize, handle: Handle) {
        let stream = stream::find(handle)?;
        after_frees(&stream)?;
        put(target, allocate(stream.device, bytes, true)?)
    }
    fn cuMemFreeAsync(address: u64, handle: Handle) {
        let stream = stream::find(handle)?;
        stream.submit(move || {
            // In a graph that runs again it is gone; a device would have taken it anew.
            let _ = free(address, true);
        })?;
        let given = stream.given();
        lock(&FREED).push((stream, given));
        Ok(())
    }
    fn cuMemGetAddressRange_v2(start: *mut u64, bytes: *mut usize, address: u64) {
        let found = around(address, |start, range| (start, range.told())).ok_or(NOT_FOUND)?;
        put(start, found.0)?;
        put(bytes, found.1)
    }
    fn cuPointerGetAttributes(
        number: c_uint, which: *mut c_uint, values: *mut *mut c_void, address: u64,
    ) {
        for at in 0..number as usize {
            // SAFETY: the caller owes two arrays of this length.
            let (which, value) = unsafe { (*which.add(at), *values.add(at)) };
            put_attribute(which, value, address)?;
        }
        Ok(())
    }
    fn cuMemHostAlloc(target: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        forbidden_in_capture()?;
        stream::settle();
        let start = host_memory(bytes)?;
        add(start, Range { bytes, kind: Kind::Pinned { is_ours: true } });
        put(target, start as *mut c_void)
    }
    fn cuMemFreeHost(pointer: *mut c_void) {
        forbidden_in_capture()?;
        let start = pointer as u64;
        stream::settle_to_free();
        let range = remove(start)?;
        if matches!(range.kind, Kind::Pinned { is_ours: true }) {
            unmap(start, whole(range.bytes));
        }
        Ok(())
    }
    fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, _flags: c_uint) {
        forbidden_in_capture()?;
        let (start, end) = (pointer as u64, pointer as u64 + bytes as u64);
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let meets = around(end - 1, |_, _| ()).is_some() || around(start, |_, _| ()).is_some();
        if meets {
            return Err(712);
        }
        stream::settle();
        add(start, Range { bytes, kind: Kind::Pinned { is_ours: false } });
        Ok(())
    }
    fn cuMemHostUnregister(pointer: *mut c_void) {
        forbidden_in_capture()?;
        let is_such = |_: u64, range: &Range| matches!(range.kind, Kind::Pinned { is_ours: false });
        if !around(pointer as u64, is_such).unwrap_or(false) {
            return Err(713);
        }
        stream::settle();
        remove(pointer as u64).map(drop)
    }
    fn cuMemHostGetDevicePointer_v2(target: *mut u64, pointer: *mut c_void, _flags: c_uint) {
        around(pointer as u64, |_, _| ()).ok_or(INVALID_VALUE)?;
        put(target, pointer as u64)
    }
    fn cuIpcGetMemHandle(target: *mut c_void, address: u64) {
        forbidden_in_capture()?;
        let token = around(address, |start, range| match &range.kind {
            Kind::Device { device, file, is_pooled: false } => Some(Token {
                magic: MAGIC,
                process: u64::from(std::process::id()),
                fd: file.as_raw_fd() as u64,
                bytes: range.bytes as u64,
                device: *device as u64,
                start,
                number: lock(&NUMBERS).get(&start).copied().unwrap_or(0),
                rest: 0,
            }),
            _ => None,
        });
        put(target.cast(), token.flatten().ok_or(INVALID_VALUE)?)
    }
    fn cuIpcOpenMemHandle_v2(target: *mut u64, token: Token, _flags: c_uint) {
        forbidden_in_capture()?;
        put(target, open(token)?)
    }
    fn cuIpcCloseMemHandle(address: u64) {
        forbidden_in_capture()?;
        stream::settle_to_free();
        let range = remove(address)?;
        unmap(address, whole(range.bytes));
        Ok(())
    }
}
