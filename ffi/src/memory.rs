//! Memory for buffers.

use std::ffi::c_void;

use brigade_wall::pages;
use brigade_wall::pointer::Out;

use crate::error::{brigade_result_t, enter};

/// Allocate `bytes` bytes of zeros that begin on a page, as transports like their buffers best; any
/// other memory will do as well, and none has to be registered: what devices need to know of it
/// they are told when a call first uses it. `memory` is NULL after an error, and for no bytes.
///
/// Threads: from any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_mem_alloc(
    memory: *mut *mut c_void,
    bytes: usize,
) -> brigade_result_t {
    enter(|| {
        let out = Out::new(memory, "memory")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(std::ptr::null_mut()) };
        let pages = pages::allocate(bytes)?;
        // SAFETY: as above.
        unsafe { out.put(pages) };
        Ok(())
    })
}

/// Free what brigade_mem_alloc allocated, once no call uses it any more. NULL is nothing.
///
/// Threads: from any thread, at any time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_mem_free(memory: *mut c_void) -> brigade_result_t {
    // SAFETY: C's promise.
    enter(|| unsafe { pages::free(memory) })
}
