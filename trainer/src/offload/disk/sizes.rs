//! How a rank's part is cut for its file, and how much of a budget goes where.

use super::{AHEAD, STAGING_BYTES};
use crate::error::Error;
use crate::offload::{Offload, usable};
use brigade_offload::memory::span_bytes;

/// Where a unit's part lies, in elements of every array.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) first: usize,
    pub(super) len: usize,
    /// In whole chunks.
    pub(super) padded: usize,
}

/// How much memory goes where.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) block: usize,
    pub(super) slots: usize,
    pub(super) arena: usize,
}

/// Where each unit's part lies in arrays of whole chunks, the last unit first, and their length.
pub(super) fn spans(lens: &[usize], chunk: usize) -> (Vec<Span>, usize) {
    let mut spans = vec![Span { first: 0, len: 0, padded: 0 }; lens.len()];
    let mut first = 0;
    for (span, len) in spans.iter_mut().zip(lens).rev() {
        *span = Span { first, len: *len, padded: len.next_multiple_of(chunk) };
        first += span.padded;
    }
    (spans, first)
}

/// The largest blocks, up to 1 MiB, that leave a state some 64 chunks, in the budget.
pub(super) fn sizes(
    lens: &[usize],
    arrays: usize,
    is_fetched: bool,
    offload: &Offload,
) -> Result<Sizes, Error> {
    let budget = offload.host_budget;
    let longest = 4 * lens.iter().max().expect("a model has units");
    let all = 4 * lens.iter().sum::<usize>();
    let mut block = (all / 64).next_power_of_two().clamp(4 << 10, 1 << 20);
    loop {
        for slots in [5, 3] {
            let ahead = if is_fetched { AHEAD } else { 0 };
            let arena = slots * arrays * span_bytes(block)
                + ahead * span_bytes(longest.next_multiple_of(block))
                + span_bytes(block).max(STAGING_BYTES);
            let sizes = Sizes { block, slots, arena };
            match budget {
                None => return Ok(sizes),
                Some(bytes) if arena <= usable(bytes) => return Ok(sizes),
                Some(_) if block == 4 << 10 && slots == 3 => {
                    return Err(offload.too_little(arena));
                }
                Some(_) => {}
            }
        }
        block /= 2;
    }
}
