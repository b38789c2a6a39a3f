//! Results: NCCL's numbers, and the sentences behind them.

use std::ffi::{c_char, c_int};

use brigade_wall::failure::guard;
use brigade_wall::pointer::Out;
use brigade_wall::{Cause, Failure, Outcome};

use crate::open::spoil;

/// A result, as NCCL numbers them.
pub type ncclResult_t = c_int;

pub(crate) const SUCCESS: ncclResult_t = 0;
const SYSTEM_ERROR: ncclResult_t = 2;
const INTERNAL_ERROR: ncclResult_t = 3;
const INVALID_ARGUMENT: ncclResult_t = 4;
const INVALID_USAGE: ncclResult_t = 5;
const REMOTE_ERROR: ncclResult_t = 6;
pub(crate) const IN_PROGRESS: ncclResult_t = 7;
const TIMEOUT: ncclResult_t = 8;

/// The version whose interface this is: 2.30.7.
const VERSION: c_int = 23_007;

/// The number of a cause. What NCCL does not know is the nearest thing that it does.
pub(crate) fn number(cause: Cause) -> ncclResult_t {
    match cause {
        Cause::Argument => INVALID_ARGUMENT,
        Cause::Usage | Cause::Mismatch => INVALID_USAGE,
        // The last two are those of files, which nothing here has.
        Cause::System | Cause::Join | Cause::Corrupt | Cause::OverBudget => SYSTEM_ERROR,
        Cause::Internal => INTERNAL_ERROR,
        Cause::PeerLost | Cause::PeerLeft | Cause::Aborted => REMOTE_ERROR,
        Cause::Timeout => TIMEOUT,
    }
}

/// What every function does inside: no panic gets through.
pub(crate) fn enter(body: impl FnOnce() -> Outcome) -> ncclResult_t {
    enter_for(|| body().map(|()| SUCCESS))
}

/// Like [`enter`], for calls that have more than one way to go well.
pub(crate) fn enter_for(body: impl FnOnce() -> Outcome<ncclResult_t>) -> ncclResult_t {
    guard(body).unwrap_or_else(|failure| report(&failure))
}

/// Keep the sentence for whoever asks on this thread.
#[cold]
fn report(failure: &Failure) -> ncclResult_t {
    spoil(failure);
    failure.note();
    number(failure.cause)
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(result: ncclResult_t) -> *const c_char {
    let words = match result {
        SUCCESS => c"no error",
        1 => c"a CUDA call failed",
        SYSTEM_ERROR => c"the system failed, or the ranks could not come together",
        INTERNAL_ERROR => c"internal error: please report it",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage, or ranks are in different calls",
        REMOTE_ERROR => c"a rank is lost, has left, or aborted",
        IN_PROGRESS => c"in progress",
        TIMEOUT => c"nothing moved until the deadline",
        _ => c"not a result of NCCL",
    };
    words.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> ncclResult_t {
    enter(|| {
        let out = Out::new(version, "version")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(VERSION) };
        Ok(())
    })
}

/// There is no debug output that could be begun anew.
#[unsafe(no_mangle)]
pub extern "C" fn ncclResetDebugInit() {}
