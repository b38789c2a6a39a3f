//! Sleeping until a socket of the endpoint changes.
//!
//! Every socket is in one epoll set from the moment its link stands, edge-triggered for arrivals
//! and for room. So a wire does nothing for the bell on its hot path: a change after the last look
//! is in the kernel's list whether somebody sleeps or not, and a link that comes to stand rings by
//! being added, because a fresh socket has room.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::sys::{Changes, Epoll};
use crate::{Doorbell, TransportError};

/// The doorbell of an endpoint.
pub(super) struct Bell {
    pub(super) set: Arc<Epoll>,
    pub(super) armings: Armings,
}

/// How often a bell has been armed. The first look of a wire after that must see everything, since
/// changes from before it do not ring.
#[derive(Clone, Default)]
pub(super) struct Armings(Arc<AtomicU32>);

impl Armings {
    pub(super) fn count(&self) -> u32 {
        // Who arms looks next, on the same thread.
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    pub(super) fn new() -> Result<Bell, TransportError> {
        let set = Epoll::new()
            .map_err(|error| TransportError::from_io("epoll_create1", &error, "making a bell"))?;
        Ok(Bell { set: Arc::new(set), armings: Armings::default() })
    }
}

impl Doorbell for Bell {
    fn arm(&mut self) {
        self.armings.add();
        // Draining only spares a useless wake-up. An error will show again in `wait`.
        let _ = self.set.drain();
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), TransportError> {
        let ms = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        self.set
            .wait(ms)
            .map_err(|error| TransportError::from_io("epoll_wait", &error, "sleeping"))?;
        Ok(())
    }

    fn disarm(&mut self) {}

    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.set.as_fd())
    }

    fn also_hears(&mut self, other: BorrowedFd<'_>) -> bool {
        self.set.add(other, Changes::Readable).is_ok()
    }
}
