//! The sum over a block: CRC-64/NVME, the one that drives themselves use for data in flight.
//!
//! A CRC finds every burst of up to 64 flipped bits, and misses anything else once in 2^64. It is
//! no defence against somebody who writes into the files on purpose.

use crc_fast::{CrcAlgorithm, Digest};

/// A sum over bytes. On disk: little-endian, 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Checksum(pub u64);

/// The sum over these bytes. Cost: one pass; where the processor multiplies without carry, it takes
/// no longer than reading bytes out of memory does (on a Zen 4, 47 GB/s out of the cache, where
/// XXH3 does 62; out of memory all of them take the same).
pub fn checksum(bytes: &[u8]) -> Checksum {
    Checksum(crc_fast::checksum(CrcAlgorithm::Crc64Nvme, bytes))
}

/// The sum over these bytes and as many zeros behind them as make `length` bytes in all.
pub fn checksum_padded(bytes: &[u8], length: usize) -> Checksum {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    digest.update(bytes);
    let mut missing = length.checked_sub(bytes.len()).expect("no more bytes than the length");
    while missing > 0 {
        let zeros = missing.min(ZEROS.len());
        digest.update(&ZEROS[..zeros]);
        missing -= zeros;
    }
    Checksum(digest.finalize())
}

/// The sum over several ranges, as if they stood behind one another.
pub(super) fn checksum_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Checksum {
    let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
    parts.into_iter().for_each(|part| digest.update(part));
    Checksum(digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_check_value() {
        assert_eq!(checksum(b"123456789"), Checksum(0xae8b_1486_0a79_9888));
        let padded = [&[7; 100][..], &[0; 9900]].concat();
        assert_eq!(checksum_padded(&[7; 100], 10_000), checksum(&padded));
        assert_eq!(checksum_of([&b"1234"[..], b"", b"56789"]), checksum(b"123456789"));
    }
}
