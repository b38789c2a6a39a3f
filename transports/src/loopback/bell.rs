//! Sleeping until a wire may have moved.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::lock;
use super::world::Shared;
use crate::{Doorbell, TransportError};

/// Nobody rings when a piece that was pushed earlier arrives in real time: sleepers look so often.
const NAP: Duration = Duration::from_micros(100);

/// What rings one member of one group.
#[derive(Default)]
pub(super) struct Bell {
    /// Whether anybody listens. Ringing costs one load of this while nobody does.
    armed: AtomicBool,
    rung: Mutex<bool>,
    wake: Condvar,
}

impl Bell {
    /// Tell the member that something moved. Whoever rings has made the move visible before, by a
    /// sequentially consistent store or under a lock; the listener looks only after it armed. So
    /// either it sees the move or this sees it armed.
    pub(super) fn ring(&self) {
        if self.armed.load(Ordering::SeqCst) {
            *lock(&self.rung) = true;
            self.wake.notify_all();
        }
    }
}

/// The listening side of a [`Bell`].
pub(super) struct Listener {
    shared: Arc<Shared>,
    bell: Arc<Bell>,
}

impl Listener {
    pub(super) fn new(shared: Arc<Shared>, bell: Arc<Bell>) -> Self {
        Self { shared, bell }
    }

    /// Sleep until it rings or the timeout is over; less where time itself moves wires.
    fn sleep(&self, timeout: Duration) {
        let start = Instant::now();
        let timeout = if self.shared.moves_by_time() { timeout.min(NAP) } else { timeout };
        let mut rung = lock(&self.bell.rung);
        while !*rung {
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return;
            }
            let (woken, _) =
                self.bell.wake.wait_timeout(rung, left).unwrap_or_else(PoisonError::into_inner);
            rung = woken;
        }
    }
}

impl Doorbell for Listener {
    fn arm(&mut self) {
        *lock(&self.bell.rung) = false;
        self.bell.armed.store(true, Ordering::SeqCst);
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), TransportError> {
        // A sleeper is what virtual time waits for: it moves the clock instead of sleeping, and
        // sleeps only while what it waits for depends on another thread.
        let rung = *lock(&self.bell.rung);
        let advanced = !rung && self.shared.timeline.is_virtual() && self.shared.advance();
        if !rung && !advanced {
            self.sleep(timeout);
        }
        self.disarm();
        Ok(())
    }

    fn disarm(&mut self) {
        self.bell.armed.store(false, Ordering::SeqCst);
    }
}
