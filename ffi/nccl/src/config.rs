//! ncclConfig_t: read by its size, so that programs of other versions are understood.

use std::ffi::{c_char, c_int, c_uint};

use brigade_wall::pointer::{list, read};
use brigade_wall::{Failure, Outcome};

/// What a program asks of a communicator. Newer versions have more behind it, older ones less.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclConfig_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cgaClusterSize: c_int,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub netName: *const c_char,
    pub splitShare: c_int,
    pub trafficClass: c_int,
}

const MAGIC: c_uint = 0xcafe_beef;
const UNDEFINED: c_int = c_int::MIN;
/// Up to the version that has a config at all.
const BYTES_MIN: usize = std::mem::offset_of!(ncclConfig_t, version) + size_of::<c_uint>();
/// No struct of theirs will ever be larger.
const BYTES_MAX: usize = 4096;
const BLOCKING_AT: usize = std::mem::offset_of!(ncclConfig_t, blocking);
const MIN_CTAS_AT: usize = std::mem::offset_of!(ncclConfig_t, minCTAs);
const MAX_CTAS_AT: usize = std::mem::offset_of!(ncclConfig_t, maxCTAs);

/// What Brigade can do something about.
#[derive(Clone, Copy, Default)]
pub(crate) struct Config {
    /// Whether calls return when they are done; `None` leaves it as it is.
    pub(crate) blocking: Option<bool>,
    /// How many blocks of a kernel a call may have on a device, likewise.
    pub(crate) blocks: Option<u32>,
}

/// Read a config, which may be NULL.
///
/// # Safety
///
/// The pointer is NULL, misaligned, or leads to as many bytes as its first word says.
pub(crate) unsafe fn config(pointer: *const ncclConfig_t) -> Outcome<Config> {
    if pointer.is_null() {
        return Ok(Config::default());
    }
    // SAFETY: the caller's promise.
    let bytes = *unsafe { read(pointer.cast::<usize>(), "config") }?;
    let begin = "begin with NCCL_CONFIG_INITIALIZER";
    if !(BYTES_MIN..=BYTES_MAX).contains(&bytes) {
        return Err(Failure::argument(format!("config: its size is {bytes}: {begin}")));
    }
    // SAFETY: the caller's promise, now that the size is one.
    let theirs = unsafe { list(pointer.cast::<u8>(), bytes, "config") }?;
    let word = |at: usize| theirs.get(at..at + 4).and_then(|word| word.try_into().ok());
    let magic = word(std::mem::offset_of!(ncclConfig_t, magic)).map(c_uint::from_ne_bytes);
    if magic != Some(MAGIC) {
        return Err(Failure::argument(format!("config: its magic is not {MAGIC:#x}: {begin}")));
    }
    let number = |at: usize| word(at).map_or(UNDEFINED, c_int::from_ne_bytes);
    let blocking = match number(BLOCKING_AT) {
        UNDEFINED => None,
        0 => Some(false),
        1 => Some(true),
        other => return Err(Failure::argument(format!("config: blocking is {other}, not 0 or 1"))),
    };
    let blocks = match (number(MIN_CTAS_AT), number(MAX_CTAS_AT)) {
        (least, UNDEFINED) if least == UNDEFINED || least > 0 => None,
        (least, most) if most > 0 && (least == UNDEFINED || (1..=most).contains(&least)) => {
            Some(most as u32)
        }
        (least, most) => {
            let problem =
                format!("config: minCTAs is {least}, maxCTAs {most}: at least 1, in order");
            return Err(Failure::argument(problem));
        }
    };
    Ok(Config { blocking, blocks })
}
