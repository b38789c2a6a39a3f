//! What becomes of calls in flight, and who is told.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::callbacks::Callbacks;
use super::sys;
use crate::Error;
use crate::locked::locked;

/// How a call ends.
pub(crate) type Ending = Result<(), Error>;

/// A file descriptor that can be read from once a call has ended, well or not: for `poll`, `epoll`
/// and the like. What is read from it means nothing; [`Work::wait`](super::Work::wait) tells how
/// the call ended.
#[derive(Clone, Debug)]
pub struct Event(Arc<File>);

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Event {
    pub(super) fn new() -> Result<Self, Error> {
        let made = sys::event().map(|file| Self(Arc::new(file)));
        made.map_err(|error| Error::refused("event for a work", "eventfd", &error))
    }

    fn ring(&self) {
        // Adding one to a counter that nobody else adds to cannot fail.
        let _added = (&*self.0).write_all(&1_u64.to_ne_bytes());
    }
}

/// Who is told of an end.
pub(super) enum Listener {
    Event(Event),
    /// A function of the caller's, which runs on a thread for such functions.
    Function(Box<dyn FnOnce(Ending) + Send>),
    /// A work of several parts, of which this is one.
    Whole(Arc<Whole>, usize),
}

/// What became of a call, a way to wait for it, and who else is to be told.
pub(crate) struct Outcome {
    state: Mutex<State>,
    done: Condvar,
    pub(super) callbacks: Arc<Callbacks>,
}

#[derive(Default)]
struct State {
    ending: Option<Ending>,
    listeners: Vec<Listener>,
}

impl Outcome {
    pub(super) fn new(callbacks: Arc<Callbacks>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), done: Condvar::new(), callbacks })
    }

    /// From now on the call has ended; whoever waits or listens is told by [`Outcome::announce`].
    pub(super) fn settle(&self, ending: Ending) {
        locked(&self.state).ending = Some(ending);
    }

    /// Tell those who wait or listen.
    pub(super) fn announce(&self) {
        self.done.notify_all();
        let mut state = locked(&self.state);
        let listeners = std::mem::take(&mut state.listeners);
        let Some(ending) = state.ending.clone() else { return };
        drop(state);
        for listener in listeners {
            self.tell(listener, &ending);
        }
    }

    /// Tell `listener` when the call has ended, which may be now.
    pub(super) fn listen(&self, listener: Listener) {
        let mut state = locked(&self.state);
        let Some(ending) = state.ending.clone() else { return state.listeners.push(listener) };
        drop(state);
        self.tell(listener, &ending);
    }

    fn tell(&self, listener: Listener, ending: &Ending) {
        match listener {
            Listener::Event(event) => event.ring(),
            Listener::Function(function) => {
                let ending = ending.clone();
                self.callbacks.run(Box::new(move || function(ending)));
            }
            Listener::Whole(whole, number) => whole.part_ended(number, ending),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        locked(&self.state).ending.is_some()
    }

    pub(super) fn wait(&self) -> Ending {
        let mut state = locked(&self.state);
        loop {
            if let Some(ending) = &state.ending {
                return ending.clone();
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn wait_for(&self, timeout: Duration) -> Option<Ending> {
        // A point in time that cannot be told is too far away to come.
        let Some(deadline) = Instant::now().checked_add(timeout) else { return Some(self.wait()) };
        let mut state = locked(&self.state);
        loop {
            if let Some(ending) = &state.ending {
                return Some(ending.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let woken = self.done.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A work of several parts: it has ended when they have.
pub(super) struct Whole {
    outcome: Arc<Outcome>,
    parts: Mutex<Parts>,
}

struct Parts {
    left: usize,
    /// Of those that failed so far, the one that was named first.
    failed: Option<(usize, Error)>,
}

impl Whole {
    /// One outcome of all these, which are at least one.
    pub(super) fn of(outcomes: &[Arc<Outcome>]) -> Arc<Outcome> {
        let outcome = Outcome::new(Arc::clone(&outcomes[0].callbacks));
        let parts = Mutex::new(Parts { left: outcomes.len(), failed: None });
        let whole = Arc::new(Self { outcome: Arc::clone(&outcome), parts });
        for (number, part) in outcomes.iter().enumerate() {
            part.listen(Listener::Whole(Arc::clone(&whole), number));
        }
        outcome
    }

    fn part_ended(&self, number: usize, ending: &Ending) {
        let mut parts = locked(&self.parts);
        parts.left -= 1;
        if let Err(error) = ending
            && parts.failed.as_ref().is_none_or(|(earlier, _)| number < *earlier)
        {
            parts.failed = Some((number, error.clone()));
        }
        if parts.left == 0 {
            let ending = parts.failed.take().map_or(Ok(()), |(_, error)| Err(error));
            drop(parts);
            self.outcome.settle(ending);
            self.outcome.announce();
        }
    }
}
