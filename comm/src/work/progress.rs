//! The progress thread of a communicator: it carries out calls while their callers do something
//! else, in order, one after the other.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use super::callbacks::Callbacks;
use super::outcome::{Ending, Outcome};
use crate::Error;
use crate::locked::locked;
use crate::{interrupt, sys};

/// How often whoever waits for what is queued is asked whether to go on.
const ASK: Duration = Duration::from_millis(20);

/// What the progress thread does for a call on something.
pub(crate) type Body<'a, On> = Box<dyn FnOnce(&On) -> Ending + Send + 'a>;

/// A call on its way to the progress thread.
pub(super) struct Job<On> {
    pub(super) run: Body<'static, On>,
    /// Why what it is made on can be used no more, after a call that panicked.
    pub(super) broken: fn(&On) -> Error,
    pub(super) outcome: Arc<Outcome>,
}

/// The progress thread of a communicator and what it has to do. What calls are made `On`, it only
/// keeps from ending while it carries one out.
pub(crate) struct Progress<On> {
    queue: Mutex<Queue<On>>,
    changed: Condvar,
    /// Jobs that are queued or being done. Written under the lock; a blocking call only looks.
    unsettled: AtomicUsize,
    /// Where functions run that are to be called when a job has ended.
    pub(crate) callbacks: Arc<Callbacks>,
}

struct Queue<On> {
    jobs: VecDeque<Job<On>>,
    closed: bool,
    thread: Option<JoinHandle<()>>,
}

impl<On> Default for Progress<On> {
    fn default() -> Self {
        let queue = Queue { jobs: VecDeque::new(), closed: false, thread: None };
        Self {
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            unsettled: AtomicUsize::new(0),
            callbacks: Arc::default(),
        }
    }
}

impl<On: Send + Sync + 'static> Progress<On> {
    /// Queue a job of this rank, starting the thread if there is none. If that fails the job is not
    /// queued.
    pub(super) fn submit(
        self: &Arc<Self>,
        (on, rank): (&Arc<On>, u32),
        job: Job<On>,
    ) -> Result<(), Error> {
        let mut queue = locked(&self.queue);
        if queue.thread.is_none() {
            let weak = Arc::downgrade(on);
            let progress = Arc::clone(self);
            let body = move || progress.serve(&weak);
            let name = format!("brigade-{rank}");
            let thread = std::thread::Builder::new().name(name).spawn(body).map_err(|error| {
                Error::no_thread("thread for calls that go on: make calls that block", &error)
            });
            queue.thread = Some(thread?);
        }
        queue.jobs.push_back(job);
        self.unsettled.fetch_add(1, Ordering::Relaxed);
        drop(queue);
        self.changed.notify_all();
        Ok(())
    }

    fn serve(&self, on: &Weak<On>) {
        sys::run_behind();
        loop {
            let mut queue = locked(&self.queue);
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
            let Job { run, broken, outcome } = job;
            if let Some(on) = on.upgrade() {
                let run = AssertUnwindSafe(|| run(&on));
                // The panic of an operator has been printed; whoever waits gets an error of it.
                outcome.settle(catch_unwind(run).unwrap_or_else(|_| Err(broken(&on))));
            } else {
                // What it borrows may be freed as soon as it has ended.
                drop(run);
                let what = "the communicator ended before this call began";
                outcome.settle(Err(Error::invalid(what)));
            }
            self.settle();
            outcome.announce();
            self.changed.notify_all();
        }
    }

    /// One job is done.
    fn settle(&self) {
        let _queue = locked(&self.queue);
        self.unsettled.fetch_sub(1, Ordering::Release);
    }

    /// Wait until nothing is queued, so that a blocking call keeps its place in the order. Where
    /// this thread is asked to end it, `give_up` has to end what is queued.
    #[inline]
    pub(crate) fn drain(&self, give_up: impl Fn()) {
        if self.unsettled.load(Ordering::Acquire) > 0 {
            self.wait_for_queue(&give_up);
        }
    }

    #[cold]
    fn wait_for_queue(&self, give_up: &dyn Fn()) {
        let is_unsettled = |_: &mut Queue<On>| self.unsettled.load(Ordering::Acquire) > 0;
        loop {
            let queue = locked(&self.queue);
            let waited = self.changed.wait_timeout_while(queue, ASK, is_unsettled);
            if !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out() {
                return;
            }
            if interrupt::is_wanted() {
                give_up();
            }
        }
    }

    /// End the thread; everything queued is carried out first.
    pub(crate) fn close(&self) {
        let thread = {
            let mut queue = locked(&self.queue);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_job_whose_communicator_is_gone_ends() {
        let progress = Progress::<()>::default();
        let outcome = Outcome::new(Callbacks::unattended());
        let run = Box::new(|_: &()| unreachable!("there is nothing to run it on"));
        let broken = |_: &()| unreachable!("nothing panics");
        {
            let mut queue = locked(&progress.queue);
            queue.jobs.push_back(Job { run, broken, outcome: Arc::clone(&outcome) });
            queue.closed = true;
        }
        progress.unsettled.fetch_add(1, Ordering::Relaxed);
        progress.serve(&Weak::new());
        let ending = outcome.wait_for(Duration::ZERO).expect("it has ended");
        let error = ending.expect_err("it was not carried out").to_string();
        assert!(error.contains("ended before this call began"), "{error}");
        progress.drain(|| unreachable!("nobody asks"));
    }
}
