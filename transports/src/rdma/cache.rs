//! Registrations of memory that callers lend, kept for the next time.
//!
//! To send from where bytes lie, a device must know their pages. That takes a system call, pins the
//! pages, and costs more than to copy a few of them; so what was registered stays so until its
//! place is needed, or its memory goes away. Memory may be registered that was not lent: around
//! what was, in the same mapping, so that the next piece of a large buffer is found. What becomes
//! of memory is looked at when something is lent: until then, pages that were freed stay pinned,
//! within the same bound.
//!
//! * `table`: which ranges are known to which device, and which of them go; no system in it
//! * `mappings`: what kind of memory there is at an address
//! * this file: the table over real memory and real devices

mod mappings;
mod table;

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use brigade_verbs::{Access, MemoryRegion, ProtectionDomain, VerbsError};

use super::unmap::{self, BATCH, Change, News, Watch};
use crate::LendingStats;
use table::{Ground, Refusal, Table};

/// After so many answers in a row that nobody could tell, half a second's at least, nobody is asked
/// any more: the kernel has lost count of the changes under way.
const UNSETTLED_MAX: u32 = 2500;

/// Memory that a device knows, and the place in it that was asked for.
pub(super) struct Lent {
    pub(super) region: Arc<MemoryRegion>,
    pub(super) offset: usize,
}

/// What a rank's devices know of its callers' memory.
pub(super) struct Cache {
    limit: usize,
    state: Mutex<State>,
    /// In which process.
    forks: u32,
}

enum State {
    /// Nobody has asked for anything.
    Unused,
    Used(Table<Pages>),
    /// Memory cannot be watched here, or lending is switched off. What was done before that.
    Off(LendingStats),
}

impl Cache {
    /// One that keeps at most so many bytes registered. None at all switches lending off.
    pub(super) fn new(limit: usize) -> Cache {
        let off = State::Off(LendingStats::default());
        let state = Mutex::new(if limit == 0 { off } else { State::Unused });
        Cache { limit, state, forks: unmap::forks() }
    }

    /// `bytes` at `address` as memory of a device, which is registered now unless it is. `None`:
    /// it cannot be, so the caller copies.
    ///
    /// The answer names the pages that are there now, however long ago they were registered. The
    /// memory must not be unmapped, emptied or moved while the answer is used.
    ///
    /// Costs about a microsecond when it is found.
    pub(super) fn region(
        &self,
        domain: &Arc<ProtectionDomain>,
        address: usize,
        bytes: usize,
    ) -> Option<Lent> {
        if self.is_elsewhere() {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Unused = *state {
            let off = State::Off(LendingStats::default());
            *state = Pages::start(self.limit).map_or(off, State::Used);
        }
        let State::Used(table) = &mut *state else { return None };
        if table.ground().unsettled >= UNSETTLED_MAX {
            *state = State::Off(LendingStats { registered_bytes: 0, ..table.lending() });
            return None;
        }
        let region = table.region(domain, address, bytes)?;
        let offset = address - region.address() as usize;
        Some(Lent { region, offset })
    }

    /// What has been done so far.
    pub(super) fn lending(&self) -> LendingStats {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Used(table) => table.lending(),
            State::Unused => LendingStats::default(),
            State::Off(stats) => *stats,
        }
    }

    /// Whether this is a child of the process that it was made in. What there is belongs to the
    /// parent, down to the locks.
    fn is_elsewhere(&self) -> bool {
        self.forks != unmap::forks()
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if self.is_elsewhere() {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            std::mem::forget(std::mem::replace(state, State::Unused));
        }
    }
}

/// Whether memory can be lent, for a person to read.
pub(super) fn describe(limit: usize) -> String {
    match (limit, unmap::probe()) {
        (0, _) => "lending: switched off by its setting; every byte is copied".into(),
        (_, Ok(())) => {
            let mib = limit >> 20;
            format!("lending: devices send from the caller's memory, at most {mib} MiB registered")
        }
        (_, Err(why)) => {
            format!("lending: every byte is copied, since memory is not watched; {why}")
        }
    }
}

/// The memory of this process.
struct Pages {
    watch: Arc<Watch>,
    /// How many changes of the journal are known here.
    seen: u64,
    /// How often in a row nobody could tell.
    unsettled: u32,
}

impl Pages {
    fn start(limit: usize) -> io::Result<Table<Pages>> {
        let watch = Watch::of_this_process()?;
        let seen = watch.now();
        Ok(Table::new(Pages { watch, seen, unsettled: 0 }, limit, unmap::page_bytes()))
    }
}

impl Ground for Pages {
    type Domain = ProtectionDomain;
    type Region = MemoryRegion;

    fn news(&mut self, batch: &mut [Change; BATCH]) -> News {
        let news = self.watch.news(&mut self.seen, batch);
        self.unsettled = if news == News::Unsettled { self.unsettled + 1 } else { 0 };
        news
    }

    fn mapping(&self, wanted: &Range<usize>) -> Result<Range<usize>, Range<usize>> {
        mappings::around(wanted)
    }

    fn watch(&self, range: &Range<usize>) -> bool {
        self.watch.watch(range).is_ok()
    }

    fn unwatch(&self, range: &Range<usize>, gone: &[Range<usize>]) {
        self.watch.unwatch(range, gone);
    }

    fn register(
        &self,
        domain: &Arc<ProtectionDomain>,
        range: &Range<usize>,
    ) -> Result<MemoryRegion, Refusal> {
        // SAFETY: peers get no key to it. Requests name only what was lent for as long as they are
        // on their way, and only read it.
        let made =
            unsafe { MemoryRegion::foreign(domain, range.start, range.len(), Access::Local) };
        made.map_err(|error| match error {
            VerbsError::Call { errno: libc::ENOMEM, .. } => Refusal::Full,
            _ => Refusal::Never,
        })
    }
}

#[cfg(test)]
mod tests;
