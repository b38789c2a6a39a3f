//! How whoever runs a root tells it to end.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use brigade_transports::opened;

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
