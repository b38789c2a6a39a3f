//! How whoever runs a root tells it to end, and when it does.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use std::time::{Duration, Instant};

use brigade_transports::opened;

use crate::say::warn;

/// How long a root that is to end stays for ranks that have groups on devices to close.
const STAY: Duration = Duration::from_secs(10);

/// How the owner tells the thread to end, once. It holds both ends of the pair, so that ringing
/// never meets a closed end, whoever ends first.
#[derive(Debug)]
pub(super) struct Bell {
    rung: AtomicBool,
    mouth: UnixStream,
    ear: UnixStream,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        let (mouth, ear) = opened(UnixStream::pair)?;
        Ok(Self { rung: AtomicBool::new(false), mouth, ear })
    }

    pub(super) fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        // One byte always fits, and only the flag counts.
        let _sent = (&self.mouth).write(&[1]);
    }

    pub(super) fn has_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
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

    /// Whether the root at `place` ends now, from which these ranks want to hear of others.
    pub(super) fn is_due(&self, now: Instant, holders: &[usize], place: &str) -> bool {
        if holders.is_empty() || now < self.until {
            return holders.is_empty();
        }
        warn(&format!(
            "the root at {place} ends, and has stayed {} s for ranks {holders:?} to close their \
             groups on devices: a barrier of all ranks behind closing lets it end last",
            STAY.as_secs()
        ));
        true
    }
}
