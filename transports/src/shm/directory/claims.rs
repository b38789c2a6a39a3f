//! Who gets which entry of the directory: finding the one of a key, or claiming one for it.
//!
//! Between claiming an entry and settling its key a process may be killed. Others cannot know
//! whose claim it was, and need not: a claim that stays unsettled is given up by whoever has waited
//! long enough for it. Its owner, should it only have been slow, finds that out when it settles,
//! and begins anew.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{BUCKET, ENTRIES, KEY_MIN, NAMELESS, Region, SETTLING, UNSETTLED, rounded};
use crate::TransportError;

/// How long a claim may stay unsettled. A process that runs settles it within microseconds.
const PATIENCE: Duration = Duration::from_millis(100);
const _: () = assert!(PATIENCE.as_nanos() < SETTLING.as_nanos());

/// What looking for a key came to.
enum Look {
    Found(usize),
    /// Somebody fills an entry in, whose key is not known yet.
    Unsettled(Claim),
    /// It is not there, as long as the bucket's word is this.
    Absent(u64),
}

/// Somebody's claim: the entry, and the bucket's word when it was seen.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Claim {
    index: usize,
    seen: u64,
}

impl Region {
    /// The entry of `key`, made by us or by whoever came first.
    pub(in super::super) fn find(
        &self,
        key: u64,
        bytes: usize,
        deadline: Instant,
    ) -> Result<usize, TransportError> {
        assert!(key >= KEY_MIN);
        let first = key as usize % (ENTRIES / BUCKET) * BUCKET;
        let start = Instant::now();
        let mut doubt: Option<(Claim, Instant)> = None;
        for turn in 0_u32.. {
            match self.look(first, key) {
                Look::Found(index) => return Ok(index),
                Look::Absent(seen) => {
                    if let Some(index) = self.claim(first, seen)?
                        && self.reserve(index, key, rounded(bytes))?
                    {
                        return Ok(index);
                    }
                    // Another one was claimed meanwhile, or ours was given up.
                    continue;
                }
                Look::Unsettled(_) if Instant::now() >= deadline => break,
                // It takes microseconds, unless that rank died.
                Look::Unsettled(claim) => match turn {
                    0..100 => std::hint::spin_loop(),
                    100..1000 => std::thread::yield_now(),
                    _ => {
                        std::thread::sleep(Duration::from_micros(200));
                        let known = doubt.filter(|(other, _)| *other == claim);
                        let (_, since) = *doubt.insert(known.unwrap_or((claim, Instant::now())));
                        if since.elapsed() >= PATIENCE {
                            self.give_up(claim.index);
                        }
                    }
                },
            }
        }
        Err(TransportError::Timeout {
            what: "the first member's reservation of a group's memory".into(),
            waited_ms: start.elapsed().as_millis() as u64,
        })
    }

    /// Look for a key in the bucket that begins at `first`.
    fn look(&self, first: usize, key: u64) -> Look {
        let directory = self.directory();
        let seen = directory[first].claims.load(Ordering::Acquire);
        let mut unsettled = None;
        for index in (0..BUCKET).filter(|at| seen >> at & 1 == 1).map(|at| first + at) {
            match directory[index].key.load(Ordering::Acquire) {
                found if found == key => return Look::Found(index),
                UNSETTLED => unsettled = Some(index),
                _ => {}
            }
        }
        unsettled.map_or(Look::Absent(seen), |index| Look::Unsettled(Claim { index, seen }))
    }

    /// Claim an entry of a bucket whose word is still `seen`.
    fn claim(&self, first: usize, seen: u64) -> Result<Option<usize>, TransportError> {
        let at = (seen as u32).trailing_ones();
        if at as usize == BUCKET {
            let why = "too many communicators and windows of this host are in use; no more fit";
            return Err(TransportError::Refused { why: why.into() });
        }
        let changed = ((seen >> 32) + 1) << 32 | u64::from(seen as u32) | 1 << at;
        let claims = &self.directory()[first].claims;
        let ours = claims.compare_exchange(seen, changed, Ordering::AcqRel, Ordering::Relaxed);
        Ok(ours.is_ok().then_some(first + at as usize))
    }

