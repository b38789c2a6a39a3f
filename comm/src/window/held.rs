//! What those who use a window share with the thread that serves it: the memory, the counters, and
//! word of when that thread has looked around.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_transports::WindowMemory;

use super::ends::{NAP, SHORT_NAP};
use super::size::WindowSize;
use crate::locked::locked;
use crate::wait::Watch;

/// How often it is looked soon for a signal of this rank's own after one came unheard: for a second
/// or so, beyond which nobody is likely to send another.
const SHORT_NAPS: u32 = 2000;

/// A rank's own window.
pub(super) struct Held {
    pub(super) memory: Mutex<Box<dyn WindowMemory>>,
    /// Whether peers add to counters of the memory by themselves.
    is_reached: bool,
    /// What this rank added to its counters, and what others added by messages.
    signals: Vec<AtomicU64>,
    pub(super) size: WindowSize,
    pub(super) watch: Watch,
    pub(super) looks: Looks,
    /// How often the serving thread found something to do.
    served: AtomicU64,
    /// How many threads sleep at the bells, which only peers ring.
    at_bells: AtomicU32,
    /// How many of their next sleeps are short, as one of them slept while this rank signalled
    /// itself.
    short_naps: AtomicU32,
}

impl Held {
    pub(super) fn new(
        memory: Box<dyn WindowMemory>,
        is_reached: bool,
        size: WindowSize,
        watch: Watch,
    ) -> Self {
        let signals = (0..size.signals).map(|_| AtomicU64::new(0)).collect();
        let (memory, looks) = (Mutex::new(memory), Looks::default());
        let (served, at_bells) = (AtomicU64::new(0), AtomicU32::new(0));
        let short_naps = AtomicU32::new(0);
        Self { memory, is_reached, signals, size, watch, looks, served, at_bells, short_naps }
    }

    /// The serving thread has done something.
    pub(super) fn note_served(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
        self.looks.add();
    }

    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    pub(super) fn read(&self, offset: usize, target: &mut [u8]) {
        locked(&self.memory).read(offset, target);
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        locked(&self.memory).write(offset, bytes);
    }

    pub(super) fn add(&self, signal: usize, add: u64) {
        self.signals[signal].fetch_add(add, Ordering::Release);
        self.looks.add();
        // Whoever sleeps there is another thread of this rank.
        if self.at_bells.load(Ordering::Relaxed) > 0 {
            self.short_naps.store(SHORT_NAPS, Ordering::Relaxed);
        }
    }

    /// Sleep at the bells by `sleep`, for as long as it is told. Where threads of this rank signal
    /// each other that is short from the second time on, for no bell rings then.
    pub(super) fn sleep_at_bells(&self, sleep: impl FnOnce(Duration)) {
        self.at_bells.fetch_add(1, Ordering::Relaxed);
        let one_less = |naps: u32| naps.checked_sub(1);
        let is_short = self.short_naps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        sleep(if is_short.is_ok() { SHORT_NAP } else { NAP });
        self.at_bells.fetch_sub(1, Ordering::Relaxed);
    }

    /// What a counter has come to.
    pub(super) fn sum(&self, signal: usize) -> u64 {
        let here = self.signals[signal].load(Ordering::Acquire);
        // Who looks again and again shall not hold up the thread that writes into the memory.
        if self.is_reached { locked(&self.memory).signal(signal).wrapping_add(here) } else { here }
    }
}

/// How often the serving thread, which alone sleeps at the bells, has woken up or is about to sleep
/// there, and how often a counter was added to here. Who finds nothing on a wire waits until that
/// number is another one than before it looked: whatever moved since then has woken the thread, or
/// is seen by it before it sleeps.
#[derive(Default)]
pub(super) struct Looks {
    count: AtomicU64,
    sleepers: AtomicU32,
    turn: Mutex<()>,
    changed: Condvar,
}

impl Looks {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// One look more. Costs two operations on words while nobody sleeps.
    pub(super) fn add(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        // Either we see the sleeper, or it sees the number before it sleeps.
        if self.has_sleepers() {
            drop(locked(&self.turn));
            self.changed.notify_all();
        }
    }

    pub(super) fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) > 0
    }

    /// Sleep until there was another look since `before`, but no longer than `timeout`.
    pub(super) fn wait(&self, before: u64, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut turn = locked(&self.turn);
        while self.count() == before {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.changed.wait_timeout(turn, left);
            turn = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(turn);
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Room for so many bytes, which nobody has touched yet. Errors: why there is none.
pub(super) fn room(bytes: usize) -> Result<Vec<u8>, String> {
    let mut memory = Vec::new();
    let outcome = memory.try_reserve_exact(bytes);
    outcome.map_err(|error| format!("there are no {bytes} bytes of memory: {error}"))?;
    Ok(memory)
}

/// Ordinary memory, where no transport has any that peers reach.
pub(super) struct Plain(Vec<u8>);

impl Plain {
    /// Zeros. Errors: why there is not so much memory.
    pub(super) fn new(bytes: usize) -> Result<Self, String> {
        let mut memory = room(bytes)?;
        memory.resize(bytes, 0);
        Ok(Self(memory))
    }
}

impl WindowMemory for Plain {
    fn read(&self, offset: usize, target: &mut [u8]) {
        target.copy_from_slice(&self.0[offset..][..target.len()]);
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.0[offset..][..bytes.len()].copy_from_slice(bytes);
    }

    fn signal(&self, _: usize) -> u64 {
        // Nobody reaches it, so nobody adds to it here.
        0
    }
}
