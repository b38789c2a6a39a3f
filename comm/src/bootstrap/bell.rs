//! How whoever runs a root tells it to end, and when it does, or that nobody waits there for all
//! ranks any more; and sees whether ranks wait there.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_transports::opened;

use crate::say::warn;

/// How long a root that is to end stays for ranks that have groups on devices to close.
const STAY: Duration = Duration::from_secs(10);

/// How the owner tells the thread something. It holds both ends of the pair, so that ringing never
/// meets a closed end, whoever ends first.
#[derive(Debug)]
pub(super) struct Bell {
    rung: AtomicBool,
    /// Whether ranks that have come wait for others to come.
    awaits: AtomicBool,
    /// Why ranks wait in vain, until the thread has heard it: with it there is a byte to hear.
    in_vain: Mutex<Option<String>>,
    mouth: UnixStream,
    ear: UnixStream,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let (mouth, ear) = opened(UnixStream::pair)?;
        let (rung, awaits) = (AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { rung, awaits, in_vain: Mutex::default(), mouth, ear })
    }

    pub(super) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        // One byte always fits, and only the flag counts.
        let _sent = (&self.mouth).write(&[1]);
    }

    pub(super) fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }

    /// Ranks wait in vain, and `why`.
    pub(super) fn call_off(&self, why: &str) {
        let mut in_vain = self.in_vain.lock().unwrap_or_else(PoisonError::into_inner);
        if in_vain.is_none() && (&self.mouth).write(&[1]).is_ok() {
            *in_vain = Some(why.to_owned());
        }
    }

    /// Why they do, once.
    pub(super) fn called_off(&self) -> Option<String> {
        let mut in_vain = self.in_vain.lock().unwrap_or_else(PoisonError::into_inner);
        let why = in_vain.take()?;
        // One byte is there: else the thread would find no rest.
        let _heard = (&self.ear).read(&mut [0]);
        Some(why)
    }

    pub(super) fn note_whether_it_awaits(&self, awaits: bool) {
        self.awaits.store(awaits, Ordering::Relaxed);
    }

    pub(super) fn awaits(&self) -> bool {
        self.awaits.load(Ordering::Relaxed)
    }

    /// What becomes readable by ringing.
    pub(super) fn ear(&self) -> BorrowedFd<'_> {
        self.ear.as_fd()
    }
}

/// A root that was told to end.
pub(super) struct Ending {
    until: Instant,
}

impl Ending {
    pub(super) fn new(now: Instant) -> Self {
        Self { until: now + STAY }
    }

    /// When it ends at the latest.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Whether the root at `place` ends now, from which `holders` want to hear of others: some of
    /// them, if they are its `own` process's, might have the thread that waits for its end.
    pub(super) fn is_due(
        &self,
        now: Instant,
        (holders, own): (&[usize], &[usize]),
        place: &str,
    ) -> bool {
        if holders.is_empty() || holders.iter().any(|rank| own.contains(rank)) {
            return true;
        }
        if now < self.until {
            return false;
        }
        warn(&format!(
            "the root at {place} ends, and has stayed {} s for ranks {holders:?} to close their \
             groups on devices: a barrier of all ranks behind closing lets it end last",
            STAY.as_secs()
        ));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_stays_for_ranks_of_other_processes_and_not_for_ever() {
        let now = Instant::now();
        let ending = Ending::new(now);
        let is_due = |after, holders: &[usize]| ending.is_due(now + after, (holders, &[0, 1]), "x");
        assert!(is_due(Duration::ZERO, &[]));
        assert!(!is_due(Duration::ZERO, &[2, 3]) && !is_due(STAY / 2, &[3]));
        assert!(is_due(Duration::ZERO, &[1, 3]), "one thread may have ranks 0 and 1");
        assert!(is_due(STAY, &[3]));
    }
}
