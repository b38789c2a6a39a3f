//! Calls that run while their caller does something else.
//!
//! [`Communicator::scope`] works like `std::thread::scope`: buffers are borrowed for the scope, and
//! the scope does not end before every call in it has. The calls of a communicator run in order,
//! one after the other, on a progress thread of its own that is started by the first such call.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use brigade_schedule::Collective;

use crate::call::{Buffers, Call};
use crate::communicator::{Communicator, Shared};
use crate::dtype::Element;
use crate::locked::locked;
use crate::{Error, Op, inside};

mod callbacks;
mod outcome;
pub(crate) mod progress;
mod sys;

use callbacks::Callbacks;
pub use outcome::Event;
use outcome::{Listener, Outcome, Whole};
use progress::{Body, Job};

/// A call in flight.
#[derive(Clone)]
pub struct Work<'scope> {
    outcome: Arc<Outcome>,
    scope: PhantomData<&'scope ()>,
}

impl<'scope> Work<'scope> {
    /// One work of several, which may be those of different communicators: it ends when all of them
    /// have, with the error of the one named first among those that failed. No works are a work
    /// that has ended.
    pub fn all(works: impl IntoIterator<Item = Work<'scope>>) -> Work<'scope> {
        let outcomes: Vec<_> = works.into_iter().map(|work| work.outcome).collect();
        let outcome = match &outcomes[..] {
            [] => {
                let outcome = Outcome::new(Callbacks::unattended());
                outcome.settle(Ok(()));
                outcome
            }
            [only] => Arc::clone(only),
            several => Whole::of(several),
        };
        Work { outcome, scope: PhantomData }
    }

    /// Whether the call has ended, well or not.
    pub fn is_done(&self) -> bool {
        self.outcome.is_done()
    }

    /// Wait for the end of the call. It ends at its deadline at the latest.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub fn wait(&self) -> Result<(), Error> {
        self.outcome.wait()
    }

    /// Wait for the end of the call, but no longer than `timeout`: `None` if it still goes on.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<(), Error>> {
        self.outcome.wait_for(timeout)
    }

    /// Call `function` with the result of the call once it has ended, which may be now. It runs on
    /// a thread that this communicator keeps for such functions, never on the caller's and never
    /// behind another such function, so it may call collectives and wait for them. Dropping the
    /// communicator waits for it (no longer than a call may take), except in such a function.
    ///
    /// # Errors
    ///
    /// [`Error::Exhausted`] if no thread can be started.
    pub fn on_done(
        &self,
        function: impl FnOnce(Result<(), Error>) + Send + 'static,
    ) -> Result<(), Error> {
        let promised = self.outcome.callbacks.promise();
        promised.map_err(|error| Error::no_thread("thread for what follows a call", &error))?;
        self.outcome.listen(Listener::Function(Box::new(function)));
        Ok(())
    }

    /// A file descriptor that can be read from once the call has ended. Each time another one.
    ///
    /// # Errors
    ///
    /// [`Error::Exhausted`] if the system has none to give.
    pub fn event(&self) -> Result<Event, Error> {
        let event = Event::new()?;
        self.outcome.listen(Listener::Event(event.clone()));
        Ok(event)
    }
}

/// Where calls may be started that borrow buffers for `'scope`.
pub struct Scope<'scope, 'env: 'scope> {
    shared: &'scope Arc<Shared>,
    started: Mutex<Vec<Arc<Outcome>>>,
    lifetimes: PhantomData<(&'scope mut &'scope (), &'env mut &'env ())>,
}

