//! How a rank ends that goes no further: the others hear why, and so does whoever watches it,
//! before what it has goes. That may take longer than a launcher waits for ranks once one has
//! failed.
//!
//! Nothing here knows what was trained.

use crate::error::Error;
use brigade_comm::Communicator;
use std::time::{Duration, Instant};

/// How long a rank that ends all waits to hear whether another was there first.
const VERDICT_WAIT: Duration = Duration::from_millis(500);
const VERDICT_LOOK: Duration = Duration::from_millis(1);

/// Who is to hear what ends a rank, and whether they have.
pub(crate) struct Ending<'a> {
    world: Option<&'a Communicator>,
    say: &'a mut (dyn FnMut(&Error) + Send),
    is_said: bool,
}

impl<'a> Ending<'a> {
    pub(crate) fn new(
        world: Option<&'a Communicator>,
        say: &'a mut (dyn FnMut(&Error) + Send),
    ) -> Ending<'a> {
        Ending { world, say, is_said: false }
    }

    /// Tell it while this rank still has everything: calls are waited for when that goes, and
    /// memory of devices, where others may wait for this rank. But whoever is first to find a loss
    /// that is no number, or an overflow, does not end the others in their update: most find the
    /// same.
    pub(crate) fn tell_early(&mut self, error: Error) -> Error {
        match error {
            Error::Diverged { .. } | Error::DivergedBefore { .. } => error,
            Error::Overflown { .. } => error,
            error => self.tell(error),
        }
    }

    /// Tell it, unless it was told.
    pub(crate) fn tell(&mut self, error: Error) -> Error {
        if std::mem::replace(&mut self.is_said, true) {
            return error;
        }
        let error = match self.world {
            Some(world) => give_up(world, error),
            None => error,
        };
        (self.say)(&error);
        error
    }
}

/// Have the other ranks of `world` hear why this one goes no further, unless the world has ended
/// without it. What it comes to is told by this rank, unless it is `is_told_elsewhere`: of ranks
/// that find the same one tells it, whichever was the first.
pub fn give_up(world: &Communicator, error: Error) -> Error {
    let words = error.reason();
    if world.ended().is_none() {
        world.abort(&words);
    }
    let until = Instant::now() + VERDICT_WAIT;
    loop {
        match world.ended() {
            Some(brigade_comm::Error::Aborted { rank, why })
                if rank as usize != world.rank() && why == words =>
            {
                return Error::Told { by: rank as usize, error: Box::new(error) };
            }
            None if Instant::now() < until => std::thread::sleep(VERDICT_LOOK),
            // Better twice than not at all.
            _ => return error,
        }
    }
}
