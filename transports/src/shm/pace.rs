//! How a sender writes payload: through its cache, or past it.
//!
//! A line that is written through the cache is fetched from wherever it lies, and the receiver then
//! has it from the sender's cache. Between cores that share a cache that is the fastest way. Where
//! they share none it is several times slower than writing past all caches and reading from memory:
//! for the receiver more than for the sender. A virtual machine's cores move between the two while
//! a program runs, so each wire tries both now and then: both ends time the same pieces, the
//! receiver tells in its tail what it took, and the sum decides.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::region::{Bytes, Stores};
use super::sys;

/// The first trial comes after so many laps of the ring: before, memory is new to both ends, and
/// what they read and write besides is not where it will be.
const FIRST_LAPS: usize = 4;
/// After so many laps both ways are tried again when the choice has changed, so that a wrong one
/// does not last.
const SOON_LAPS: usize = 8;
/// While trials agree the next is four times as far, up to this: a fraction of a second of a busy
/// wire. A trial takes two laps, one of them by the slower way.
const SELDOM_BYTES: usize = 256 << 20;
/// Shorter pieces are written through the cache, and tell too little to be timed.
const LONG_BYTES: usize = 4 << 10;
/// So many pieces of each way are timed at most, and at least, and judged by their median: what
/// both ends hold up each other with counts, an interruption does not.
const SAMPLES_MAX: usize = 15;
const SAMPLES_MIN: usize = 5;
/// What the receiver does with a piece counts for both ways, and samples are few, so writing past
/// the caches must be faster by this factor. Measured: both ends take 1.4 to 1.8 times as long that
/// way between near cores, a whole call 1.5 to 2.5 times; between far ones a call takes a half to
/// a tenth of the time.
const FACTOR: (u64, u64) = (4, 3);
/// Ticks are told for so many bytes, so that pieces of different lengths compare.
const UNIT_BYTES: u64 = 64 << 10;

/// What a receiver tells of a piece that it was asked to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// The position behind the piece.
    pub(super) position: u32,
    pub(super) ticks: u32,
}

impl Told {
    pub(super) fn pack(self) -> u64 {
        u64::from(self.position) | u64::from(self.ticks) << 32
    }

    fn unpack(word: u64) -> Self {
        Self { position: word as u32, ticks: (word >> 32) as u32 }
    }
}

/// A piece that is about to be written.
#[derive(Clone, Copy)]
pub(super) struct Piece<'a> {
    pub(super) bytes: &'a [u8],
    /// Where it goes, at a place where nobody else reads or writes now.
    pub(super) ring: &'a Bytes,
    pub(super) offset: usize,
    /// The position behind it.
    pub(super) position: u32,
}

impl Piece<'_> {
    #[inline]
    fn write(self, stores: Stores) {
        self.ring.write(self.offset, self.bytes, stores);
    }
}

/// The choice of one wire, revised as it goes.
pub(super) struct Pace {
    stores: Stores,
    ring_bytes: usize,
    /// Bytes to go until the next trial.
    rest_bytes: usize,
    /// Bytes between the last trial and the next.
    pause_bytes: usize,
    trial: Trial,
}

/// A trial that is under way: a lap of the ring through the cache, then one past it. Pieces of the
/// second half of a lap are timed, when the ring is as that way leaves it.
struct Trial {
    /// Bytes of the current lap so far.
    lap_bytes: usize,
    current: Samples,
    /// The median of the first lap, when that is over.
    through: Option<u64>,
    asked: Option<Asked>,
}

/// Ticks of both ends together.
struct Samples {
    ticks: [u64; SAMPLES_MAX],
    count: usize,
}

/// A piece that the receiver was asked to time.
struct Asked {
    position: u32,
    bytes: u64,
    /// What writing it took.
    ticks: u64,
}

impl Pace {
    /// For a ring of so many bytes.
    pub(super) fn new(ring_bytes: usize) -> Self {
        Self {
            stores: Stores::Through,
            ring_bytes,
            rest_bytes: FIRST_LAPS * ring_bytes,
            pause_bytes: SOON_LAPS * ring_bytes,
            trial: Trial::new(),
        }
    }

    /// Write a piece. Whether the receiver is to time it, and to tell that in `told`.
    #[inline]
    pub(super) fn write(&mut self, piece: Piece<'_>, told: &AtomicU64) -> bool {
        let bytes = piece.bytes.len();
        if bytes < LONG_BYTES {
            piece.write(Stores::Through);
        } else if self.rest_bytes > 0 || !sys::HAS_TICKS {
            self.rest_bytes = self.rest_bytes.saturating_sub(bytes);
            piece.write(self.stores);
        } else {
            return self.try_both(piece, told);
        }
        false
    }

    #[cold]
    fn try_both(&mut self, piece: Piece<'_>, told: &AtomicU64) -> bool {
        self.trial.listen(Told::unpack(told.load(Ordering::Relaxed)));
        let is_over = self.trial.lap_bytes >= self.ring_bytes;
        if is_over && let Some(stores) = self.trial.end_lap() {
            self.decide(stores);
            piece.write(stores);
            return false;
        }
        let start = sys::ticks();
        piece.write(self.trial.stores());
        // Stores wait for their lines when the processor has long gone on; that is timed, too.
        fence(Ordering::SeqCst);
        let ticks = sys::ticks().wrapping_sub(start);
        let trial = &mut self.trial;
        trial.lap_bytes += piece.bytes.len();
        let is_asked = trial.lap_bytes > self.ring_bytes / 2 && trial.asked.is_none();
        if is_asked {
            let Piece { position, bytes, .. } = piece;
            trial.asked = Some(Asked { position, bytes: bytes.len() as u64, ticks });
        }
        is_asked
    }

