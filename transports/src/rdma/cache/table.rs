//! Which ranges of memory are known to which device: what is found, what is added, what goes.
//!
//! Ranges of one device never lie within one another. So of those that begin at or before an
//! address, the last one reaches farthest, and is the only one to look at.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::LendingStats;
use crate::rdma::unmap::{BATCH, Change, News};

/// How much is registered at least, if there is so much memory where it is wanted.
const AHEAD: usize = 1 << 20;
/// How many ranges that cannot be lent are remembered, and for how many look-ups: each is a list of
/// all mappings to read.
const REFUSED: usize = 8;
const REFUSED_FOR: u64 = 4096;

/// The memory that a table is about, and what knows of it.
pub(super) trait Ground {
    /// A device.
    type Domain;
    /// Memory that a device knows; not any more once it is dropped.
    type Region;

    /// The next changes of memory that was watched.
    fn news(&mut self, batch: &mut [Change; BATCH]) -> News;
    /// The memory that can be registered around a range. Errors: what cannot, around it.
    fn mapping(&self, wanted: &Range<usize>) -> Result<Range<usize>, Range<usize>>;
    /// Have changes of a range told; whether that is possible.
    fn watch(&self, range: &Range<usize>) -> bool;
    /// Take that back, except where its memory is gone.
    fn unwatch(&self, range: &Range<usize>, gone: &[Range<usize>]);
    /// Make a range known to a device.
    fn register(
        &self,
        domain: &Arc<Self::Domain>,
        range: &Range<usize>,
    ) -> Result<Self::Region, Refusal>;
}

/// What is registered.
pub(super) struct Table<G: Ground> {
    ground: G,
    /// Falls to half of what a device refused, when it does.
    limit: usize,
    page_bytes: usize,
    /// By domain and first address.
    entries: BTreeMap<(usize, usize), Entry<G::Region>>,
    /// Dropped, but still in use.
    retired: Vec<(usize, Arc<G::Region>)>,
    /// What could not be lent, and until when nobody asks again.
    refused: VecDeque<(Range<usize>, u64)>,
    /// Counts look-ups.
    clock: u64,
    counters: LendingStats,
}

struct Entry<R> {
    end: usize,
    region: Arc<R>,
    used: u64,
}

/// Why a range was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It cannot be: there is no room among what is in use, or it is no memory for that.
    Never,
    /// The device takes no more, or the process may lock no more memory.
    Full,
}

impl<G: Ground> Table<G> {
    pub(super) fn new(ground: G, limit: usize, page_bytes: usize) -> Table<G> {
        assert!(page_bytes.is_power_of_two());
        Table {
            ground,
            limit,
            page_bytes,
            entries: BTreeMap::new(),
            retired: Vec::new(),
            refused: VecDeque::with_capacity(REFUSED),
            clock: 0,
            counters: LendingStats::default(),
        }
    }

    pub(super) fn ground(&self) -> &G {
        &self.ground
    }

    pub(super) fn lending(&self) -> LendingStats {
        self.counters
    }

    /// A region that `bytes` at `address` lie within.
    pub(super) fn region(
        &mut self,
        domain: &Arc<G::Domain>,
        address: usize,
        bytes: usize,
    ) -> Option<Arc<G::Region>> {
        if bytes == 0 || !self.catch_up() {
            return None;
        }
        let end = address.checked_add(bytes)?.checked_next_multiple_of(self.page_bytes)?;
        let wanted = address & !(self.page_bytes - 1)..end;
        self.clock += 1;
        let found = match self.find(domain, &wanted) {
            Some(region) => {
                self.counters.hits += 1;
                region
            }
            None => self.add(domain, &wanted)?,
        };
        self.counters.lent_bytes += bytes as u64;
        Some(found)
    }

    #[inline]
    fn find(&mut self, domain: &Arc<G::Domain>, wanted: &Range<usize>) -> Option<Arc<G::Region>> {
        let id = Arc::as_ptr(domain).addr();
        let (_, entry) = self.entries.range_mut((id, 0)..=(id, wanted.start)).next_back()?;
        if wanted.end > entry.end {
            return None;
        }
        entry.used = self.clock;
        Some(Arc::clone(&entry.region))
    }

    /// Register a range, or more than that.
    fn add(&mut self, domain: &Arc<G::Domain>, wanted: &Range<usize>) -> Option<Arc<G::Region>> {
        if wanted.len() > self.limit || self.was_refused(wanted) {
            return None;
        }
        let mapping = match self.ground.mapping(wanted) {
            Ok(mapping) => mapping,
            Err(range) => {
                self.refused.truncate(REFUSED - 1);
                self.refused.push_front((range, self.clock + REFUSED_FOR));
                return None;
            }
        };
        let grown = self.grown(Arc::as_ptr(domain).addr(), wanted, &mapping);
        let region = match self.admit(domain, &grown) {
            Ok(region) => region,
            Err(refusal) => {
                if let Refusal::Full = refusal {
                    while self.evict() {}
                }
                self.admit(domain, wanted).ok()?
            }
        };
        self.counters.misses += 1;
        Some(region)
    }

    fn was_refused(&self, wanted: &Range<usize>) -> bool {
        self.refused.iter().any(|(range, until)| {
            range.start <= wanted.start && wanted.end <= range.end && self.clock < *until
        })
    }

