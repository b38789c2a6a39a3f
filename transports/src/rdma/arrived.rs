//! Which pieces of the stream are in a ring, and where.
//!
//! A piece comes as a number and a length. Where it lies follows from those before it: the sender
//! begins each at a line, and no piece lies across the ring's end. Both are a peer's word, so what
//! does not fit is an error and is never looked at.

use super::limits::LINE_BYTES;
use super::limits::{PIECES, piece_bytes};

/// The pieces that were not read yet.
pub(super) struct Arrived {
    ring_bytes: usize,
    /// Their lengths, by number modulo their count; 0 for those that have not arrived.
    lengths: [u32; PIECES],
    /// The number of the piece that is read.
    next: u32,
    /// Where it lies.
    offset: usize,
}

impl Arrived {
    pub(super) fn new(ring_bytes: usize) -> Arrived {
        Arrived { ring_bytes, lengths: [0; PIECES], next: 0, offset: 0 }
    }

    /// The number of the piece that is read.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Where the piece that is read lies and how long it is, once it has arrived. Errors: what is
    /// wrong with it.
    #[inline]
    pub(super) fn first(&self) -> Result<Option<(usize, usize)>, String> {
        match self.lengths[self.next as usize % PIECES] as usize {
            0 => Ok(None),
            bytes if bytes > self.ring_bytes - self.offset => Err(self.past_the_end(bytes)),
            bytes => Ok(Some((self.offset, bytes))),
        }
    }

    #[cold]
    fn past_the_end(&self, bytes: usize) -> String {
        let Arrived { offset, ring_bytes, .. } = self;
        format!("a piece of {bytes} bytes at {offset} of a ring of {ring_bytes}")
    }

    /// A piece has arrived. Errors: what is wrong with it.
    #[inline]
    pub(super) fn note(&mut self, number: u32, bytes: u32) -> Result<(), String> {
        // A piece that was sent again although it had arrived is one that is here or was read.
        if number.wrapping_sub(self.next) as usize >= PIECES {
            return Ok(());
        }
        if bytes == 0 || bytes as usize > piece_bytes(self.ring_bytes) {
            return Err(format!("a piece of {bytes} bytes"));
        }
        self.lengths[number as usize % PIECES] = bytes;
        Ok(())
    }

    /// The piece has been read: how many lines it took.
    #[inline]
    pub(super) fn release(&mut self) -> usize {
        let length = &mut self.lengths[self.next as usize % PIECES];
        let lines = (*length as usize).div_ceil(LINE_BYTES);
        *length = 0;
        self.next = self.next.wrapping_add(1);
        self.offset = (self.offset + lines * LINE_BYTES) % self.ring_bytes;
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING_BYTES: usize = 16 << 10;

    #[test]
    fn pieces_are_read_in_the_order_of_their_numbers_and_lie_behind_each_other() {
        let mut arrived = Arrived::new(RING_BYTES);
        arrived.note(1, 4096).unwrap();
        assert_eq!(arrived.first(), Ok(None));
        for _ in 0..2 {
            arrived.note(0, 65).unwrap();
        }
        assert_eq!(arrived.first(), Ok(Some((0, 65))));
        assert_eq!(arrived.release(), 2);
        arrived.note(0, 65).unwrap();
        assert_eq!((arrived.first(), arrived.next()), (Ok(Some((128, 4096))), 1));
        assert_eq!(arrived.release(), 64);
        assert_eq!(arrived.first(), Ok(None));
    }

    #[test]
    fn a_piece_past_the_rings_end_is_an_error_as_is_one_too_long_or_empty() {
        let mut arrived = Arrived::new(RING_BYTES);
        for number in 0..4 {
            assert!(arrived.note(number, 0).is_err() && arrived.note(number, 4097).is_err());
            // The ring is full to its last line, or would be.
            arrived.note(number, if number == 3 { 4000 } else { 4096 }).unwrap();
            assert!(arrived.first().is_ok());
            arrived.release();
        }
        arrived.note(4, 65).unwrap();
        let error = arrived.first().expect_err("a line is left, and it needs two");
        assert!(error.contains("65 bytes at 16320 of a ring of 16384"), "{error}");
    }
}
