//! Copies: plain, and past the caches.

/// Bytes per cache line; streaming stores fill whole lines.
pub(super) const LINE_BYTES: usize = 64;

/// Copy `bytes` bytes from `source` to `target`.
///
/// # Safety
/// Both are valid for `bytes` bytes and do not overlap; nobody else writes the source or touches
/// the target during the call.
pub unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { target.copy_from_nonoverlapping(source, bytes) }
}

/// Copy `bytes` bytes from `source` to `target` past the caches: for targets larger than the cache
/// that this core will not read soon. Other cores see the target in the usual order, as if written
/// plainly. Without streaming stores on this architecture, a plain copy.
///
/// # Safety
/// As [`copy`].
pub unsafe fn copy_streaming(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { stream(source, target, bytes) };
    fence();
}

/// Make streaming stores visible before every later store of this thread.
#[cfg(target_arch = "x86_64")]
pub(super) fn fence() {
    // SAFETY: every x86-64 machine has this instruction (SSE).
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fence() {}

/// [`copy_streaming`] without the fence, which the caller owes once at the end.
///
/// # Safety
/// As [`copy`].
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};

    let head = target.align_offset(LINE_BYTES).min(bytes);
    let lines_end = head + (bytes - head) / LINE_BYTES * LINE_BYTES;
    // SAFETY: `head <= lines_end <= bytes`, so everything stays inside what the caller vouches for;
    // the targets of streaming stores are aligned because `head` ends at a line.
    unsafe {
        copy(source, target, head);
        for line in (head..lines_end).step_by(LINE_BYTES) {
            let (from, to) = (source.add(line).cast(), target.add(line).cast());
            let parts = [
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            ];
            _mm_stream_si128(to, parts[0]);
            _mm_stream_si128(to.add(1), parts[1]);
            _mm_stream_si128(to.add(2), parts[2]);
            _mm_stream_si128(to.add(3), parts[3]);
        }
        copy(source.add(lines_end), target.add(lines_end), bytes - lines_end);
    }
}

/// # Safety
/// As [`copy`].
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn stream(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise is the same.
    unsafe { copy(source, target, bytes) }
}
