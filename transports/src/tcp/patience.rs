//! How long somebody goes on with making a link: until a point in time, while it is wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often whoever can be called off looks whether it was.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Until when to go on, and whether to.
#[derive(Clone)]
pub(super) struct Patience {
    deadline: Instant,
    /// None: nobody calls this off.
    wanted: Option<Arc<AtomicBool>>,
}

impl Patience {
    /// Until then, in any case.
    pub(super) fn until(deadline: Instant) -> Patience {
        Patience { deadline, wanted: None }
    }

    /// Until then, unless it is called off by clearing `wanted`.
    pub(super) fn while_wanted(deadline: Instant, wanted: Arc<AtomicBool>) -> Patience {
        Patience { deadline, wanted: Some(wanted) }
    }

    /// The same, but not beyond `deadline`.
    pub(super) fn at_most(&self, deadline: Instant) -> Patience {
        Patience { deadline: deadline.min(self.deadline), wanted: self.wanted.clone() }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How much is left of it, nothing once it was called off.
    pub(super) fn left(&self) -> Duration {
        match &self.wanted {
            Some(wanted) if !wanted.load(Ordering::Relaxed) => Duration::ZERO,
            _ => self.deadline.saturating_duration_since(Instant::now()),
        }
    }

    /// How long to wait before the next look at it.
    pub(super) fn nap(&self) -> Duration {
        match self.wanted {
            Some(_) => self.left().min(LOOK),
            None => self.left(),
        }
    }

    /// Sleep for so long, or until it is over.
    pub(super) fn sleep(&self, time: Duration) {
        let until = self.at_most(Instant::now() + time);
        while !until.left().is_zero() {
            std::thread::sleep(until.nap());
        }
    }
}
