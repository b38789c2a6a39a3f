//! Copies past the caches, for what is longer than they are.
//!
//! A store through a cache reads its line from memory first, and drives out what somebody may need.
//! One past it does neither, but whoever reads the bytes soon after finds them in memory only.

use std::fs;
use std::sync::OnceLock;

/// What a cache moves at a time; stores past it are gathered to as much.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;
/// The last cache where the system does not tell.
const CACHE_BYTES: u64 = 32 << 20;
/// Of a longer one others have most: cores of a whole socket share it, and so do virtual machines.
const CACHE_BYTES_MAX: u64 = 128 << 20;

/// Whether so many bytes of one rank's output are better written past the caches: half of the last
/// cache or more, or 64 MiB of a very long one. Of less, whoever reads it next finds enough there
/// to make up for what the call takes longer (docs/MEASURED.md).
pub fn outgrows_caches(bytes: u64) -> bool {
    static HALF: OnceLock<u64> = OnceLock::new();
    let half = || last_cache_bytes().unwrap_or(CACHE_BYTES).min(CACHE_BYTES_MAX) / 2;
    bytes >= *HALF.get_or_init(half)
}

/// Bytes of the last cache of the first core.
fn last_cache_bytes() -> Option<u64> {
    let sizes = (0..8).map_while(|index| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok()
    });
    kibibytes(sizes.last()?.trim())
}

/// Bytes in the system's words: `32768K`.
fn kibibytes(size: &str) -> Option<u64> {
    size.strip_suffix('K')?.parse().ok().and_then(|count: u64| count.checked_mul(1024))
}

/// Copy `source` to `target` past the caches, where the processor can.
///
/// # Panics
/// When they are not of one length.
#[inline]
pub fn copy_past_caches(source: &[u8], target: &mut [u8]) {
    assert_eq!(source.len(), target.len());
    // SAFETY: the target is as long as the source, and ours alone.
    unsafe { copy_past(source, target.as_mut_ptr()) }
}

/// The same, to memory that others may look at. Whatever is stored after this is seen after it.
///
/// # Safety
/// `target` has room for `source`, which does not overlap it, and nobody else touches that place.
pub(crate) unsafe fn copy_past(source: &[u8], target: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    let rest = {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
        let ahead = target.align_offset(LINE_BYTES).min(source.len());
        let (head, aligned) = source.split_at(ahead);
        // SAFETY: the target has room for the whole source.
        unsafe { target.copy_from_nonoverlapping(head.as_ptr(), ahead) };
        let lines = aligned.chunks_exact(LINE_BYTES);
        let rest = lines.remainder();
        for (index, line) in lines.enumerate() {
            // SAFETY: the line has 64 bytes, the target as many at this place, aligned.
            unsafe {
                let from: *const __m128i = line.as_ptr().cast();
                let to: *mut __m128i = target.add(ahead + index * LINE_BYTES).cast();
                for part in 0..4 {
                    _mm_stream_si128(to.add(part), _mm_loadu_si128(from.add(part)));
                }
            }
        }
        // SAFETY: every x86-64 processor has the instruction.
        unsafe { _mm_sfence() };
        rest
    };
    #[cfg(not(target_arch = "x86_64"))]
    let rest = source;
    let done = source.len() - rest.len();
    // SAFETY: the target has room for the rest too.
    unsafe { target.add(done).copy_from_nonoverlapping(rest.as_ptr(), rest.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let source: Vec<u8> = (0..400).map(|index| (index % 251) as u8).collect();
        for (start, from) in (0..66).flat_map(|start| (0..3).map(move |from| (start, from))) {
            for length in (0..70).chain([127, 128, 129, 191, 192, 300]) {
                let mut target = vec![255; 512];
                let source = &source[from..from + length];
                copy_past_caches(source, &mut target[start..start + length]);
                let (before, rest) = target.split_at(start);
                let (written, after) = rest.split_at(length);
                let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 255);
                assert!(written == source, "{length} bytes to {start}");
                assert!(untouched(before) && untouched(after), "{length} bytes to {start}");
            }
        }
    }

    #[test]
    fn sizes_of_caches_are_read_as_the_system_writes_them() {
        assert_eq!(kibibytes("32768K"), Some(32 << 20));
        for odd in ["", "K", "32M", "-1K", "99999999999999999999K", "18446744073709551615K"] {
            assert_eq!(kibibytes(odd), None, "{odd}");
        }
        assert!(!outgrows_caches(1 << 10) && outgrows_caches(1 << 40));
    }
}
