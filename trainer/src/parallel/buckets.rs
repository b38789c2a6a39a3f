//! Cutting a gradient buffer into buckets from its end, as backward finishes it.

use std::ops::Range;

/// Buckets of a buffer of `len` elements: as few as stay below a limit, of equal length but for the
/// first in memory, which is the last to be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Buckets {
    len: usize,
    each: usize,
}

impl Buckets {
    /// At most `limit` elements a bucket. There are at least four, so that there is something to
    /// overlap.
    pub(super) fn new(len: usize, limit: usize) -> Buckets {
        let count = len.div_ceil(limit.max(1)).max(4);
        Buckets { len, each: len.div_ceil(count).max(1) }
    }

    /// The next bucket to send, if `open` elements are not sent yet and those from `start` on are
    /// final.
    pub(super) fn next(&self, open: usize, start: usize) -> Option<Range<usize>> {
        let from = open.saturating_sub(self.each);
        (open > 0 && from >= start).then_some(from..open)
    }

    /// All of them, in the order in which they become ready.
    pub(super) fn all(self) -> impl Iterator<Item = Range<usize>> {
        let mut open = self.len;
        std::iter::from_fn(move || {
            let bucket = self.next(open, 0)?;
            open = bucket.start;
            Some(bucket)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_every_element_once_whatever_the_readiness() {
        for len in 1..60 {
            for limit in 1..70 {
                for stride in 1..20 {
                    let buckets = Buckets::new(len, limit);
                    let (mut open, mut sent) = (len, Vec::new());
                    for start in (0..len).rev().step_by(stride).chain([0]) {
                        while let Some(bucket) = buckets.next(open, start) {
                            assert!(bucket.start >= start && bucket.end == open);
                            assert!(bucket.len() <= limit);
                            open = bucket.start;
                            sent.push(bucket);
                        }
                    }
                    assert_eq!(open, 0);
                    assert!(buckets.all().eq(sent), "len {len} limit {limit} stride {stride}");
                }
            }
        }
    }
}
