//! What this process holds on its heap: an allocator that counts, for a program to install.
//!
//! Where none is installed (in tests, in libraries) everything here is zero, and no peak is told.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes asked for and not yet given back, and the most there were since `take_peak`.
static HELD: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The same of this thread: below 0 where it has freed what others asked for.
    static MINE: Cell<(i64, i64)> = const { Cell::new((0, 0)) };
}

/// The system's allocator, counted. Cost: two atomic additions a call, and one of the thread's own.
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
        give(layout.size());
        // SAFETY: `data` came from the system's allocator, through `alloc` or `realloc` above.
        unsafe { System.dealloc(data, layout) }
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        take(size);
        give(layout.size());
        // SAFETY: as in `dealloc`, and the caller keeps the contract of the new size.
        unsafe { System.realloc(data, layout, size) }
    }
}

fn take(bytes: usize) {
    let bytes = bytes as u64;
    PEAK.fetch_max(HELD.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    let (held, peak) = MINE.get();
    let held = held + bytes as i64;
    MINE.set((held, peak.max(held)));
}

fn give(bytes: usize) {
    HELD.fetch_sub(bytes as u64, Relaxed);
    let (held, peak) = MINE.get();
    MINE.set((held - bytes as i64, peak));
}

/// Bytes held now.
pub(crate) fn held() -> u64 {
    HELD.load(Relaxed)
}

/// The most bytes that were held at once since this was asked last.
pub(crate) fn take_peak() -> u64 {
    PEAK.swap(held(), Relaxed)
}

/// The most bytes that this thread held at once during `work`, beyond what it held before it.
pub(crate) fn most_of(work: impl FnOnce()) -> u64 {
    let (held, _) = MINE.get();
    MINE.set((held, held));
    work();
    let (_, peak) = MINE.get();
    (peak - held) as u64
}
