//! Memory of the host or of a device, and what programs say about it beforehand: accepted, for
//! nothing has to be said here.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use brigade_cuda::{Context, DeviceMemory};
use brigade_wall::handle::{Noun, close, pin, register};
use brigade_wall::pointer::Out;
use brigade_wall::streams::said;
use brigade_wall::{Failure, Outcome, pages};

use crate::comm::{Comm, ncclComm_t};
use crate::result::{enter, ncclResult_t};

/// A handle of memory that was registered as a window.
pub type ncclWindow_t = *mut c_void;

/// Memory that a program has told of.
struct Registered;

impl Noun for Registered {
    const KIND: u8 = 4;
    const NAME: &'static str = "registration";
}

/// A window.
struct Window {
    start: usize,
}

impl Noun for Window {
    const KIND: u8 = 5;
    const NAME: &'static str = "window";
}

/// Memory of devices that was given out and not yet given back, by its addresses.
static ON_DEVICES: Mutex<BTreeMap<usize, DeviceMemory>> = Mutex::new(BTreeMap::new());

/// Memory of the device whose context the thread has; without one memory of the host, of zeros, in
/// whole pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemAlloc(memory: *mut *mut c_void, size: usize) -> ncclResult_t {
    enter(|| {
        let out = Out::new(memory, "ptr")?;
        if size > 0
            && let Some(context) = Context::current().map_err(said)?
        {
            let given = DeviceMemory::new(&context, size).map_err(said)?;
            let address = given.address() as usize;
            ON_DEVICES.lock().unwrap_or_else(PoisonError::into_inner).insert(address, given);
            // SAFETY: C passes a place for it.
            unsafe { out.put(std::ptr::with_exposed_provenance_mut(address)) };
            return Ok(());
        }
        let pages = pages::allocate(size)?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(pages) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclMemFree(memory: *mut c_void) -> ncclResult_t {
    enter(|| {
        let address = memory.expose_provenance();
        let given = ON_DEVICES.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        match given {
            Some(on_device) => {
                drop(on_device);
                Ok(())
            }
            // SAFETY: C's promise.
            None => unsafe { pages::free(memory) },
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRegister(
    comm: ncclComm_t,
    buffer: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { keep(comm, buffer, size, handle, |_| Registered) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t {
    enter(|| {
        pin::<Comm>(comm.addr() as u64)?;
        close::<Registered>(handle.addr() as u64)
    })
}

/// A window that only its owner's calls use: there are no one-sided calls here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommWindowRegister(
    comm: ncclComm_t,
    buffer: *mut c_void,
    size: usize,
    window: *mut ncclWindow_t,
    _flags: c_int,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { keep(comm, buffer, size, window, |start| Window { start }) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommWindowDeregister(
    comm: ncclComm_t,
    window: ncclWindow_t,
) -> ncclResult_t {
    enter(|| {
        pin::<Comm>(comm.addr() as u64)?;
        close::<Window>(window.addr() as u64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclWinGetUserPtr(
    comm: ncclComm_t,
    window: ncclWindow_t,
    pointer: *mut *mut c_void,
) -> ncclResult_t {
    enter(|| {
        pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(pointer, "outUserPtr")?;
        let window = pin::<Window>(window.addr() as u64)?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(std::ptr::with_exposed_provenance_mut(window.start)) };
        Ok(())
    })
}

/// Give memory that was told of a handle.
///
/// # Safety
///
/// C passes a place for the handle.
unsafe fn keep<T: Noun>(
    comm: ncclComm_t,
    buffer: *mut c_void,
    size: usize,
    handle: *mut *mut c_void,
    noun: impl FnOnce(usize) -> T,
) -> ncclResult_t {
    enter(|| -> Outcome {
        pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(handle, "the place of the handle")?;
        if buffer.is_null() || size == 0 {
            return Err(Failure::argument(format!("no memory: {size} bytes at {buffer:p}")));
        }
        let kept = register(Arc::new(noun(buffer.expose_provenance())))?;
        // SAFETY: the caller's promise.
        unsafe { out.put(std::ptr::without_provenance_mut(kept as usize)) };
        Ok(())
    })
}
