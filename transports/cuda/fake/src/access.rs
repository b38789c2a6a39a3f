//! Which devices reach memory of which others. Kernels reach everything here; what a driver would
//! let them reach it tells (`cuPointerGetAttributes`), and so does this.

use std::collections::BTreeSet;
use std::ffi::{c_int, c_uint};
use std::sync::Mutex;

use crate::device::{checked, current, of_context, peers};
use crate::graph::forbidden_in_capture;
use crate::memory::{Kind, Range, around};
use crate::table::{Answer, Code, Handle, INVALID_VALUE, export, lock, put};

/// What pools' handles begin at.
const POOL: usize = 0x200;

/// Pairs of one device and another that reaches its allocations, or its pool; and of where memory
/// is mapped and a device that reaches it.
static PEERS: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());
static POOLS: Mutex<BTreeSet<(usize, usize)>> = Mutex::new(BTreeSet::new());
static MAPPED: Mutex<BTreeSet<(u64, usize)>> = Mutex::new(BTreeSet::new());

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Access {
    kind: c_uint,
    device: c_int,
    flags: c_uint,
}

/// What a device may do with the memory of a range: all, or nothing.
pub(crate) fn flags(reader: usize, start: u64, range: &Range) -> u64 {
    let reaches = match &range.kind {
        Kind::Pinned { .. } => true,
        Kind::Device { device, .. } | Kind::Opened { device, .. } if *device == reader => true,
        Kind::Device { device, is_pooled: true, .. } => lock(&POOLS).contains(&(*device, reader)),
        Kind::Device { device, .. } => lock(&PEERS).contains(&(*device, reader)),
        Kind::Opened { .. } => peers() != "no",
        Kind::Shared { .. } => lock(&MAPPED).contains(&(start, reader)),
    };
    if reaches { 3 } else { 0 }
}

/// What was mapped there is gone.
pub(crate) fn forget(start: u64) {
    lock(&MAPPED).retain(|(mapped, _)| *mapped != start);
}

/// The devices that a caller names, which may do all.
fn named(access: *const Access, count: usize) -> Result<Vec<usize>, Code> {
    let one = |at: usize| {
        // SAFETY: the caller owes an array of this length.
        let access = unsafe { *access.add(at) };
        if (access.kind, access.flags) == (1, 3) {
            checked(access.device)
        } else {
            Err(INVALID_VALUE)
        }
    };
    (0..count).map(one).collect()
}

/// Whether the one may be opened to the other at all.
fn reach_at_all(device: usize, reader: usize) -> Answer {
    if device != reader && peers() == "no" { Err(217) } else { Ok(()) }
}

export! {
    fn cuCtxEnablePeerAccess(peer: Handle, _flags: c_uint) {
        let (device, reader) = (of_context(peer)?, current()?);
        reach_at_all(device, reader)?;
        // PEER_ACCESS_ALREADY_ENABLED
        if lock(&PEERS).insert((device, reader)) { Ok(()) } else { Err(704) }
    }
    fn cuDeviceGetDefaultMemPool(target: *mut Handle, device: c_int) {
        put(target, (POOL + checked(device)?) as Handle)
    }
    fn cuMemPoolSetAttribute(_pool: Handle, _which: c_uint, _value: Handle) {
        Ok(())
    }
    fn cuMemPoolSetAccess(pool: Handle, access: *const Access, count: usize) {
        let device = (pool as usize).checked_sub(POOL).ok_or(INVALID_VALUE)?;
        for reader in named(access, count)? {
            reach_at_all(device, reader)?;
            lock(&POOLS).insert((device, reader));
        }
        Ok(())
    }
    fn cuMemSetAccess(address: u64, bytes: usize, access: *const Access, count: usize) {
        forbidden_in_capture()?;
        let mapped = around(address, |start, range| match range.kind {
            Kind::Shared { device } if (start, range.bytes) == (address, bytes) => Some(device),
            _ => None,
        });
        let device = mapped.flatten().ok_or(INVALID_VALUE)?;
        for reader in named(access, count)? {
            reach_at_all(device, reader)?;
            lock(&MAPPED).insert((address, reader));
        }
        Ok(())
    }
}
