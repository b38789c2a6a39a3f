//! Memory in whole pages, for buffers that transports like.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::failure::{Failure, Outcome};

/// What was given out and not yet given back: where, and how long. Guesses are refused by it.
static GIVEN: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);

/// Give out `bytes` bytes of zeros that begin on a page; no bytes are NULL.
pub fn allocate(bytes: usize) -> Outcome<*mut c_void> {
    if bytes == 0 {
        return Ok(ptr::null_mut());
    }
    if bytes > isize::MAX as usize {
        return Err(Failure::argument(format!("no memory has {bytes} bytes")));
    }
    // SAFETY: a new mapping at an address of the system's choice.
    let memory = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0)
    };
    if memory == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        return Err(Failure::system(format!("no memory of {bytes} bytes: {error}")));
    }
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    given.get_or_insert_default().insert(memory.addr(), bytes);
    Ok(memory)
}

/// Take back what [`allocate`] gave out; NULL is nothing.
///
/// # Safety
///
/// Nobody uses the memory any more.
pub unsafe fn free(memory: *mut c_void) -> Outcome {
    if memory.is_null() {
        return Ok(());
    }
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(bytes) = given.as_mut().and_then(|given| given.remove(&memory.addr())) else {
        let sentence = format!("{memory:p} was not allocated here, or has been freed already");
        return Err(Failure::argument(sentence));
    };
    drop(given);
    // SAFETY: the mapping was made by `allocate` with this length, and was still ours; the caller
    // vouches for the rest.
    if unsafe { libc::munmap(memory, bytes) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Failure::system(format!("{bytes} bytes at {memory:p}: {error}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_zeros_and_end_once() {
        let memory = allocate(10_000).unwrap();
        assert!(memory.addr().is_multiple_of(4096));
        // SAFETY: the memory was just made, and so many bytes of it are ours.
        let bytes = unsafe { std::slice::from_raw_parts_mut(memory.cast::<u8>(), 10_000) };
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes.fill(7);
        let inside = memory.wrapping_byte_add(4096);
        let ends = [inside, memory, memory, ptr::null_mut()];
        // SAFETY: the bytes are used no more.
        let ended = ends.map(|memory| unsafe { free(memory) }.is_ok());
        assert_eq!(ended, [false, true, false, true]);
        assert!(allocate(usize::MAX).is_err() && allocate(0).unwrap().is_null());
    }
}
