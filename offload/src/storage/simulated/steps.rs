//! Time that stands still until somebody asks for the next completion.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::storage::wake::Wake;

/// How long a step may take: there is nothing in it to wait for.
const LIMIT: Duration = Duration::from_secs(60);

/// Steps, as those who ask for them and the engine count them.
#[derive(Default)]
pub(super) struct Steps {
    counts: Mutex<Counts>,
    handed_out: Condvar,
}

#[derive(Default)]
struct Counts {
    asked: u64,
    taken: u64,
    /// As far as all callers have what ended in them.
    handed_out: u64,
    engine: Option<Arc<dyn Wake>>,
}

impl Steps {
    /// Whom to wake for a step.
    pub(super) fn set_engine(&self, bell: Arc<dyn Wake>) {
        self.counts().engine = Some(bell);
    }

    /// Ask for a step, and wait until its outcomes were handed out.
    pub(super) fn step(&self) {
        let mut counts = self.counts();
        counts.asked += 1;
        let mine = counts.asked;
        if let Some(engine) = &counts.engine {
            engine.wake();
        }
        let (counts, _) = self
            .handed_out
            .wait_timeout_while(counts, LIMIT, |counts| counts.handed_out < mine)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(counts.handed_out >= mine, "no storage takes steps on this device");
    }

    /// How many have been asked for.
    pub(super) fn asked(&self) -> u64 {
        self.counts().asked
    }

    /// The engine has handed out what ended in the steps it took. Whether it shall take another, of
    /// the first so many.
    pub(super) fn next(&self, of: u64) -> bool {
        let mut counts = self.counts();
        counts.handed_out = counts.taken;
        self.handed_out.notify_all();
        let is_due = counts.taken < of;
        counts.taken += u64::from(is_due);
        is_due
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Changed by code that does not panic between its lines.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.counts();
        write!(f, "{} of {} steps", counts.handed_out, counts.asked)
    }
}
