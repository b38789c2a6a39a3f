//! Calls that run while their caller does something else.
//!
//! [`Communicator::scope`] works like `std::thread::scope`: buffers are borrowed for the scope, and
//! the scope does not end before every call in it has. The calls of a communicator run in order,
//! one after the other, on a progress thread of its own that is started by the first such call.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use brigade_schedule::Collective;

use crate::call::{Buffers, Call};
use crate::communicator::{Communicator, Shared};
use crate::dtype::Element;
use crate::{Error, Op};

/// A call in flight.
#[derive(Clone)]
pub struct Work<'scope> {
    outcome: Arc<Outcome>,
    scope: PhantomData<&'scope ()>,
}

/// What became of a call, and a way to wait for it.
#[derive(Default)]
struct Outcome {
    result: Mutex<Option<Result<(), Error>>>,
    done: Condvar,
}

impl Work<'_> {
    /// Whether the call has ended, well or not.
    pub fn is_done(&self) -> bool {
        lock(&self.outcome.result).is_some()
    }

    /// Wait for the end of the call. It ends at its deadline at the latest.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub fn wait(&self) -> Result<(), Error> {
        let mut result = lock(&self.outcome.result);
        loop {
            if let Some(result) = &*result {
                return result.clone();
            }
            result = self.outcome.done.wait(result).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wait for the end of the call, but no longer than `timeout`: `None` if it still goes on.
    ///
    /// # Errors
    ///
    /// Those of the call.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<(), Error>> {
        // A point in time that cannot be told is too far away to come.
        let Some(deadline) = Instant::now().checked_add(timeout) else { return Some(self.wait()) };
        let mut result = lock(&self.outcome.result);
        loop {
            if let Some(result) = &*result {
                return Some(result.clone());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let woken = self.outcome.done.wait_timeout(result, left);
            result = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What the progress thread does for a call.
pub(crate) type Body<'a> = Box<dyn FnOnce(&Shared) -> Result<(), Error> + Send + 'a>;

/// A call on its way to the progress thread.
pub(crate) struct Job {
    run: Body<'static>,
    outcome: Arc<Outcome>,
}

/// The progress thread of a communicator and what it has to do.
#[derive(Default)]
pub(crate) struct Progress {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// Jobs that are queued or being done. Written under the lock; a blocking call only looks.
    unsettled: AtomicUsize,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Queue a job, starting the thread if there is none. If that fails the job is not queued.
    fn submit(&self, shared: &Arc<Shared>, job: Job) -> Result<(), Error> {
        let mut queue = lock(&self.queue);
        if queue.thread.is_none() {
            let weak = Arc::downgrade(shared);
            let progress = Arc::clone(&shared.progress);
            let body = move || progress.serve(&weak);
            let name = format!("brigade-{}", shared.rank);
            let thread = std::thread::Builder::new().name(name).spawn(body).map_err(|error| {
                Error::invalid(format!(
                    "no thread can be started for calls in a scope: {error}; make calls that \
                     block, or raise the limit on processes"
                ))
            });
            queue.thread = Some(thread?);
        }
        queue.jobs.push_back(job);
        self.unsettled.fetch_add(1, Ordering::Relaxed);
        drop(queue);
        self.changed.notify_all();
        Ok(())
    }

    fn serve(&self, shared: &std::sync::Weak<Shared>) {
        loop {
            let mut queue = lock(&self.queue);
            let job = loop {
                if let Some(job) = queue.jobs.pop_front() {
                    break job;
                }
                if queue.closed {
                    return;
                }
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            // Whoever queued the job waits for it within the communicator's lifetime.
            if let Some(shared) = shared.upgrade() {
                let run = AssertUnwindSafe(|| (job.run)(&shared));
                // The panic of an operator has been printed; whoever waits gets an error of it.
                let result = catch_unwind(run).unwrap_or_else(|_| Err(shared.broken()));
                *lock(&job.outcome.result) = Some(result);
            }
            self.settle();
            job.outcome.done.notify_all();
            self.changed.notify_all();
        }
    }

    /// One job is done.
    fn settle(&self) {
        let _queue = lock(&self.queue);
        self.unsettled.fetch_sub(1, Ordering::Release);
    }

    /// Wait until nothing is queued, so that a blocking call keeps its place in the order.
    #[inline]
    pub(crate) fn drain(&self) {
        if self.unsettled.load(Ordering::Acquire) > 0 {
            self.wait_for_queue();
        }
    }

    #[cold]
    fn wait_for_queue(&self) {
        let mut queue = lock(&self.queue);
        while self.unsettled.load(Ordering::Acquire) > 0 {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// End the thread; everything queued has been waited for.
    pub(crate) fn close(&self) {
        let thread = {
            let mut queue = lock(&self.queue);
            queue.closed = true;
            queue.thread.take()
        };
        self.changed.notify_all();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic there has already been printed, and there is nobody to hand it to.
            let _ = thread.join();
        }
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
    /// [`Error::Invalid`] at once; everything else when the work is waited for.
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
    /// [`Error::Invalid`] at once; everything else when the work is waited for.
    pub fn start(
        &'scope self,
        call: Call,
        buffers: Buffers<'scope>,
    ) -> Result<Work<'scope>, Error> {
        call.validate(self.shared.ranks)?;
        let run = move |shared: &Shared| shared.run_now(&call, buffers).map_err(|error| *error);
        let mut started = lock(&self.started);
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
unsafe fn submit(shared: &Arc<Shared>, run: Body<'_>) -> Result<Arc<Outcome>, Error> {
    let outcome = Arc::new(Outcome::default());
    // SAFETY: only the lifetime of the box changes, and the caller vouches for what it borrows.
    let run = unsafe { std::mem::transmute::<Body<'_>, Body<'static>>(run) };
    shared.progress.submit(shared, Job { run, outcome: Arc::clone(&outcome) })?;
    Ok(outcome)
}

impl Communicator {
    /// Start a call whose buffers the compiler cannot watch over, as those of other languages.
    /// Where it can, use [`Communicator::scope`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] at once; everything else when the work is waited for.
    ///
    /// # Safety
    ///
    /// Until the work is done the buffers exist, nobody writes to what is read, and nobody touches
    /// what is written. Dropping the work or the communicator does not end the call early.
    pub unsafe fn start(&self, call: Call, buffers: Buffers<'_>) -> Result<Work<'static>, Error> {
        call.validate(self.shared().ranks)?;
        let run = move |shared: &Shared| shared.run_now(&call, buffers).map_err(|error| *error);
        // SAFETY: the caller's promise.
        unsafe { self.start_body(Box::new(run)) }
    }

    /// Start what a call does.
    ///
    /// # Safety
    ///
    /// As for [`Communicator::start`], of all that the body borrows.
    pub(crate) unsafe fn start_body(&self, run: Body<'_>) -> Result<Work<'static>, Error> {
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
                for outcome in std::mem::take(&mut *lock(self.0)) {
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
            let started = lock(&scope.started).clone();
            for outcome in started {
                Work { outcome, scope: PhantomData }.wait()?;
            }
            result
        };
        Ok(result)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
