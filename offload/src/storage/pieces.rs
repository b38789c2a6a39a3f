//! How a request becomes transfers. Pure: numbers only.
//!
//! A direct transfer must begin and end where the device's blocks do, in the file and in memory.
//! What lies before and behind those places goes through the page cache instead, by a second
//! descriptor of the same file. Direct pieces end at whole pages, so a page never gets bytes both
//! ways from one request, and the kernel keeps the two views of the file the same.

use crate::memory::ALIGNMENT;

/// What direct transfers of a file need, or that there are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grain {
    /// Multiple of bytes at which direct transfers begin and end in the file; 0: no direct ones.
    pub(crate) file_bytes: usize,
    /// Multiple of bytes at which their memory begins.
    pub(crate) memory_bytes: usize,
}

impl Grain {
    /// No direct transfers at all.
    pub(crate) const BUFFERED: Grain = Grain { file_bytes: 0, memory_bytes: 1 };

    /// What the kernel says, made no finer than a page. Zero from the kernel means that it does not
    /// say.
    pub(crate) fn direct(file_bytes: usize, memory_bytes: usize) -> Self {
        let memory_bytes = if memory_bytes == 0 { ALIGNMENT } else { memory_bytes };
        Self { file_bytes: file_bytes.max(ALIGNMENT), memory_bytes }
    }
}

/// A part of a request that is still to be transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Where in the file.
    pub(crate) offset: u64,
    /// Where in the request's window.
    pub(crate) start: usize,
    /// How much.
    pub(crate) bytes: usize,
}

impl Span {
    /// What is left of this after its first `bytes`.
    pub(crate) fn after(self, bytes: usize) -> Span {
        Span {
            offset: self.offset + bytes as u64,
            start: self.start + bytes,
            bytes: self.bytes - bytes,
        }
    }
}

/// One transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) span: Span,
    pub(crate) is_direct: bool,
}

/// Cut the first transfer, of at most one block, off `left`. `address` is where the window begins.
///
/// Blocks end at multiples of `block_bytes` of the file, whatever the request began with.
pub(crate) fn cut(left: &mut Span, address: usize, grain: Grain, block_bytes: usize) -> Piece {
    assert!(left.bytes > 0);
    let to_block_end = block_bytes - (left.offset % block_bytes as u64) as usize;
    let (bytes, is_direct) = if grain.file_bytes == 0 {
        (left.bytes.min(to_block_end), false)
    } else {
        let past = (left.offset % grain.file_bytes as u64) as usize;
        let head = if past == 0 { 0 } else { grain.file_bytes - past };
        let body = left.bytes.saturating_sub(head) / grain.file_bytes * grain.file_bytes;
        let fits_memory = (address + left.start + head).is_multiple_of(grain.memory_bytes);
        if body == 0 || !fits_memory {
            (left.bytes.min(to_block_end), false)
        } else if head > 0 {
            (head, false)
        } else {
            (body.min(to_block_end), true)
        }
    };
    let span = Span { bytes, ..*left };
    *left = left.after(bytes);
    Piece { span, is_direct }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 1 << 20;

    fn cut_all(offset: u64, bytes: usize, address: usize, grain: Grain) -> Vec<Piece> {
        let mut left = Span { offset, start: 0, bytes };
        let mut pieces = Vec::new();
        while left.bytes > 0 {
            pieces.push(cut(&mut left, address, grain, BLOCK));
        }
        pieces
    }

    #[test]
    fn pieces_cover_a_request_once_and_direct_ones_are_aligned() {
        let grain = Grain::direct(512, 512);
        let edges = [0, 1, 511, 512, 4095, 4096, 4097, 8192, 1 << 20, (1 << 20) + 4096, 3_000_001];
        for offset in edges {
            for bytes in edges {
                for address in [0, 512, 100] {
                    let (mut at, mut done) = (offset as u64, 0);
                    for piece in cut_all(offset as u64, bytes, address, grain) {
                        assert_eq!((piece.span.offset, piece.span.start), (at, done));
                        assert!(piece.span.bytes > 0 && piece.span.bytes <= BLOCK);
                        if piece.is_direct {
                            assert_eq!(at % 4096, 0);
                            assert_eq!(piece.span.bytes % 4096, 0);
                            assert_eq!((address + done) % 512, 0);
                        }
                        at += piece.span.bytes as u64;
                        done += piece.span.bytes;
                    }
                    assert_eq!(done, bytes, "offset {offset}");
                }
            }
        }
    }

    #[test]
    fn only_the_ends_of_an_odd_request_go_through_the_page_cache() {
        let pieces = cut_all(0, (2 << 20) + 100, 0, Grain::direct(4096, 4096));
        let shape: Vec<_> = pieces.iter().map(|p| (p.span.bytes, p.is_direct)).collect();
        assert_eq!(shape, [(BLOCK, true), (BLOCK, true), (100, false)]);
        let pieces = cut_all(100, 4096 + 3996, 4096 - 3996, Grain::direct(512, 4096));
        let shape: Vec<_> = pieces.iter().map(|p| (p.span.bytes, p.is_direct)).collect();
        assert_eq!(shape, [(3996, false), (4096, true)]);
        assert!(cut_all(0, 3 << 20, 0, Grain::BUFFERED).iter().all(|p| !p.is_direct));
    }
}
