//! Sleeping until something has arrived: at the completion channels of all devices, and at a gong
//! that the exchange with the peers strikes.
//!
//! A completion queue rings once after it was armed. The wires do nothing for the bell: it arms, by
//! itself, those queues that have rung since.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use brigade_verbs::{CompletionChannel, CompletionQueue, Device};

use super::sys::Gong;
use crate::sys::{Changes, Epoll};
use crate::{Doorbell, TransportError};

/// What rings at an endpoint. Shared with the exchange, which adds to it.
pub(super) struct Chimes {
    set: Epoll,
    gong: Gong,
    hung: Mutex<Hung>,
}

#[derive(Default)]
struct Hung {
    channels: Vec<(Arc<Device>, Arc<CompletionChannel>)>,
    /// By token.
    queues: Vec<Hanging>,
}

struct Hanging {
    /// Whose user has gone, its place is the next one's.
    queue: Weak<CompletionQueue>,
    is_armed: bool,
    /// Whether anybody cares for it now.
    is_wanted: Option<Arc<AtomicBool>>,
}

impl Chimes {
    pub(super) fn new() -> Result<Arc<Chimes>, TransportError> {
        let failed = |error| TransportError::from_io("epoll_create1", &error, "making a bell");
        let (set, gong) = (Epoll::new().map_err(failed)?, Gong::new().map_err(failed)?);
        set.add(gong.as_fd(), Changes::Readable).map_err(failed)?;
        Ok(Arc::new(Chimes { set, gong, hung: Mutex::default() }))
    }

    /// Wake whoever sleeps here.
    pub(super) fn strike(&self) {
        self.gong.ring();
    }

    /// A completion queue whose arrivals ring from the next time on that the bell is armed; if a
    /// flag comes with it, only while that is set.
    pub(super) fn queue(
        &self,
        device: &Arc<Device>,
        entries: u32,
        is_wanted: Option<Arc<AtomicBool>>,
    ) -> Result<Arc<CompletionQueue>, TransportError> {
        let mut hung = self.lock();
        let channel = match hung.channels.iter().find(|(known, _)| Arc::ptr_eq(known, device)) {
            Some((_, channel)) => Arc::clone(channel),
            None => {
                let channel = CompletionChannel::new(device).map_err(super::failed)?;
                let add = self.set.add(channel.as_fd(), Changes::Readable);
                add.map_err(|error| TransportError::from_io("epoll_ctl", &error, "a channel"))?;
                hung.channels.push((Arc::clone(device), Arc::clone(&channel)));
                channel
            }
        };
        let free = hung.queues.iter().position(|it| it.queue.strong_count() == 0);
        let token = free.unwrap_or(hung.queues.len());
        let queue = CompletionQueue::new(device, entries, Some((&channel, token)));
        let queue = queue.map_err(super::failed)?;
        let hanging = Hanging { queue: Arc::downgrade(&queue), is_armed: false, is_wanted };
        match free {
            Some(token) => hung.queues[token] = hanging,
            None => hung.queues.push(hanging),
        }
        Ok(queue)
    }

    fn lock(&self) -> MutexGuard<'_, Hung> {
        self.hung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arm(&self) -> io::Result<()> {
        let mut hung = self.lock();
        let Hung { channels, queues } = &mut *hung;
        // What rings from here on is either taken below, or ends the next wait.
        self.set.drain()?;
        for (_, channel) in channels {
            while let Some(token) = channel.rung() {
                queues[token].is_armed = false;
            }
        }
        for Hanging { queue, is_armed, is_wanted } in queues.iter_mut() {
            let is_wanted = is_wanted.as_ref().is_none_or(|flag| flag.load(Ordering::Relaxed));
            if !*is_armed && is_wanted {
                // A queue that cannot be armed is broken, which shows when it is polled.
                *is_armed = queue.upgrade().is_some_and(|queue| queue.arm().is_ok());
            }
        }
        Ok(())
    }
}

/// The doorbell of an endpoint.
pub(super) struct Bell(pub(super) Arc<Chimes>);

impl Doorbell for Bell {
    fn arm(&mut self) {
        // An error will show again in `wait`.
        let _armed = self.0.arm();
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), TransportError> {
        let ms = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        let slept = self.0.set.wait(ms);
        slept.map_err(|error| TransportError::from_io("epoll_wait", &error, "sleeping"))?;
        Ok(())
    }

    fn disarm(&mut self) {}

    fn descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        Some(self.0.set.as_fd())
    }

    fn also_hears(&mut self, other: BorrowedFd<'_>) -> bool {
        self.0.set.add(other, Changes::Readable).is_ok()
    }
}
