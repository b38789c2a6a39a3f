//! How a sender writes payload: through its cache, or past it.
//!
//! A line that the receiver read last lies in the receiver's cache, and a plain store first fetches
//! it from there. Between cores that share a cache that is fast, and the receiver then finds the
//! new bytes in that cache. Between cores that share none it is several times slower than writing
//! past all caches. A virtual machine's cores move between the two while a program runs, so each
//! wire tries both now and then, and takes what its own clock says.

use super::region::{Bytes, Stores};
use super::sys;

/// After how many bytes both ways are tried again: some milliseconds of a busy wire.
const TRY_EVERY_BYTES: usize = 32 << 20;
/// Shorter pieces are written through the cache, and tell too little to be timed.
const LONG_BYTES: usize = 4 << 10;
/// Each way is timed so often and judged by its best, which an interruption does not spoil.
const TRIALS: u32 = 2;
/// Writing past the caches also costs the receiver a trip to memory, so it must be faster for the
/// sender by this factor. Measured: 1 to 1.5 between near cores, 8 between far ones.
const FACTOR: u64 = 3;

/// The choice of one wire, revised as it goes.
pub(super) struct Pace {
    stores: Stores,
    /// Bytes to go until the next trial.
    rest_bytes: usize,
    /// Pieces timed in the current trial.
    timed: u32,
    /// The least ticks for 64 KiB in the current trial.
    through: u64,
    past: u64,
}

impl Pace {
    /// `ring_bytes`: what is written before the first trial, so that no trial meets memory that
    /// was never touched.
    pub(super) fn new(ring_bytes: usize) -> Self {
        let (through, past) = (u64::MAX, u64::MAX);
        Self { stores: Stores::Through, rest_bytes: ring_bytes, timed: 0, through, past }
    }

    /// Copy `bytes` to `offset` of `ring`, where nobody else reads or writes now.
    #[inline]
    pub(super) fn write(&mut self, ring: &Bytes, offset: usize, bytes: &[u8]) {
        if bytes.len() < LONG_BYTES {
            ring.write(offset, bytes, Stores::Through);
        } else if self.rest_bytes > 0 || !sys::HAS_TICKS {
            self.rest_bytes = self.rest_bytes.saturating_sub(bytes.len());
            ring.write(offset, bytes, self.stores);
        } else {
            self.try_both(ring, offset, bytes);
        }
    }

    #[cold]
    fn try_both(&mut self, ring: &Bytes, offset: usize, bytes: &[u8]) {
        let (stores, least) = match self.timed.is_multiple_of(2) {
            true => (Stores::Through, &mut self.through),
            false => (Stores::Past, &mut self.past),
        };
        let start = sys::ticks();
        ring.write(offset, bytes, stores);
        let ticks = sys::ticks().wrapping_sub(start);
        *least = (*least).min(ticks.saturating_mul(64 << 10) / bytes.len() as u64);
        self.timed += 1;
        if self.timed == 2 * TRIALS {
            self.stores = choose(self.through, self.past);
            *self = Self { stores: self.stores, ..Self::new(TRY_EVERY_BYTES) };
        }
    }
}

fn choose(through_ticks: u64, past_ticks: u64) -> Stores {
    if through_ticks > past_ticks.saturating_mul(FACTOR) { Stores::Past } else { Stores::Through }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_cache_must_be_much_faster() {
        assert_eq!(choose(100, 100), Stores::Through);
        assert_eq!(choose(300, 100), Stores::Through);
        assert_eq!(choose(301, 100), Stores::Past);
        assert_eq!(choose(u64::MAX, u64::MAX), Stores::Through);
    }
}