    /// A trial has come to this.
    fn decide(&mut self, stores: Stores) {
        self.pause_bytes = match stores == self.stores {
            true => SELDOM_BYTES.min(4 * self.pause_bytes),
            false => SOON_LAPS * self.ring_bytes,
        };
        (self.stores, self.rest_bytes) = (stores, self.pause_bytes);
        self.trial = Trial::new();
    }
}

impl Trial {
    fn new() -> Self {
        Self { lap_bytes: 0, current: Samples::new(), through: None, asked: None }
    }

    /// How pieces of the current lap are written.
    fn stores(&self) -> Stores {
        if self.through.is_none() { Stores::Through } else { Stores::Past }
    }

    /// If the receiver has told how long the piece took that it was asked to time, that is a
    /// sample.
    fn listen(&mut self, told: Told) {
        if let Some(asked) = self.asked.take_if(|asked| asked.position == told.position) {
            let both = asked.ticks.saturating_add(u64::from(told.ticks));
            self.current.add(both.saturating_mul(UNIT_BYTES) / asked.bytes);
        }
    }

    /// When the lap has samples enough: go on to the next one, or, after the last, say which way
    /// is the better.
    fn end_lap(&mut self) -> Option<Stores> {
        let median = self.current.median()?;
        let Some(through) = self.through else {
            *self = Self { through: Some(median), ..Self::new() };
            return None;
        };
        let (more, less) = FACTOR;
        let is_faster = median.saturating_mul(more) < through.saturating_mul(less);
        Some(if is_faster { Stores::Past } else { Stores::Through })
    }
}

impl Samples {
    fn new() -> Self {
        Self { ticks: [0; SAMPLES_MAX], count: 0 }
    }

    fn add(&mut self, ticks: u64) {
        if let Some(place) = self.ticks.get_mut(self.count) {
            *place = ticks;
            self.count += 1;
        }
    }

    /// Of enough samples.
    fn median(&mut self) -> Option<u64> {
        let ticks = &mut self.ticks[..self.count];
        ticks.sort_unstable();
        (ticks.len() >= SAMPLES_MIN).then(|| ticks[ticks.len() / 2])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::sys::Mapping;
    use super::*;

    const PIECE_BYTES: usize = 64 << 10;
    const LONG: u32 = u32::MAX / 2;

    /// A wire with a ring of one piece, whose receiver answers late.
    struct Wire {
        pace: Pace,
        ring: Bytes,
        told: AtomicU64,
        position: u32,
        asked: Option<Told>,
    }

    impl Wire {
        fn new() -> Self {
            let file = sys::memory_file().unwrap();
            let length = std::fs::File::from(file.try_clone().unwrap());
            length.set_len(PIECE_BYTES as u64).unwrap();
            let map = Arc::new(Mapping::new(&file, 0, PIECE_BYTES).unwrap());
            let ring = Bytes::new(&map, 0, PIECE_BYTES);
            let (pace, told) = (Pace::new(PIECE_BYTES), AtomicU64::new(0));
            Self { pace, ring, told, position: 0, asked: None }
        }

        /// Write until a trial is over, while the receiver takes so many ticks for what was written
        /// through and past the caches. How many pieces came before the trial, and its choice.
        fn trial(&mut self, through: u32, past: u32) -> (usize, Stores) {
            let before = (0..10_000).find(|_| {
                self.write(through, past);
                self.pace.rest_bytes == 0
            });
            let is_over = (0..100).any(|_| {
                self.write(through, past);
                self.pace.rest_bytes > 0
            });
            assert!(is_over, "a trial comes to an end");
            (before.expect("a trial begins") + 1, self.pace.stores)
        }

        fn write(&mut self, through: u32, past: u32) {
            self.position += 1;
            let position = self.position;
            if let Some(answer) = self.asked.take_if(|_| position.is_multiple_of(3)) {
                self.told.store(answer.pack(), Ordering::Relaxed);
            }
            let bytes = &[7; PIECE_BYTES];
            let piece = Piece { bytes, ring: &self.ring, offset: 0, position };
            if self.pace.write(piece, &self.told) {
                assert!(self.asked.is_none(), "one at a time");
                let is_past = self.pace.trial.stores() == Stores::Past;
                self.asked = Some(Told { position, ticks: if is_past { past } else { through } });
            }
        }
    }

    #[test]
    fn what_takes_both_ends_less_is_chosen() {
        if sys::HAS_TICKS {
            assert_eq!(Wire::new().trial(LONG, 1000), (FIRST_LAPS, Stores::Past));
            assert_eq!(Wire::new().trial(1000, LONG), (FIRST_LAPS, Stores::Through));
        }
    }

    #[test]
    fn a_changed_choice_is_tried_again_soon_and_one_that_stays_ever_less_often() {
        if sys::HAS_TICKS {
            let mut wire = Wire::new();
            wire.trial(LONG, 1000);
            assert_eq!(wire.trial(1000, LONG), (SOON_LAPS, Stores::Through));
            let pauses = [(); 7].map(|()| wire.trial(1000, LONG).0);
            assert_eq!(pauses, [8, 32, 128, 512, 2048, 4096, 4096]);
            assert_eq!(wire.trial(LONG, 1000), (4096, Stores::Past));
            assert_eq!(wire.trial(LONG, 1000), (SOON_LAPS, Stores::Past));
        }
    }
}