impl<'scope> Scope<'scope, '_> {
    /// Start an all-reduce in place. See [`Communicator::all_reduce`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Exhausted`] at once; everything else when the work is waited
    /// for.
    pub fn all_reduce<T: Element>(
        &'scope self,
        data: &'scope mut [T],
        op: Op,
    ) -> Result<Work<'scope>, Error> {
        let call = Call::new(Collective::AllReduce, T::DTYPE, op, data.len());
        self.start(call, Buffers::InPlace(crate::typed::bytes_mut(data)))
    }

    /// Start any call. The bytes are borrowed until the scope ends.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Exhausted`] at once; everything else when the work is waited
    /// for.
    pub fn start(
        &'scope self,
        call: Call,
        buffers: Buffers<'scope>,
    ) -> Result<Work<'scope>, Error> {
        call.validate(self.shared.ranks, self.shared.rank)?;
        let run = move |shared: &Shared| shared.run_now(&call, buffers).map_err(|error| *error);
        let mut started = locked(&self.started);
        started.reserve(1);
        // SAFETY: what the body borrows lives as long as the scope, and the scope waits for the job
        // before it ends, also when its closure panics: a job that is queued is in the list of
        // those started before anything else can happen.
        let outcome = unsafe { submit(self.shared, Box::new(run)) }?;
        started.push(Arc::clone(&outcome));
        drop(started);
        Ok(Work { outcome, scope: PhantomData })
    }
}

/// Queue what a call does.
///
/// # Safety
///
/// What the body borrows is neither freed nor used in another way until the outcome is there.
unsafe fn submit(shared: &Arc<Shared>, run: Body<'_, Shared>) -> Result<Arc<Outcome>, Error> {
    inside::refuse(shared.number)?;
    let outcome = Outcome::new(Arc::clone(&shared.progress.callbacks));
    // SAFETY: only the lifetime of the box changes, and the caller vouches for what it borrows.
    let run = unsafe { std::mem::transmute::<Body<'_, Shared>, Body<'static, Shared>>(run) };
    let job = Job { run, broken: Shared::broken, outcome: Arc::clone(&outcome) };
    shared.progress.submit((shared, shared.rank), job)?;
    Ok(outcome)
}

impl Communicator {
    /// Start a call whose buffers the compiler cannot watch over, as those of other languages.
    /// Where it can, use [`Communicator::scope`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] and [`Error::Exhausted`] at once; everything else when the work is waited
    /// for.
    ///
    /// # Safety
    ///
    /// Until the work is done the buffers exist, nobody writes to what is read, and nobody touches
    /// what is written. Dropping the work or the communicator does not end the call early.
    pub unsafe fn start(&self, call: Call, buffers: Buffers<'_>) -> Result<Work<'static>, Error> {
        call.validate(self.shared().ranks, self.shared().rank)?;
        let run = move |shared: &Shared| shared.run_now(&call, buffers).map_err(|error| *error);
        // SAFETY: the caller's promise.
        unsafe { self.start_body(Box::new(run)) }
    }

    /// Start what a call does.
    ///
    /// # Safety
    ///
    /// As for [`Communicator::start`], of all that the body borrows.
    pub(crate) unsafe fn start_body(&self, run: Body<'_, Shared>) -> Result<Work<'static>, Error> {
        // SAFETY: the caller's promise.
        let outcome = unsafe { submit(self.shared(), run) }?;
        Ok(Work { outcome, scope: PhantomData })
    }
}

impl Communicator {
    /// Run `body`, which may start calls on buffers that it borrows, and wait for all of them.
    ///
    /// # Errors
    ///
    /// The first error of a call that was started, after all of them have ended.
    pub fn scope<'env, F, R>(&self, body: F) -> Result<R, Error>
    where
        F: for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    {
        /// Waits even when the body panics: the calls still use its buffers.
        struct WaitAll<'a>(&'a Mutex<Vec<Arc<Outcome>>>);
        impl Drop for WaitAll<'_> {
            fn drop(&mut self) {
                for outcome in std::mem::take(&mut *locked(self.0)) {
                    let work = Work { outcome, scope: PhantomData };
                    // The error is reported below; a panicking body has nobody to tell.
                    let _ = work.wait();
                }
            }
        }
        let scope = Scope {
            shared: self.shared(),
            started: Mutex::new(Vec::new()),
            lifetimes: PhantomData,
        };
        let result = {
            let _wait = WaitAll(&scope.started);
            let result = body(&scope);
            let started = locked(&scope.started).clone();
            for outcome in started {
                Work { outcome, scope: PhantomData }.wait()?;
            }
            result
        };
        Ok(result)
    }
}
