//! Threads for functions of the caller's that run when a call has ended.
//!
//! Such a function may do all that any thread may, also call collectives of the same communicator
//! and wait for them, or for what another such function does. So it runs neither on the progress
//! thread, which must carry out what it waits for, nor behind another one: if no thread is free
//! there will be one more. Threads that were made stay until the communicator ends.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::locked::locked;

type Function = Box<dyn FnOnce() + Send>;

/// The threads of one communicator, and what they have to do.
#[derive(Default)]
pub(crate) struct Callbacks {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    due: VecDeque<Function>,
    /// Functions that are not due yet.
    promised: usize,
    threads: usize,
    /// Threads with nothing to do.
    idle: usize,
    /// Whether threads end when nothing is due or promised.
    closed: bool,
}

thread_local! {
    /// Whose thread this is, by address.
    static SERVES: Cell<*const Callbacks> = const { Cell::new(std::ptr::null()) };
}

impl Callbacks {
    /// Threads that nobody will close: they end as soon as they have nothing to do.
    pub(super) fn unattended() -> Arc<Self> {
        let queue = Mutex::new(Queue { closed: true, ..Queue::default() });
        Arc::new(Self { queue, changed: Condvar::new() })
    }

    /// A function will be due. There will be a thread to run it.
    pub(super) fn promise(self: &Arc<Self>) -> io::Result<()> {
        let mut queue = locked(&self.queue);
        if queue.threads == 0 {
            self.one_more(&mut queue)?;
        }
        queue.promised += 1;
        Ok(())
    }

    /// A function that was promised is due.
    pub(super) fn run(self: &Arc<Self>, function: Function) {
        let mut queue = locked(&self.queue);
        queue.promised -= 1;
        queue.due.push_back(function);
        if queue.due.len() > queue.idle {
            // If there can be no more threads, those that there are will come to it.
            let _one_more = self.one_more(&mut queue);
        }
        drop(queue);
        self.changed.notify_all();
    }

    fn one_more(self: &Arc<Self>, queue: &mut Queue) -> io::Result<()> {
        let callbacks = Arc::clone(self);
        let thread = std::thread::Builder::new().name("brigade-done".into());
        thread.spawn(move || callbacks.serve())?;
        queue.threads += 1;
        Ok(())
    }

    fn serve(&self) {
        SERVES.set(self);
        let mut queue = locked(&self.queue);
        loop {
            if let Some(function) = queue.due.pop_front() {
                drop(queue);
                // A panic has been printed, and there is nobody to hand it to.
                let _panic = catch_unwind(AssertUnwindSafe(function));
                queue = locked(&self.queue);
                continue;
            }
            if queue.closed && queue.promised == 0 {
                break;
            }
            queue.idle += 1;
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
        queue.threads -= 1;
        drop(queue);
        self.changed.notify_all();
    }

    /// End the threads once everything promised is done, and wait for that, but no longer than
    /// `timeout`, and not at all on one of them.
    pub(crate) fn close(&self, timeout: Duration) {
        let mut queue = locked(&self.queue);
        queue.closed = true;
        self.changed.notify_all();
        let begun = Instant::now();
        while queue.threads > 0 && !std::ptr::eq(SERVES.get(), self) {
            let Some(left) = timeout.checked_sub(begun.elapsed()) else { return };
            let woken = self.changed.wait_timeout(queue, left);
            queue = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
