//! The engine for machines where io_uring is forbidden: threads that each move a block at a time.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::engine::{Completion, Engine, Transfer};
use super::kind::Kind;
use super::sys;
use super::wake::Wake;

/// A pool of threads. Transfers beyond their number wait in order.
pub(super) struct Threads {
    shared: Arc<Shared>,
    count: usize,
    why: String,
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    work: Condvar,
    done: Mutex<Done>,
    completed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Transfer>,
    is_over: bool,
}

#[derive(Default)]
struct Done {
    completions: Vec<Completion>,
    is_rung: bool,
}

impl Threads {
    /// `count` threads. `why` says why it is these and not io_uring.
    ///
    /// Errors: the system gives no thread.
    pub(super) fn new(count: usize, why: String) -> Result<Self, String> {
        let engine = Self { shared: Arc::new(Shared::default()), count, why };
        for _ in 0..count {
            let shared = Arc::clone(&engine.shared);
            std::thread::Builder::new()
                .name("brigade-blocks".into())
                .spawn(move || shared.work())
                .map_err(|e| format!("no threads for storage: {e}"))?;
        }
        Ok(engine)
    }
}

impl Engine for Threads {
    fn push(&mut self, transfer: Transfer) {
        lock(&self.shared.jobs).waiting.push_back(transfer);
        self.shared.work.notify_one();
    }

    fn turn(
        &mut self,
        limit: Duration,
        _together: usize,
        done: &mut Vec<Completion>,
    ) -> Result<(), String> {
        let state = lock(&self.shared.done);
        let is_nothing = |state: &mut Done| state.completions.is_empty() && !state.is_rung;
        let (mut state, _) = self
            .shared
            .completed
            .wait_timeout_while(state, limit, is_nothing)
            .unwrap_or_else(PoisonError::into_inner);
        state.is_rung = false;
        done.append(&mut state.completions);
        Ok(())
    }

    fn forget(&mut self, _file_id: u32) {}

    fn bell(&self) -> Arc<dyn Wake> {
        Arc::clone(&self.shared) as Arc<dyn Wake>
    }

    fn describe(&self) -> String {
        format!("{} threads ({})", self.count, self.why)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // They are not joined: one of them may be held by a device that never answers. The others
        // end now, and what they hold ends with them.
        lock(&self.shared.jobs).is_over = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let jobs = lock(&self.jobs);
            let mut jobs = self
                .work
                .wait_while(jobs, |jobs| jobs.waiting.is_empty() && !jobs.is_over)
                .unwrap_or_else(PoisonError::into_inner);
            // Whoever waited for what was not begun has been told that it never will be.
            let Some(transfer) = jobs.waiting.pop_front().filter(|_| !jobs.is_over) else { return };
            drop(jobs);
            let result = run(&transfer).map_err(|e| e.raw_os_error().unwrap_or(libc::EIO));
            lock(&self.done).completions.push(Completion { token: transfer.token, result });
            self.completed.notify_one();
        }
    }
}

impl Wake for Shared {
    fn wake(&self) {
        lock(&self.done).is_rung = true;
        self.completed.notify_one();
    }
}

fn run(transfer: &Transfer) -> std::io::Result<usize> {
    if transfer.file.namespace().is_some() {
        // Commands to a drive go by io_uring only.
        return Err(std::io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    let descriptor = transfer.file.descriptor(transfer.is_direct);
    match (transfer.kind, transfer.window) {
        (Kind::Read, Some(window)) => sys::read_at(descriptor, window, transfer.offset),
        (Kind::Write, Some(window)) => sys::write_at(descriptor, window, transfer.offset),
        _ => sys::sync_data(descriptor).map(|()| 0),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // All of these are changed by code that does not panic between its lines.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
