//! Waiting for what was enqueued.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_cuda::{Context, CudaError, Event, Stream};

use super::Inner;
use super::exchange::trouble;
use super::looks::Looks;
use crate::Error;

/// A call that was enqueued. It is done when the device has done it.
pub struct DeviceWork {
    inner: Arc<Inner>,
    /// There until this is dropped.
    event: Option<Event>,
}

/// Events whose works are gone, to be recorded again: making one and letting it go takes as long as
/// asking for it a few times.
#[derive(Default)]
pub(super) struct Events(Mutex<Vec<Event>>);

/// As many as works are seldom held at a time.
const EVENTS_MAX: usize = 64;

impl Events {
    fn take(&self, context: &Context) -> Result<Event, CudaError> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.map_or_else(|| Event::new(context), Ok)
    }

    fn give_back(&self, event: Event) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < EVENTS_MAX {
            events.push(event);
        }
    }
}

impl DeviceWork {
    pub(super) fn mark(inner: &Arc<Inner>, stream: &Stream) -> Result<Self, Error> {
        let failed = |error| trouble("marking a stream", &error);
        if stream.is_capturing().map_err(failed)? {
            let why = "a stream that is being captured has nothing to wait for: mark the one that \
                       the graph is launched in";
            return Err(Error::invalid(why));
        }
        let event = inner.events.take(&inner.context).map_err(failed)?;
        stream.record(&event).map_err(failed)?;
        Ok(Self { inner: Arc::clone(inner), event: Some(event) })
    }

    fn event(&self) -> &Event {
        self.event.as_ref().expect("there until this is dropped")
    }

    /// Whether the device has done it.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub fn is_done(&self) -> Result<bool, Error> {
        let done = self.event().is_done().map_err(|error| trouble("a call on a device", &error))?;
        self.inner.watched.check().map(|()| done)
    }

    /// Wait until the device has done it; the deadline of the group ends it at the latest.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub fn wait(&self) -> Result<(), Error> {
        self.wait_until(None).map(|_| ())
    }

    /// Wait until the device has done it, for at most so long; whether it has.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub fn wait_for(&self, timeout: Duration) -> Result<bool, Error> {
        // A time that no clock can tell is as long as it takes.
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        let mut looks = Looks::begin(self.inner.ranks_here());
        loop {
            let done = self.event().is_done().map_err(|error| trouble("waiting for it", &error))?;
            if done {
                return self.inner.watched.check().map(|()| true);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            looks.rest();
        }
    }
}

impl Drop for DeviceWork {
    fn drop(&mut self) {
        self.event.take().into_iter().for_each(|event| self.inner.events.give_back(event));
    }
}
