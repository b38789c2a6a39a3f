//! How a long call of the hosts comes apart, so that one piece of it is copied from a device and
//! one to it while another is on its way between hosts: pure.

use std::ops::Range;

use brigade_schedule::Collective;

use crate::call::{Call, Counts};

/// No piece is shorter than so many windows of a call of the hosts, in all its blocks together: it
/// is a call by itself.
const WINDOWS: usize = 4;
/// Nor, where there are several blocks, than this part of a window in each: it is a copy by itself.
const WINDOW_PARTS: usize = 4;
/// More pieces save nothing: the way down of the first and the way up of the last are little then.
const PIECES_MAX: usize = 16;
/// Pieces, and what ranks have of them, begin at multiples of so many bytes, so that kernels move
/// long words.
pub(in crate::device) const UNIT_BYTES: usize = 256;

/// The pieces of a call: some elements of every block each.
#[derive(Clone, Copy)]
pub(in crate::device) struct Pieces {
    /// Elements of a block; none where they differ, and there is one piece.
    count: usize,
    /// Elements of a block that are a piece, but for the last one.
    each: usize,
    elem_bytes: usize,
}

/// Bytes that lie side by side in a buffer and in a piece of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Strip {
    /// Bytes in front of it in the buffer.
    pub(super) at: usize,
    /// Likewise in the piece, whose blocks lie one behind the other.
    pub(super) packed_at: usize,
    pub(super) bytes: usize,
}

impl Pieces {
    /// Those of a call of so many ranks whose windows have so many bytes: the same on all ranks.
    pub(in crate::device) fn of(call: &Call, ranks: u32, window_bytes: usize) -> Self {
        let elem_bytes = call.dtype.size();
        let Counts::Even(count) = call.counts else {
            return Self { count: 0, each: 0, elem_bytes };
        };
        let blocks = match call.collective {
            Collective::AllToAll => ranks,
            collective => collective.blocks(ranks),
        };
        let least = match blocks as usize {
            0 | 1 => WINDOWS * window_bytes,
            blocks => (WINDOWS * window_bytes / blocks).max(window_bytes / WINDOW_PARTS),
        };
        let pieces = (count * elem_bytes / least.max(1)).clamp(1, PIECES_MAX);
        let each = count.div_ceil(pieces).next_multiple_of(UNIT_BYTES / elem_bytes);
        Self { count, each, elem_bytes }
    }

    /// One piece, which is all of a call with `count` elements in a block.
    pub(in crate::device) fn one(count: usize, elem_bytes: usize) -> Self {
        Self { count, each: count, elem_bytes }
    }

    /// Which elements of a block each piece has, one behind the other.
    pub(in crate::device) fn iter(self) -> impl Iterator<Item = Range<usize>> {
        let starts = (0..self.count.max(1)).step_by(self.each.max(1));
        starts.map(move |start| start..(start + self.each).min(self.count))
    }

    /// Where a piece lies in a buffer of so many elements.
    pub(super) fn strips(
        self,
        elems: usize,
        piece: &Range<usize>,
    ) -> impl Iterator<Item = Strip> + use<> {
        let Self { count, elem_bytes, .. } = self;
        // Blocks lie side by side.
        let (blocks, first, len) = match piece.len() == count {
            true => (1, 0, elems),
            false => (elems / count, piece.start, piece.len()),
        };
        (0..blocks).map(move |block| Strip {
            at: (block * count + first) * elem_bytes,
            packed_at: block * len * elem_bytes,
            bytes: len * elem_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, Op};

    fn of(collective: Collective, dtype: Dtype, count: usize, ranks: u32) -> Vec<Range<usize>> {
        let call = Call::new(collective, dtype, Op::Sum, count);
        Pieces::of(&call, ranks, 1 << 20).iter().collect()
    }

    #[test]
    fn pieces_are_all_of_a_block_and_neither_short_nor_many() {
        for collective in Collective::ALL {
            for (ranks, dtype) in [(1, Dtype::U8), (2, Dtype::F32), (7, Dtype::F64)] {
                for count in (0..60).map(|at| at * at * at * 1013) {
                    let pieces = of(collective, dtype, count, ranks);
                    let ends = pieces.windows(2).all(|two| two[0].end == two[1].start);
                    let all = (pieces[0].start, pieces.last().map(|piece| piece.end));
                    assert!(
                        ends && all == (0, Some(count)),
                        "{collective:?} of {count}: {pieces:?}"
                    );
                    assert!(pieces.len() <= PIECES_MAX, "{}", pieces.len());
                    let (_, but_last) = pieces.split_last().expect("a piece");
                    let bytes = |piece: &Range<usize>| piece.len() * dtype.size();
                    assert!(but_last.iter().all(|piece| bytes(piece) >= 256 << 10), "{pieces:?}");
                }
            }
        }
        let bytes = |bytes| of(Collective::AllReduce, Dtype::U8, bytes, 4).len();
        assert_eq!([0, 1, 7 << 20, 8 << 20, 1 << 30].map(bytes), [1, 1, 1, 2, 16]);
        let bytes = |bytes| of(Collective::AllToAll, Dtype::U8, bytes, 64).len();
        assert_eq!([100_000, 256 << 10, 512 << 10].map(bytes), [1, 1, 2]);
    }

    #[test]
    fn strips_are_a_buffer_once() {
        for (blocks, count, each) in [(1, 10, 4), (3, 10, 4), (3, 10, 10), (2, 1, 1)] {
            let pieces = Pieces { count, each, elem_bytes: 2 };
            let elems = blocks * count;
            let mut seen = vec![0; 2 * elems];
            for piece in pieces.iter() {
                let mut packed = 0;
                for strip in pieces.strips(elems, &piece) {
                    assert_eq!(strip.packed_at, packed);
                    packed += strip.bytes;
                    seen[strip.at..][..strip.bytes].iter_mut().for_each(|seen| *seen += 1);
                }
                assert_eq!(packed, 2 * blocks * piece.len());
            }
            assert!(seen.iter().all(|&seen| seen == 1), "{blocks} {count} {each}: {seen:?}");
        }
    }

    #[test]
    fn blocks_that_differ_are_one_piece_each_of_their_buffers() {
        let counts = Counts::PerRank(vec![5, 0, 9].into());
        let call = Call { counts, ..Call::moving(Collective::AllGather, Dtype::F32, 0) };
        let pieces = Pieces::of(&call, 3, 1);
        let all: Vec<Range<usize>> = pieces.iter().collect();
        assert_eq!(all.len(), 1);
        let strips: Vec<Strip> = pieces.strips(14, &all[0]).collect();
        assert_eq!(strips, [Strip { at: 0, packed_at: 0, bytes: 56 }]);
    }
}