    /// Let go of entry `index`, which has no area any more.
    fn unclaim(&self, index: usize) {
        let directory = self.directory();
        directory[index].key.store(UNSETTLED, Ordering::Relaxed);
        let (first, at) = (index / BUCKET * BUCKET, index % BUCKET);
        let change =
            |seen: u64| Some(((seen >> 32) + 1) << 32 | u64::from(seen as u32) & !(1 << at));
        let claims = &directory[first].claims;
        let changed = claims.fetch_update(Ordering::AcqRel, Ordering::Relaxed, change);
        assert!(changed.is_ok(), "the update always has a next value");
    }

    /// Give a claim up whose owner does not settle it. Should it still live, it will notice.
    fn give_up(&self, index: usize) {
        let key = &self.directory()[index].key;
        // If that fails it has settled just now.
        let _gave = key.compare_exchange(UNSETTLED, NAMELESS, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Fill in an entry that is ours to fill: from the free list, else from the unused rest.
    /// Returns whether it is settled; others may have given it up.
    fn reserve(&self, index: usize, key: u64, bytes: u64) -> Result<bool, TransportError> {
        let recycled = self.recycled(bytes).map(|spare| {
            let offset = self.offset(spare);
            self.unclaim(spare);
            offset
        });
        let offset = recycled.or_else(|| {
            let next = &self.head().next.0;
            let rest = |next: u64| next.checked_add(bytes).filter(|end| *end <= self.bytes);
            next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).ok()
        });
        let Some(offset) = offset else {
            self.unclaim(index);
            let why = "the host's shared region has no room for this group".into();
            return Err(TransportError::Refused { why });
        };
        let entry = &self.directory()[index];
        entry.offset.store(offset, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Relaxed);
        let settled =
            entry.key.compare_exchange(UNSETTLED, key, Ordering::AcqRel, Ordering::Relaxed);
        if settled.is_err() {
            // Nobody looks for it now, and it has an area that nobody used: for whoever needs one.
            self.recycle(index, bytes);
        }
        Ok(settled.is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: u64 = 77;
    const BYTES: usize = 10_000;

    /// Claim an entry of the key's bucket and say no more.
    fn claimed(region: &Region) -> usize {
        let Look::Absent(seen) = region.look(first(), KEY) else { panic!("nobody has it") };
        region.claim(first(), seen).unwrap().expect("nobody else claims")
    }

    fn first() -> usize {
        KEY as usize % (ENTRIES / BUCKET) * BUCKET
    }

    #[test]
    fn who_is_killed_while_it_claims_an_entry_holds_others_up_only_a_little() {
        let region = Region::create().unwrap();
        let abandoned = claimed(&region);
        let start = Instant::now();
        let index = region.find(KEY, BYTES, start + 100 * PATIENCE).expect("it is given up");
        assert!(index != abandoned && start.elapsed() >= PATIENCE);
        let start = Instant::now();
        assert_eq!(region.find(KEY, BYTES, start).expect("it is there"), index);
        region.find(KEY + (ENTRIES / BUCKET) as u64, BYTES, start).expect("the bucket is free");
    }

    #[test]
    fn areas_can_be_mapped_whatever_pages_a_kernel_has() {
        let region = Region::create().unwrap();
        for bytes in [1, 4096, 4097, 65_536, 65_537, 1 << 20] {
            for index in [0, 1].map(|_| region.take(bytes).unwrap()) {
                let (offset, room) = (region.offset(index), region.area_bytes(index));
                assert!(offset.is_multiple_of(64 << 10) && room.is_multiple_of(64 << 10));
                assert!(room >= bytes as u64);
                region.map_area(offset, bytes).unwrap();
            }
        }
    }

    #[test]
    fn who_was_only_slow_to_settle_its_claim_begins_anew_and_loses_nothing() {
        let region = Region::create().unwrap();
        let slow = claimed(&region);
        let index = region.find(KEY, BYTES, Instant::now() + 100 * PATIENCE).unwrap();
        assert!(!region.reserve(slow, KEY, rounded(BYTES)).unwrap(), "it was given up");
        assert_eq!(region.find(KEY, BYTES, Instant::now()).unwrap(), index, "there is one");
        assert_ne!(region.offset(slow), region.offset(index));
        assert_eq!(region.recycled(rounded(BYTES)), Some(slow), "its area is not lost");
    }
}
