//! Real and virtual time, and the moments at which something will have moved.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::lock;

/// A moment that never comes.
pub(super) const NEVER: u64 = u64::MAX;

/// Time of one world, in nanoseconds since it was made.
pub(super) struct Timeline {
    /// Where real time starts; `None` when time is virtual.
    real_since: Option<Instant>,
    virtual_ns: AtomicU64,
    /// When something becomes visible that is not yet, in virtual time. Each moment is kept once.
    events: Mutex<BTreeSet<u64>>,
}

impl Timeline {
    /// The machine's time.
    pub(super) fn real() -> Self {
        Self { real_since: Some(Instant::now()), ..Self::stopped() }
    }

    /// Virtual time, which only [`Timeline::advance`] moves.
    pub(super) fn stopped() -> Self {
        Self { real_since: None, virtual_ns: AtomicU64::new(0), events: Mutex::default() }
    }

    pub(super) fn is_virtual(&self) -> bool {
        self.real_since.is_none()
    }

    pub(super) fn now_ns(&self) -> u64 {
        match self.real_since {
            Some(start) => nanoseconds(start.elapsed()),
            None => self.virtual_ns.load(Ordering::SeqCst),
        }
    }

    /// Note that something will be visible at `at_ns`. Real time needs no notes to pass.
    pub(super) fn plan(&self, at_ns: u64) {
        assert_ne!(at_ns, NEVER, "what never happens is no event");
        if self.is_virtual() {
            lock(&self.events).insert(at_ns);
        }
    }

    /// Move virtual time to the next event. Returns false, and moves nothing, if there is none.
    pub(super) fn advance(&self) -> bool {
        assert!(self.is_virtual(), "only virtual time is moved by hand");
        let mut events = lock(&self.events);
        let now_ns = self.virtual_ns.load(Ordering::SeqCst);
        while let Some(at_ns) = events.pop_first() {
            if at_ns > now_ns {
                self.virtual_ns.store(at_ns, Ordering::SeqCst);
                return true;
            }
        }
        false
    }
}

/// A duration as nanoseconds; five centuries are the most that fit.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER - 1)
}
