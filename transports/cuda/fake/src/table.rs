//! What every function of the driver goes through, and handles that are looked up, not followed.

use std::collections::HashMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::fault;

pub(crate) type Code = u32;
pub(crate) type Answer = Result<(), Code>;
pub(crate) type Handle = *mut c_void;

pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_IMAGE: Code = 200;
pub(crate) const INVALID_PTX: Code = 218;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const ALREADY_MAPPED: Code = 208;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const NOT_SUPPORTED: Code = 801;
pub(crate) const CAPTURE_UNSUPPORTED: Code = 900;
pub(crate) const CAPTURE_INVALIDATED: Code = 901;
pub(crate) const CAPTURE_UNMATCHED: Code = 903;
pub(crate) const CAPTURE_ISOLATION: Code = 905;
pub(crate) const UNKNOWN: Code = 999;

/// Declare functions of the driver: each may be told to fail, and none unwinds.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        // The functions are C's, and so are their arguments.
        #[allow(clippy::too_many_arguments)]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> $crate::table::Code {
            $crate::table::answer(stringify!($name), move || $body)
        }
    )*};
}
pub(crate) use export;

/// Held while code is loaded.
static LOADING: RwLock<()> = RwLock::new(());

/// Load code, as a driver may do it: once everything on the device is done, and calls of other
/// threads on the same context stand still meanwhile.
pub(crate) fn while_all_wait<T>(body: impl FnOnce() -> T) -> T {
    let _all = LOADING.write().unwrap_or_else(PoisonError::into_inner);
    body()
}

pub(crate) fn answer(name: &str, body: impl FnOnce() -> Answer) -> Code {
    drop(LOADING.read().unwrap_or_else(PoisonError::into_inner));
    if let Some(code) = fault::of(name) {
        return code;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// Write what a caller asked for where it wants it.
pub(crate) fn put<T>(target: *mut T, value: T) -> Answer {
    if target.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the driver owes a pointer to such a value.
    unsafe { target.write_unaligned(value) };
    Ok(())
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Things by handle. A handle is never used twice, so one that is gone is noticed.
pub(crate) struct Table<T> {
    things: Mutex<Option<HashMap<u64, Arc<T>>>>,
}

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { things: Mutex::new(None) }
    }

    pub(crate) fn add(&self, thing: T) -> Handle {
        // Beyond what could be taken for the default streams.
        static NEXT: AtomicU64 = AtomicU64::new(0x1000);
        let handle = NEXT.fetch_add(16, Ordering::Relaxed);
        lock(&self.things).get_or_insert_default().insert(handle, Arc::new(thing));
        handle as Handle
    }

    pub(crate) fn find(&self, handle: Handle) -> Result<Arc<T>, Code> {
        let things = lock(&self.things);
        things.as_ref().and_then(|all| all.get(&(handle as u64))).cloned().ok_or(INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<T>, Code> {
        let mut things = lock(&self.things);
        things.as_mut().and_then(|all| all.remove(&(handle as u64))).ok_or(INVALID_HANDLE)
    }
}
