//! How the flat state is cut.

use std::ops::Range;

use super::home::Piece;

/// Chunks are at most this many elements: 4 MiB of f32, which any drive moves at its full speed.
const CHUNK_ELEMENTS_MAX: usize = 1 << 20;

/// Chunks begin at multiples of this many elements, so that whole pages of memory go past the page
/// cache whatever an element's width.
const CHUNK_GRAIN: usize = 4096;

/// In how many chunks a state is cut if it is not too large: filling and draining the pipeline then
/// costs less than 2 % of a step.
const CHUNKS: usize = 64;

/// Elements, how many make a chunk, and how wide they are in each streamed array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    elements: usize,
    chunk_elements: usize,
    widths: Vec<usize>,
    /// So many arrays, the first, are read; all are written.
    read: usize,
}

impl Shape {
    /// `elements` in arrays of these widths \[bytes\], in chunks of a size that suits drives.
    pub fn new(elements: usize, widths: &[usize]) -> Self {
        let chunk = elements.div_ceil(CHUNKS).next_multiple_of(CHUNK_GRAIN);
        Self::cut(elements, widths, chunk.clamp(CHUNK_GRAIN, CHUNK_ELEMENTS_MAX))
    }

    /// The same in chunks of `chunk_elements`.
    ///
    /// # Panics
    /// When a chunk or a width is zero.
    pub fn cut(elements: usize, widths: &[usize], chunk_elements: usize) -> Self {
        assert!(chunk_elements > 0 && widths.iter().all(|width| *width > 0), "{widths:?}");
        Self { elements, chunk_elements, widths: widths.to_vec(), read: widths.len() }
    }

    /// The same, and behind its arrays others of these widths \[bytes\] that are only written: what
    /// a step makes of the state and nothing else needs, such as copies of weights.
    ///
    /// # Panics
    /// When a width is zero.
    pub fn and_written(mut self, widths: &[usize]) -> Self {
        assert!(widths.iter().all(|width| *width > 0), "{widths:?}");
        self.widths.extend(widths);
        self
    }

    /// Elements in all.
    pub fn elements(&self) -> usize {
        self.elements
    }

    /// Elements of each chunk but the last.
    pub fn chunk_elements(&self) -> usize {
        self.chunk_elements
    }

    /// Bytes of an element in each streamed array.
    pub fn widths(&self) -> &[usize] {
        &self.widths
    }

    /// Whether an array is read before it is written.
    pub fn is_read(&self, array: usize) -> bool {
        array < self.read
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> usize {
        self.elements.div_ceil(self.chunk_elements)
    }

    /// The elements of one chunk.
    pub fn range(&self, chunk: usize) -> Range<usize> {
        let begin = chunk * self.chunk_elements;
        begin..(begin + self.chunk_elements).min(self.elements)
    }

    /// Bytes of all arrays: what a step writes, and reads where none is only written.
    pub fn bytes(&self) -> u64 {
        self.elements as u64 * self.widths.iter().sum::<usize>() as u64
    }

    /// Bytes that a step reads.
    pub fn read_bytes(&self) -> u64 {
        self.elements as u64 * self.widths[..self.read].iter().sum::<usize>() as u64
    }

    /// Bytes of memory that one chunk takes, in all arrays.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_elements * self.widths.iter().sum::<usize>()
    }

    /// Where one chunk of one array lies in it.
    pub(super) fn piece(&self, array: usize, chunk: usize) -> Piece {
        let (range, width) = (self.range(chunk), self.widths[array]);
        Piece { array, chunk, offset: (range.start * width) as u64, bytes: range.len() * width }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_array_once() {
        for (elements, chunk) in [(0, 7), (1, 7), (7, 7), (8, 7), (1000, 7), (1000, 5000)] {
            let shape = Shape::cut(elements, &[4, 2], chunk);
            for (array, width) in [(0, 4), (1, 2)] {
                let mut end = 0;
                for chunk in 0..shape.chunks() {
                    let piece = shape.piece(array, chunk);
                    assert_eq!(piece.offset, end);
                    end += piece.bytes as u64;
                }
                assert_eq!(end, (elements * width) as u64);
            }
            assert_eq!(shape.bytes(), elements as u64 * 6);
            let more = shape.clone().and_written(&[2]);
            assert_eq!((more.read_bytes(), more.bytes()), (shape.bytes(), elements as u64 * 8));
            assert_eq!([0, 1, 2].map(|array| more.is_read(array)), [true, true, false]);
        }
    }

    #[test]
    fn states_of_some_size_have_many_chunks() {
        assert_eq!(Shape::new(100, &[4]).chunks(), 1);
        assert!(Shape::new(10_000_000, &[4]).chunks() >= 60);
        assert_eq!(Shape::new(1 << 30, &[4, 4, 4]).chunks(), 1024);
    }
}
