//! Which ranges of the arena are free. Pure: offsets only, no memory.
//!
//! Arrays that all begin at the same place of a 2 MiB page share the same sets of the caches, and
//! a pass over four of them was measured 1.4 to 2 times slower for it. So a large buffer takes an
//! odd number of 4 KiB pages: a row of equal ones begins at each of the 512 places of a huge page
//! before it begins at the first of them again.

use std::collections::BTreeMap;

use super::region::ALIGNMENT;

/// From this size on buffers are staggered: smaller ones do not fill the caches.
const STAGGERED_BYTES: usize = 256 << 10;

/// What a buffer of `bytes` bytes takes from an arena: whole pages, at least one, and an odd number
/// of them from 256 KiB on. Buffers that add up to an empty arena's capacity fit into it.
///
/// Panics: beyond the range of addresses.
pub const fn span_bytes(bytes: usize) -> usize {
    let pages = if bytes == 0 { 1 } else { bytes.div_ceil(ALIGNMENT) };
    let is_large = pages * ALIGNMENT >= STAGGERED_BYTES;
    (if is_large { pages | 1 } else { pages }) * ALIGNMENT
}

/// The free ranges of an arena, by their start.
#[derive(Debug)]
pub(super) struct Ranges {
    free: BTreeMap<usize, usize>,
}

impl Ranges {
    pub(super) fn new(capacity: usize) -> Self {
        assert!(capacity.is_multiple_of(ALIGNMENT));
        Self { free: BTreeMap::from([(0, capacity)]) }
    }

    /// Bytes of the largest free range.
    pub(super) fn largest(&self) -> usize {
        self.free.values().copied().max().unwrap_or(0)
    }

    /// The start of a range of `span` bytes, the first that fits. Cost: a walk over the free ones.
    pub(super) fn take(&mut self, span: usize) -> Option<usize> {
        assert!(span > 0 && span.is_multiple_of(ALIGNMENT));
        let (start, bytes) = self.free.iter().find(|(_, bytes)| **bytes >= span)?;
        let (start, bytes) = (*start, *bytes);
        self.free.remove(&start);
        if bytes > span {
            self.free.insert(start + span, bytes - span);
        }
        Some(start)
    }

    /// Give a range back; it grows together with its neighbours.
    pub(super) fn give(&mut self, start: usize, span: usize) {
        let (mut start, mut span) = (start, span);
        if let Some((before, bytes)) = self.free.range(..start).next_back() {
            assert!(before + bytes <= start, "a range was given back twice");
            if before + bytes == start {
                (start, span) = (*before, span + bytes);
            }
        }
        if let Some((after, bytes)) = self.free.range(start + 1..).next() {
            assert!(start + span <= *after, "a range was given back twice");
            if start + span == *after {
                let (after, bytes) = (*after, *bytes);
                self.free.remove(&after);
                span += bytes;
            }
        }
        self.free.insert(start, span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn equal_large_ranges_begin_at_different_places_of_a_huge_page() {
        for bytes in [256 << 10, MIB, MIB + 1, 2 * MIB - 1, 2 * MIB, 3 * MIB, 64 * MIB, 100_000_000]
        {
            let span = span_bytes(bytes);
            assert!(span >= bytes && span < bytes + 2 * ALIGNMENT, "{bytes}");
            let mut ranges = Ranges::new(32 * span);
            let starts: Vec<_> = (0..32).map(|_| ranges.take(span).unwrap() % (2 * MIB)).collect();
            for (index, start) in starts.iter().enumerate() {
                assert!(!starts[..index].contains(start), "{bytes}: {starts:?}");
            }
            assert_eq!(ranges.largest(), 0);
        }
        assert_eq!([span_bytes(0), span_bytes(1), span_bytes(8192)], [4096, 4096, 8192]);
    }

    #[test]
    fn what_is_given_back_grows_together() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        let mut ranges = Ranges::new(32 * MIB);
        let mut held: Vec<(usize, usize)> = Vec::new();
        for _ in 0..2000 {
            if random.bool() || held.is_empty() {
                let span = random.usize(1..300) * ALIGNMENT;
                if let Some(start) = ranges.take(span) {
                    let apart = |(s, n): &(usize, usize)| s + n <= start || start + span <= *s;
                    assert!(held.iter().all(apart), "seed {seed}: overlap at {start}");
                    assert!(start + span <= 32 * MIB, "seed {seed}");
                    held.push((start, span));
                }
            } else {
                let (start, span) = held.swap_remove(random.usize(..held.len()));
                ranges.give(start, span);
            }
        }
        for (start, span) in held {
            ranges.give(start, span);
        }
        assert_eq!(ranges.largest(), 32 * MIB, "seed {seed}");
    }
}