    /// A range together with what it overlaps or touches, so that pieces of one buffer come to be
    /// one; and more beyond, twice as much each time, so that this happens seldom.
    fn grown(&self, id: usize, wanted: &Range<usize>, mapping: &Range<usize>) -> Range<usize> {
        let most = (self.limit / 4).max(wanted.len());
        let mut grown = wanted.clone();
        loop {
            let before = grown.clone();
            for (&(_, start), entry) in self.entries.range((id, 0)..=(id, grown.end)) {
                let both = start.min(grown.start)..entry.end.max(grown.end);
                if entry.end >= grown.start && both.len() <= most {
                    grown = both;
                }
            }
            if grown == before {
                break;
            }
        }
        let reach = if grown == *wanted { AHEAD } else { 2 * grown.len() };
        let reach = reach.min(most).next_multiple_of(self.page_bytes);
        let end = grown.end.max(grown.start.saturating_add(reach).min(mapping.end));
        grown.start.max(mapping.start)..end.min(mapping.end)
    }

    fn admit(
        &mut self,
        domain: &Arc<G::Domain>,
        range: &Range<usize>,
    ) -> Result<Arc<G::Region>, Refusal> {
        let id = Arc::as_ptr(domain).addr();
        let is_within = |key: &(usize, usize), end: usize| {
            key.0 == id && key.1 >= range.start && end <= range.end
        };
        self.retire(|key, entry| is_within(key, entry.end), &[]);
        if !self.make_room(range.len()) || !self.ground.watch(range) {
            return Err(Refusal::Never);
        }
        let region = self.ground.register(domain, range).inspect_err(|refusal| {
            self.ground.unwatch(range, &[]);
            if let Refusal::Full = refusal {
                let refused = self.counters.registered_bytes as usize + range.len();
                self.limit = self.limit.min(refused / 2);
            }
        })?;
        let region = Arc::new(region);
        let entry = Entry { end: range.end, region: Arc::clone(&region), used: self.clock };
        let replaced = self.entries.insert((id, range.start), entry);
        assert!(replaced.is_none(), "a range that lies within this one has just been retired");
        let counters = &mut self.counters;
        counters.registered_bytes += range.len() as u64;
        counters.registered_bytes_max =
            counters.registered_bytes_max.max(counters.registered_bytes);
        Ok(region)
    }

    /// Learn what has become of the memory. Returns false if nobody can tell.
    fn catch_up(&mut self) -> bool {
        let mut batch = [Change::Unmapped { start: 0, end: 0 }; BATCH];
        loop {
            match self.ground.news(&mut batch) {
                News::Changes(0) => return true,
                News::Changes(count) => {
                    self.apply(&batch[..count]);
                    if count < BATCH {
                        return true;
                    }
                }
                News::Lost => {
                    self.counters.invalidated += self.retire(|_, _| true, &[]);
                }
                News::Unsettled => return false,
            }
        }
    }

    #[cold]
    fn apply(&mut self, changes: &[Change]) {
        let mut gone = Vec::new();
        let mut touched = Vec::new();
        for change in changes {
            match *change {
                Change::Unmapped { start, end } => {
                    gone.push(start..end);
                    touched.push(start..end);
                }
                Change::Emptied { start, end } => touched.push(start..end),
                Change::Moved { start, to, bytes } => {
                    gone.push(start..start + bytes);
                    touched.extend([start..start + bytes, to..to + bytes]);
                    // It is watched where it is now, for nobody.
                    self.ground.unwatch(&(to..to + bytes), &[]);
                }
            }
        }
        let is_touched = |key: &(usize, usize), entry: &Entry<G::Region>| {
            touched.iter().any(|range| range.start < entry.end && key.1 < range.end)
        };
        self.counters.invalidated += self.retire(is_touched, &gone);
    }

    /// Drop entries, and forget them once nobody uses them; how many.
    fn retire(
        &mut self,
        is_over: impl Fn(&(usize, usize), &Entry<G::Region>) -> bool,
        gone: &[Range<usize>],
    ) -> u64 {
        let Table { ground, entries, retired, .. } = self;
        let before = entries.len();
        entries.retain(|key, entry| {
            let stays = !is_over(key, entry);
            if !stays {
                ground.unwatch(&(key.1..entry.end), gone);
                retired.push((entry.end - key.1, Arc::clone(&entry.region)));
            }
            stays
        });
        let count = before - entries.len();
        self.sweep();
        count as u64
    }

    /// Forget what was dropped and is not in use any more.
    fn sweep(&mut self) {
        let registered = &mut self.counters.registered_bytes;
        self.retired.retain(|(bytes, region)| {
            let is_used = Arc::strong_count(region) > 1;
            if !is_used {
                *registered -= *bytes as u64;
            }
            is_used
        });
    }

    /// Make room for so many bytes more; whether there is.
    fn make_room(&mut self, bytes: usize) -> bool {
        let Some(most) = self.limit.checked_sub(bytes) else { return false };
        self.sweep();
        while self.counters.registered_bytes > most as u64 {
            if !self.evict() {
                return false;
            }
        }
        true
    }

    /// Drop what has not been used for longest and is not in use; whether there was such.
    fn evict(&mut self) -> bool {
        let unused = self.entries.iter().filter(|(_, entry)| Arc::strong_count(&entry.region) == 1);
        let Some((&oldest, _)) = unused.min_by_key(|(_, entry)| entry.used) else { return false };
        self.counters.evicted += self.retire(|key, _| *key == oldest, &[]);
        true
    }
}

impl<G: Ground> Drop for Table<G> {
    fn drop(&mut self) {
        // What happened last is known first: gone memory is not let go of.
        self.catch_up();
        self.retire(|_, _| true, &[]);
    }
}

#[cfg(test)]
mod tests;
