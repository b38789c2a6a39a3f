//! Calls that wait ask a function of the caller's whether to go on.

use std::ffi::{c_int, c_void};

use crate::error::{brigade_result_t, enter};
use crate::thread::Folding;

/// A function that tells whether a call that waits shall end, by any number but 0. It runs inside
/// the call: it may make none itself but brigade_last_error, and must neither throw nor jump out.
pub type brigade_interrupt_t = Option<unsafe extern "C" fn(user: *mut c_void) -> c_int>;

/// Have the calls that this thread makes from now on ask `interrupt`, some 50 times a second while
/// they wait for other ranks and nothing moves; NULL asks nobody. For interpreters, which handle
/// signals between calls only. Once it says so, the call ends, and with it the world, as by
/// brigade_comm_abort: BRIGADE_ABORTED on all ranks, with this rank's number. Finding the others,
/// with which a world and what is left of one begin, and waiting for works ask nobody: both take a
/// limit.
///
/// Threads: each thread has its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_interrupt_by(
    interrupt: brigade_interrupt_t,
    user: *mut c_void,
) -> brigade_result_t {
    enter(|| {
        brigade_comm::interrupt_by(interrupt.map(|interrupt| -> Box<dyn FnMut() -> bool> {
            Box::new(move || {
                let _inside = Folding::begin();
                // SAFETY: the caller's promise, for as long as the function is the thread's.
                unsafe { interrupt(user) != 0 }
            })
        }));
        Ok(())
    })
}
