//! How far a host runs ahead of a stream: so far that a device never waits for it, and not so far
//! that the driver has no room for more. It has some 1000 places for what a stream has not begun;
//! who waits for one may hold up all other threads (a program that does so: docs/CUDA.md), and if
//! what the stream does waits for a rank that is one of these, nothing ever goes on. Here a thread
//! waits before that, for a mark in its own stream, which holds up nobody.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::{Context, Event, Result, Stream};

/// Places between two marks; a stream that one thread gives something holds less than two such
/// stretches and one command, or two graphs, if they are longer than a stretch. Where a driver lets
/// several streams share a queue, that is room for five, and for one where
/// `CUDA_SCALE_LAUNCH_QUEUES` leaves it a quarter.
const STRETCH: u32 = 96;

/// Places of most commands, and of a function of the host, as far as they were ever counted: in
/// that program room ends behind 57 of those, each with a record.
pub(crate) const COMMAND: u32 = 1;
pub(crate) const FUNCTION: u32 = 18;

/// What a stream was given, in places.
pub(crate) struct Pace {
    given: AtomicU32,
    marks: Mutex<Marks>,
}

/// The last one, and the next, which was the one before the last.
struct Marks {
    last: Event,
    next: Event,
}

impl Pace {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let marks = Marks { last: Event::patient(context)?, next: Event::patient(context)? };
        Ok(Self { given: AtomicU32::new(0), marks: Mutex::new(marks) })
    }

    /// Something of so many places is given to `stream` next: wait until there is room. Costs an
    /// addition, but for one in [`STRETCH`].
    pub(crate) fn keep(&self, stream: &Stream, places: u32) -> Result<()> {
        let places = places.min(STRETCH);
        let before = self.given.fetch_add(places, Ordering::Relaxed);
        if before / STRETCH == before.wrapping_add(places) / STRETCH {
            return Ok(());
        }
        self.mark(stream, places)
    }

    #[cold]
    fn mark(&self, stream: &Stream, places: u32) -> Result<()> {
        // A graph takes whatever comes, and what it is made of cannot be waited for: the mark is
        // made with the first thing behind it.
        if stream.is_capturing()? {
            self.given.fetch_sub(places, Ordering::Relaxed);
            return Ok(());
        }
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let Marks { last, next } = &mut *marks;
        stream.mark(next)?;
        std::mem::swap(last, next);
        next.synchronize()
    }
}
