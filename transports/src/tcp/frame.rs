//! Headers of the pieces that a stream is cut into when it runs over several sockets.
//!
//! ```text
//! check 4   bytes 4   offset in the stream 8      all little-endian, then so many bytes of body
//! ```

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 16;
/// The most bytes of a body; a header that says more is not ours.
pub(super) const BODY_BYTES_MAX: usize = 16 << 20;

/// A piece of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// How many bytes, at least one.
    pub(super) bytes: u32,
    /// Where in the stream the first of them belongs.
    pub(super) offset: u64,
}

impl Frame {
    /// The header that announces the piece.
    pub(super) fn serialise(self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0..4].copy_from_slice(&self.check().to_le_bytes());
        header[4..8].copy_from_slice(&self.bytes.to_le_bytes());
        header[8..16].copy_from_slice(&self.offset.to_le_bytes());
        header
    }

    /// Read a header from the network. Errors: what is wrong with it.
    pub(super) fn parse(header: &[u8; HEADER_BYTES]) -> Result<Frame, &'static str> {
        let word = |at: usize| {
            u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes of sixteen"))
        };
        let offset = u64::from(word(8)) | u64::from(word(12)) << 32;
        let frame = Frame { bytes: word(4), offset };
        if word(0) != frame.check() {
            return Err("a frame's header does not check");
        }
        if frame.bytes == 0 || frame.bytes as usize > BODY_BYTES_MAX {
            return Err("a frame has an impossible length");
        }
        Ok(frame)
    }

    /// Four bytes that other bytes than ours are unlikely to have. An odd factor and the upper
    /// half of the product: every bit of length and offset counts (Knuth, TAOCP 3, 6.4).
    fn check(self) -> u32 {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let once = (self.offset ^ u64::from(self.bytes).rotate_left(40)).wrapping_mul(FACTOR);
        ((once ^ once >> 29).wrapping_mul(FACTOR) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back() {
        for bytes in [1, 63, 64, 1 << 20, BODY_BYTES_MAX as u32] {
            for offset in [0, 1, u64::from(u32::MAX), 1 << 40, u64::MAX] {
                let frame = Frame { bytes, offset };
                assert_eq!(Frame::parse(&frame.serialise()), Ok(frame));
            }
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for bytes in [0, BODY_BYTES_MAX as u32 + 1, u32::MAX] {
            assert!(Frame::parse(&Frame { bytes, offset: 0 }.serialise()).is_err());
        }
    }

    #[test]
    fn a_changed_bit_or_random_bytes_are_refused() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..2000 {
            let frame = Frame { bytes: random.u32(1..1 << 20), offset: random.u64(..1 << 40) };
            let header = frame.serialise();
            for bit in 0..128 {
                let mut changed = header;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(Frame::parse(&changed).is_err(), "seed {seed}: {frame:?}, bit {bit}");
            }
        }
        let parsed = (0..100_000)
            .filter(|_| Frame::parse(&std::array::from_fn(|_| random.u8(..))).is_ok())
            .count();
        assert!(parsed <= 1, "seed {seed}: {parsed} random headers were taken for ours");
    }
}
