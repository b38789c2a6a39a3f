//! What this process holds on its heap: an allocator that counts, for a program to install.
//!
//! Where none is installed (in tests, in libraries) everything here is zero, and no peak is told.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes asked for and not yet given back, and the most there were since `take_peak`.
static HELD: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

/// The system's allocator, counted. Cost: two atomic additions a call.
pub struct Counting;

// SAFETY: every call goes to the system's allocator with the arguments it came with, and counting
// touches nothing but two numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: `data` came from the system's allocator, through `alloc` or `realloc` above.
        unsafe { System.dealloc(data, layout) }
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size);
        HELD.fetch_sub(layout.size() as u64, Relaxed);
        // SAFETY: as in `dealloc`, and the caller keeps the contract of the new size.
        unsafe { System.realloc(data, layout, size) }
    }
}

fn take(bytes: usize) {
    let bytes = bytes as u64;
    PEAK.fetch_max(HELD.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

/// Bytes held now.
pub(crate) fn held() -> u64 {
    HELD.load(Relaxed)
}

/// The most bytes that were held at once since this was asked last.
pub(crate) fn take_peak() -> u64 {
    PEAK.swap(held(), Relaxed)
}
