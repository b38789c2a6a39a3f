//! Devices and contexts: a context is its device's number, and the current one a thread's.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::OnceLock;

use crate::fault::number;
use crate::table::{
    Code, Handle, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, export, put,
};

/// What contexts' handles begin at.
const CONTEXT: usize = 0x100;
pub(crate) const MULTIPROCESSORS: c_int = 16;
pub(crate) const BLOCKS_PER_MULTIPROCESSOR: c_int = 4;

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| number("BRIGADE_FAKE_CUDA_DEVICES", 1))
}

/// Bytes of memory of each device.
pub(crate) fn memory_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| number("BRIGADE_FAKE_CUDA_MEMORY", 1 << 30))
}

/// What kernels are compiled for: 90 stands for sm_90.
fn arch() -> c_int {
    static ARCH: OnceLock<usize> = OnceLock::new();
    *ARCH.get_or_init(|| number("BRIGADE_FAKE_CUDA_ARCH", 90)) as c_int
}

/// How devices and processes reach each other's memory: `yes`, `no` or `broken`.
pub(crate) fn peers() -> &'static str {
    static PEERS: OnceLock<String> = OnceLock::new();
    PEERS.get_or_init(|| {
        let set = std::env::var("BRIGADE_FAKE_CUDA_PEERS").unwrap_or_default();
        if set.is_empty() { String::from("yes") } else { set }
    })
}

/// The device of the thread's current context.
pub(crate) fn current() -> Result<usize, Code> {
    CURRENT.with_borrow(|stack| stack.last().copied().ok_or(INVALID_CONTEXT))
}

pub(crate) fn of_context(context: Handle) -> Result<usize, Code> {
    let device = (context as usize).checked_sub(CONTEXT).ok_or(INVALID_CONTEXT)?;
    if device < count() { Ok(device) } else { Err(INVALID_CONTEXT) }
}

pub(crate) fn checked(device: c_int) -> Result<usize, Code> {
    let known = usize::try_from(device).ok().filter(|device| *device < count());
    known.ok_or(INVALID_DEVICE)
}

fn text(target: *mut c_char, room: c_int, words: &str) -> Result<(), Code> {
    let room = usize::try_from(room).ok().filter(|room| *room > words.len());
    room.ok_or(INVALID_VALUE)?;
    for (at, byte) in words.bytes().chain([0]).enumerate() {
        put(target.wrapping_add(at), byte as c_char)?;
    }
    Ok(())
}

fn attribute(which: c_int) -> Result<c_int, Code> {
    Ok(match which {
        1 => 1024,
        10 => 32,
        8 => 48 * 1024,
        16 => MULTIPROCESSORS,
        38 => 4 << 20,
        39 => 2048,
        75 => arch() / 10,
        76 => arch() % 10,
        81 => 228 * 1024,
        41 | 95 | 99 | 102 | 103 | 115 => 1,
        124 => 0,
        _ => return Err(INVALID_VALUE),
    })
}

export! {
    fn cuInit(_flags: c_uint) {
        if count() == 0 { Err(100) } else { Ok(()) }
    }
    fn cuDriverGetVersion(version: *mut c_int) {
        put(version, number("BRIGADE_FAKE_CUDA_VERSION", 12080) as c_int)
    }
    fn cuDeviceGetCount(target: *mut c_int) {
        put(target, count() as c_int)
    }
    fn cuDeviceGet(target: *mut c_int, ordinal: c_int) {
        put(target, checked(ordinal)? as c_int)
    }
    fn cuDeviceGetName(target: *mut c_char, room: c_int, device: c_int) {
        checked(device)?;
        text(target, room, "Brigade fake device")
    }
    fn cuDeviceGetUuid_v2(target: *mut [u8; 16], device: c_int) {
        let mut uuid = *b"brigade-fake-gpu";
        uuid[15] = checked(device)? as u8;
        put(target, uuid)
    }
    fn cuDeviceTotalMem_v2(target: *mut usize, device: c_int) {
        checked(device)?;
        put(target, memory_bytes())
    }
    fn cuDeviceGetAttribute(target: *mut c_int, which: c_int, device: c_int) {
        checked(device)?;
        put(target, attribute(which)?)
    }
    fn cuDeviceGetPCIBusId(target: *mut c_char, room: c_int, device: c_int) {
        text(target, room, &format!("0000:{:02x}:00.0", checked(device)? + 1))
    }
    fn cuDeviceCanAccessPeer(target: *mut c_int, device: c_int, peer: c_int) {
        let differ = checked(device)? != checked(peer)?;
        put(target, c_int::from(differ && peers() != "no"))
    }
    fn cuDeviceGetP2PAttribute(target: *mut c_int, which: c_int, source: c_int, peer: c_int) {
        if checked(source)? == checked(peer)? {
            return Err(INVALID_DEVICE);
        }
        put(target, c_int::from(which != 1 && peers() != "no"))
    }
    fn cuDevicePrimaryCtxRetain(target: *mut Handle, device: c_int) {
        put(target, (CONTEXT + checked(device)?) as Handle)
    }
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        checked(device).map(drop)
    }
    fn cuCtxGetCurrent(target: *mut Handle) {
        put(target, current().map_or(0, |device| CONTEXT + device) as Handle)
    }
    fn cuCtxPushCurrent_v2(context: Handle) {
        let device = of_context(context)?;
        CURRENT.with_borrow_mut(|stack| stack.push(device));
        Ok(())
    }
    fn cuCtxPopCurrent_v2(target: *mut Handle) {
        let popped = CURRENT.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        put(target, (CONTEXT + popped) as Handle)
    }
    fn cuCtxGetDevice(target: *mut c_int) {
        put(target, current()? as c_int)
    }
    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        current()?;
        put(least, 0)?;
        put(greatest, -5)
    }
    fn cuMemGetHandleForAddressRange(
        _target: Handle, _address: u64, _bytes: usize, _kind: c_uint, _flags: u64,
    ) {
        Err(NOT_SUPPORTED)
    }
}
