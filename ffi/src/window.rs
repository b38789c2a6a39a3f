//! Windows: memory of a rank that the others write and read.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use brigade_comm::{Window, WindowSize};

use crate::comm::{Comm, brigade_comm_t, may_wait};
use crate::error::brigade_result_t::{BRIGADE_IN_PROGRESS, BRIGADE_SUCCESS};
use crate::error::{Outcome, brigade_result_t, enter, enter_for};
use crate::thread;
use brigade_wall::handle::{Noun, close, pin, reserve};
use brigade_wall::memory::Seat;
use brigade_wall::pointer::{Out, list, list_mut};

/// A window of every rank of a group. What is inside is nobody's.
pub struct brigade_window {
    _nobody: (),
}

/// A handle of windows: memory of every rank of a group, with counters beside it, that all of them
/// write and read while its owner does something else.
pub type brigade_window_t = *mut brigade_window;

/// What stands behind a handle.
struct Windows(Window);

impl Noun for Windows {
    const KIND: u8 = 4;
    const NAME: &'static str = "window";
}

impl Windows {
    /// The rank that C means.
    fn member(&self, rank: c_int) -> Outcome<usize> {
        Seat { rank: self.0.rank(), ranks: self.0.size() }.member("a window: rank", rank)
    }
}

/// Expose `bytes` bytes of zeros and `signals` counters, zero at first, to the other ranks, and get
/// hold of theirs. Every rank must call it, each with sizes of its own. The memory belongs to the
/// library: brigade_window_put and brigade_window_get reach it, the own rank's too. `window` is
/// NULL after an error; if one rank cannot, for want of memory say, all of them get
/// BRIGADE_INVALID_ARGUMENT and nothing has changed. Ranks reach each other's memory by themselves
/// over shared memory and RDMA; over all else, and between hosts, a thread of the owner carries out
/// what they ask, with the same promises.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_window_create(
    window: *mut brigade_window_t,
    bytes: usize,
    signals: usize,
    comm: brigade_comm_t,
) -> brigade_result_t {
    enter(|| {
        // SAFETY: C passes a place for it.
        let out = unsafe { Out::new(window, "window")?.holding(std::ptr::null_mut()) };
        may_wait("brigade_window_create")?;
        let (comm, reserved) = (pin::<Comm>(comm.addr() as u64)?, reserve()?);
        let made = comm.communicator.window(WindowSize { bytes, signals })?;
        let handle = reserved.fill(Arc::new(Windows(made)));
        // SAFETY: as above.
        unsafe { out.put(std::ptr::without_provenance_mut(handle as usize)) };
        Ok(())
    })
}

/// Write `length` bytes into the window of rank `rank`, from byte `offset` on. Returns when `data`
/// may be used again, which may be before it has arrived: a signal afterwards tells the owner.
///
/// Threads: from any thread; those who write to one place in no order leave some bytes of each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_window_put(
    data: *const c_void,
    length: usize,
    rank: c_int,
    offset: usize,
    window: brigade_window_t,
) -> brigade_result_t {
    enter(|| {
        let windows = pin::<Windows>(window.addr() as u64)?;
        // SAFETY: C passes as much memory as it says.
        let data = unsafe { list(data.cast::<u8>(), length, "data") }?;
        Ok(windows.0.put(windows.member(rank)?, offset, data)?)
    })
}

/// Read `length` bytes of the window of rank `rank`, from byte `offset` on, after what this rank
/// has put there.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_window_get(
    data: *mut c_void,
    length: usize,
    rank: c_int,
    offset: usize,
    window: brigade_window_t,
) -> brigade_result_t {
    enter(|| {
        let windows = pin::<Windows>(window.addr() as u64)?;
        // SAFETY: C passes as much memory as it says.
        let data = unsafe { list_mut(data.cast::<u8>(), length, "data") }?;
        Ok(windows.0.get(windows.member(rank)?, offset, data)?)
    })
}

/// Add to counter `signal` of rank `rank`. Whoever sees the sum there sees all that this rank put
/// into that window before.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_window_signal(
    rank: c_int,
    signal: usize,
    add: u64,
    window: brigade_window_t,
) -> brigade_result_t {
    enter(|| {
        let windows = pin::<Windows>(window.addr() as u64)?;
        Ok(windows.0.signal(windows.member(rank)?, signal, add)?)
    })
}

/// Wait until counter `signal` of this rank is at least `at_least`, for at most `timeout_ms`, or
/// for as long as calls may stand still if that is negative (BRIGADE_TIMEOUT_MS, which ends the
/// world). `value`, which may be NULL, gets what the counter is. BRIGADE_IN_PROGRESS if it is less.
///
/// Threads: from any thread, also from several at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_window_wait(
    signal: usize,
    at_least: u64,
    timeout_ms: i64,
    value: *mut u64,
    window: brigade_window_t,
) -> brigade_result_t {
    enter_for(|| {
        thread::refuse_in_operator()?;
        let windows = pin::<Windows>(window.addr() as u64)?;
        let out = if value.is_null() { None } else { Some(Out::new(value, "value")?) };
        let came = match u64::try_from(timeout_ms) {
            Err(_) => Some(windows.0.wait(signal, at_least)?),
            Ok(timeout_ms) => {
                windows.0.wait_for(signal, at_least, Duration::from_millis(timeout_ms))?
            }
        };
        let now = came.map_or_else(|| windows.0.signalled(signal), Ok)?;
        if let Some(out) = out {
            // SAFETY: C passes NULL or a place for it.
            unsafe { out.put(now) };
        }
        Ok(if came.is_some() { BRIGADE_SUCCESS } else { BRIGADE_IN_PROGRESS })
    })
}

/// How much rank `rank` exposes; `bytes` and `signals` may be NULL.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_window_size(
    rank: c_int,
    bytes: *mut usize,
    signals: *mut usize,
    window: brigade_window_t,
) -> brigade_result_t {
    enter(|| {
        let windows = pin::<Windows>(window.addr() as u64)?;
        let size = windows.0.size_of(windows.member(rank)?)?;
        for (place, name, number) in
            [(bytes, "bytes", size.bytes), (signals, "signals", size.signals)]
        {
            if !place.is_null() {
                let out = Out::new(place, name)?;
                // SAFETY: C passes NULL or a place for it.
                unsafe { out.put(number) };
            }
        }
        Ok(())
    })
}

/// End a handle, and with it this rank's window: call it when no rank uses that any more, after a
/// barrier say. It may outlive the communicator.
///
/// Threads: from any thread; if another one waits for a signal, the rest ends with that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_window_destroy(window: brigade_window_t) -> brigade_result_t {
    enter(|| close::<Windows>(window.addr() as u64))
}
