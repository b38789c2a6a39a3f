//! Memory with a budget, and the engine that moves its bytes to files and back.

use std::ffi::{CStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use brigade_offload::memory::{Arena, Budget};
use brigade_offload::storage::{Settings, Storage, StorageError};
use brigade_offload::store::{Carrier, StoreError};

use crate::error::{Failure, Outcome, brigade_result_t, enter};
use brigade_wall::Cause;
use brigade_wall::handle::{Noun, close, pin, register};
use brigade_wall::pointer::{Out, list};

/// Memory with a hard budget. What is inside is nobody's.
pub struct brigade_arena {
    _nobody: (),
}

/// A handle of memory with a hard budget, and of what moves it to files and back: all that
/// offloading takes comes from here. Stores and optimizers keep what they use of it, so its handle
/// may end before theirs.
pub type brigade_arena_t = *mut brigade_arena;

/// What stands behind a handle.
pub(crate) struct Tiers {
    pub(crate) arena: Arena,
    pub(crate) carrier: Carrier,
}

impl Noun for Tiers {
    const KIND: u8 = 5;
    const NAME: &'static str = "arena";
}

/// Take `bytes` bytes of memory, all of them now, on the best pages the machine has. A forked child
/// has none of it, and must not touch it. `arena` is NULL after an error.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_arena_create(
    arena: *mut brigade_arena_t,
    bytes: usize,
) -> brigade_result_t {
    enter(|| {
        let out = Out::new(arena, "arena")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(std::ptr::null_mut()) };
        let memory = Arena::new(Budget::new(bytes))
            .map_err(|error| Failure::new(Cause::OverBudget, error.to_string()))?;
        let storage = Storage::new(&memory, Settings::default()).map_err(storage_failed)?;
        let carrier = Carrier::new(&storage, &memory);
        let handle = register(Arc::new(Tiers { arena: memory, carrier }))?;
        // SAFETY: as above.
        unsafe { out.put(std::ptr::without_provenance_mut(handle as usize)) };
        Ok(())
    })
}

/// How many bytes nobody uses now.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_arena_free_bytes(
    arena: brigade_arena_t,
    bytes: *mut usize,
) -> brigade_result_t {
    enter(|| {
        let tiers = pin::<Tiers>(arena.addr() as u64)?;
        let out = Out::new(bytes, "bytes")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(tiers.arena.ledger().free()) };
        Ok(())
    })
}

/// End a handle. The memory goes back to the system with the last store and optimizer that uses it.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_arena_destroy(arena: brigade_arena_t) -> brigade_result_t {
    enter(|| close::<Tiers>(arena.addr() as u64))
}

/// The files that C names.
///
/// # Safety
///
/// The paths are what C must pass.
pub(crate) unsafe fn files(paths: *const *const c_char, count: usize) -> Outcome<Vec<PathBuf>> {
    // SAFETY: the caller's promise.
    let paths = unsafe { list(paths, count, "paths") }?;
    if paths.is_empty() || paths.iter().any(|path| path.is_null()) {
        return Err(Failure::argument("paths: at least one, and none of them NULL"));
    }
    let path = |path: &*const c_char| {
        // SAFETY: it is not NULL, and C passes text. A path is any bytes.
        let path = unsafe { CStr::from_ptr(*path) };
        PathBuf::from(std::ffi::OsStr::from_bytes(path.to_bytes()))
    };
    Ok(paths.iter().map(path).collect())
}

/// Why a state was not read or written, for C.
#[cold]
pub(crate) fn failed(error: StoreError) -> Box<Failure> {
    let cause = match &error {
        StoreError::Storage(error) => cause_of(error),
        StoreError::OverBudget(_) | StoreError::HostFull { .. } => Cause::OverBudget,
        StoreError::Damaged { .. }
        | StoreError::Length { .. }
        | StoreError::Unrecoverable { .. }
        | StoreError::Foreign { .. } => Cause::Corrupt,
        StoreError::Unplaceable(_)
        | StoreError::Geometry(_)
        | StoreError::Missing(_)
        | StoreError::Namesakes { .. }
        | StoreError::TooLong { .. }
        | StoreError::Apart { .. }
        | StoreError::NoTensor { .. } => Cause::Argument,
        StoreError::Late { .. } => Cause::Timeout,
        _ => Cause::Usage,
    };
    Failure::new(cause, error.to_string())
}

#[cold]
fn storage_failed(error: StorageError) -> Box<Failure> {
    Failure::new(cause_of(&error), error.to_string())
}

fn cause_of(error: &StorageError) -> Cause {
    match error {
        StorageError::Truncated { .. } => Cause::Corrupt,
        StorageError::Late { .. } => Cause::Timeout,
        StorageError::Owned { .. } => Cause::Usage,
        _ => Cause::System,
    }
}
