//! Sleeping and waking: one word per member and group.
//!
//! A full barrier between moving a ring and looking at the word would cost the mover the whole
//! transfer of the line it has just written. So where every member's system has `membarrier`, the
//! sleeper, who has time, issues it for everybody, and the mover looks at once.

use std::sync::atomic::{AtomicU32, Ordering, compiler_fence, fence};
use std::time::{Duration, Instant};

use super::region::{Line, Shared};
use super::{order, sys};
use crate::{Doorbell, TransportError};

/// Whose barrier stands between a moved ring and the look at a bell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Barrier {
    /// The sleeper's, which reaches into all threads of all members.
    Sleeper,
    /// Each side's own.
    Both,
}

/// The owner's end of a bell.
pub(super) struct Bell {
    word: Shared<Line<AtomicU32>>,
    barrier: Barrier,
}

impl Bell {
    pub(super) fn new(word: Shared<Line<AtomicU32>>, barrier: Barrier) -> Self {
        Self { word, barrier }
    }
}

impl Doorbell for Bell {
    fn arm(&mut self) {
        order::arm(&self.word.0, || match self.barrier {
            // Registered when the port was opened, so this works; were it ever to fail, the
            // timeout of `wait` bounds what a missed ring costs.
            Barrier::Sleeper => drop(sys::memory_barrier()),
            Barrier::Both => fence(Ordering::SeqCst),
        });
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), TransportError> {
        let end = Instant::now() + timeout;
        while order::may_sleep(&self.word.0) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            sys::futex_wait(&self.word.0, order::ARMED, left)
                .map_err(|e| TransportError::from_io("futex", &e, "sleeping at a doorbell"))?;
        }
        order::disarm(&self.word.0);
        Ok(())
    }

    fn disarm(&mut self) {
        order::disarm(&self.word.0);
    }
}

/// A peer's end of a bell.
#[derive(Clone)]
pub(super) struct Ringer {
    word: Shared<Line<AtomicU32>>,
    barrier: Barrier,
}

impl Ringer {
    pub(super) fn new(word: Shared<Line<AtomicU32>>, barrier: Barrier) -> Self {
        Self { word, barrier }
    }

    /// Wake the bell's owner if it sleeps. Called after something was moved.
    #[inline]
    pub(super) fn ring(&self) {
        let wake = order::must_wake(&self.word.0, || match self.barrier {
            Barrier::Sleeper => compiler_fence(Ordering::SeqCst),
            Barrier::Both => fence(Ordering::SeqCst),
        });
        if wake {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        // The word is mapped and aligned, so the call cannot fail; a sleeper has a timeout anyway.
        let woken = sys::futex_wake(&self.word.0);
        debug_assert!(woken.is_ok());
    }
}
