//! Ranges of a device's memory, and the room that they are cut from.

use std::ops::Range;

/// So many numbers of some size in a device's memory. It does not keep the memory: whoever makes
/// views from a room keeps that for as long as the device may use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    address: u64,
    len: usize,
    /// Bytes of each number.
    size: usize,
}

impl View {
    /// Where it begins.
    pub fn address(self) -> u64 {
        self.address
    }

    /// Numbers.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there is no number in it.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Bytes of each number.
    pub fn size(self) -> usize {
        self.size
    }

    /// Bytes of all of it.
    pub fn bytes(self) -> usize {
        self.len * self.size
    }

    /// Some of the numbers.
    ///
    /// Panics: when they are not within.
    pub fn part(self, range: Range<usize>) -> View {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {self:?}");
        let address = self.address + (range.start * self.size) as u64;
        View { address, len: range.len(), size: self.size }
    }

    /// The first `len` numbers.
    pub fn first(self, len: usize) -> View {
        self.part(0..len)
    }

    /// Pieces of these lengths, which cover it.
    pub fn cut<const N: usize>(self, lens: [usize; N]) -> [View; N] {
        assert_eq!(self.len, lens.iter().sum::<usize>(), "the lengths cover the view");
        let mut start = 0;
        lens.map(|len| {
            start += len;
            self.part(start - len..start)
        })
    }
}

/// Memory that views are taken from, one after the other, and never given back. The same is taken
/// twice: first of a room that is nowhere, to learn how much it comes to, then of memory.
#[derive(Debug, Default)]
pub struct Room {
    start: u64,
    taken: usize,
}

impl Room {
    /// Views begin at multiples of this, so that any access is aligned.
    const ALIGNMENT: usize = 256;

    /// A room that begins at this address, which is aligned.
    pub fn at(start: u64) -> Room {
        assert!(start.is_multiple_of(Room::ALIGNMENT as u64), "a room at {start:#x}");
        Room { start, taken: 0 }
    }

    /// Room for `len` numbers of `size` bytes.
    pub fn take(&mut self, len: usize, size: usize) -> View {
        let view = View { address: self.start + self.taken as u64, len, size };
        self.taken += view.bytes().next_multiple_of(Room::ALIGNMENT);
        view
    }

    /// Bytes taken so far.
    pub fn taken(&self) -> usize {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_follow_each_other_and_their_parts_lie_within() {
        let mut room = Room::at(4096);
        let (first, second) = (room.take(5, 4), room.take(3, 2));
        assert_eq!((first.address(), second.address(), room.taken()), (4096, 4352, 512));
        let [a, b] = first.cut([2, 3]);
        assert_eq!((a.address(), b.address(), b.bytes()), (4096, 4104, 12));
        assert_eq!(second.part(1..3).address(), 4354);
    }

    #[test]
    #[should_panic = "of View"]
    fn a_part_beyond_the_end_is_refused() {
        Room::default().take(4, 4).part(3..5);
    }
}
