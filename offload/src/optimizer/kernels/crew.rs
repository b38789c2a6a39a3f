//! Threads that live on between passes, so that a pass costs a wake-up and not a thread.
//!
//! Plainly: `for part in parts { work(part) }`. Deviations: (1) the parts are claimed one by one by
//! all threads and the caller, so a core that is busy elsewhere does less and delays nobody;
//! (2) the threads look for work for some microseconds after a pass before they sleep, because the
//! next one often follows at once; (3) nothing is allocated: the parts lie with the caller.
//!
//! The caller waits for its threads without a deadline: they run nothing but the work it brought.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::{JoinHandle, Thread};

use super::Isa;

/// How often a thread looks again before it sleeps: about 20 µs.
const LOOKS: u32 = 1000;

/// Some threads, and the instruction set that kernels on them use. One pass at a time.
///
/// Dropping it ends the threads.
#[derive(Debug)]
pub struct Crew {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    isa: Isa,
}

#[derive(Debug)]
struct Shared {
    /// Counts passes; a change publishes `task`.
    round: AtomicU32,
    /// Written by the caller while `busy` is 0; read by workers while it is not.
    task: UnsafeCell<Task>,
    /// The next part that nobody has claimed.
    next: AtomicUsize,
    /// Workers that have not finished this round.
    busy: AtomicUsize,
    has_panicked: AtomicBool,
    is_over: AtomicBool,
}

/// Work on parts, with its types erased.
#[derive(Clone, Debug)]
struct Task {
    work: *const (),
    parts: *mut (),
    count: usize,
    /// # Safety
    /// `work` and `parts` are those of this task and still borrowed by its caller; the index is
    /// below `count`, and nobody else ever gets the same one in this round.
    call: unsafe fn(*const (), *mut (), usize),
    caller: Option<Thread>,
}

// SAFETY: the pointers in a task come from references that may be sent (see the bounds of `each`);
// the protocol of `round` and `busy` keeps the only write of `task` apart from its reads.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Crew {
    /// As many threads as `threads`, the caller's own counted, and the best instruction set.
    ///
    /// # Errors
    /// When the system has no more threads.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        Self::start(threads, Isa::best())
    }

    /// [`new`](Self::new) with an instruction set for tests and measurements.
    ///
    /// # Errors
    /// When the system has no more threads, or the machine lacks the instruction set.
    pub fn with_isa(threads: usize, isa: Isa) -> std::io::Result<Self> {
        if !isa.is_available() {
            let what = format!("this machine has no {isa:?}");
            return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, what));
        }
        Self::start(threads, isa)
    }

    fn start(threads: usize, isa: Isa) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            round: AtomicU32::new(0),
            task: UnsafeCell::new(Task::nothing()),
            next: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            has_panicked: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let mut crew = Self { shared, workers: Vec::new(), isa };
        for number in 1..threads {
            let shared = Arc::clone(&crew.shared);
            let name = format!("brigade-crew-{number}");
            let worker = std::thread::Builder::new().name(name);
            // Those that exist already end when `crew` is dropped.
            crew.workers.push(worker.spawn(move || shared.work())?);
        }
        Ok(crew)
    }

    /// Threads, the caller's own counted.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// The instruction set that kernels on these threads use; this machine has it.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Call `work` once for each part, on all threads, and return when all calls have.
    ///
    /// # Panics
    /// When `work` panics on any of them.
    pub(in crate::optimizer) fn each<T: Send, F: Fn(&mut T) + Sync>(
        &mut self,
        parts: &mut [T],
        work: F,
    ) {
        if self.workers.is_empty() || parts.len() < 2 {
            return parts.iter_mut().for_each(work);
        }
        let shared = &*self.shared;
        let task = Task {
            work: (&raw const work).cast(),
            parts: parts.as_mut_ptr().cast(),
            count: parts.len(),
            call: call::<T, F>,
            caller: Some(std::thread::current()),
        };
        // SAFETY: `busy` is 0, as the last round was waited for, so no worker reads the task.
        unsafe { *shared.task.get() = task.clone() };
        shared.next.store(0, Ordering::Relaxed);
        shared.busy.store(self.workers.len(), Ordering::Relaxed);
        shared.round.fetch_add(1, Ordering::Release);
        let rest = Rest(shared);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        shared.claim(&task);
        drop(rest);
        let has_panicked = shared.has_panicked.swap(false, Ordering::Relaxed);
        assert!(!has_panicked, "work panicked on another thread of the crew");
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.round.fetch_add(1, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what its work panics with, so there is nothing to learn here.
            let _ended = worker.join();
        }
    }
}

/// Waits for the workers when dropped: what they work on is borrowed, panic or not.
struct Rest<'a>(&'a Shared);

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        let is_done = || self.0.busy.load(Ordering::Acquire) == 0;
        look_then_park(is_done);
    }
}

impl Task {
    fn nothing() -> Self {
        let (work, parts) = (std::ptr::null(), std::ptr::null_mut());
        Self { work, parts, count: 0, call: |_, _, _| {}, caller: None }
    }
}

impl Shared {
    /// The life of a worker.
    fn work(&self) {
        let mut seen = 0;
        loop {
            look_then_park(|| self.round.load(Ordering::Acquire) != seen);
            seen = seen.wrapping_add(1);
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: the caller published the task before the round, and writes the next one only
            // when `busy` is 0, to which this worker still contributes.
            let task = unsafe { (*self.task.get()).clone() };
            if catch_unwind(AssertUnwindSafe(|| self.claim(&task))).is_err() {
                self.has_panicked.store(true, Ordering::Relaxed);
            }
            if self.busy.fetch_sub(1, Ordering::AcqRel) == 1
                && let Some(caller) = task.caller
            {
                caller.unpark();
            }
        }
    }

    /// Work on parts until none is left.
    fn claim(&self, task: &Task) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= task.count {
                return;
            }
            // SAFETY: the caller of `each` waits for this round, so what it lent is still there;
            // `fetch_add` gives each index once.
            unsafe { (task.call)(task.work, task.parts, index) };
        }
    }
}

/// # Safety
/// `work` is an `F` and `parts` are some `T`, both borrowed; see `Task::call`.
unsafe fn call<T: Send, F: Fn(&mut T) + Sync>(work: *const (), parts: *mut (), index: usize) {
    // SAFETY: the caller's promise: nobody else refers to this part, and sharing `work` is allowed
    // by its bound.
    unsafe { (*work.cast::<F>())(&mut *parts.cast::<T>().add(index)) }
}

/// Wait until `is_so`. Somebody unparks this thread after having made it so.
fn look_then_park(is_so: impl Fn() -> bool) {
    for _ in 0..LOOKS {
        if is_so() {
            return;
        }
        std::hint::spin_loop();
    }
    while !is_so() {
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_worked_on_once_by_any_number_of_threads() {
        for threads in [0, 1, 2, 3, 8] {
            let mut crew = Crew::new(threads).expect("there are threads");
            assert_eq!(crew.threads(), threads.max(1));
            for count in [0, 1, 2, 63, 64] {
                let mut parts = vec![0; count];
                for round in 1..=50 {
                    crew.each(&mut parts, |part| *part += 1);
                    assert!(parts.iter().all(|part| *part == round), "{threads} {parts:?}");
                }
            }
        }
    }

    #[test]
    fn a_panic_arrives_and_the_crew_goes_on() {
        let mut crew = Crew::new(4).expect("there are threads");
        for bad in 0..64 {
            let mut parts: Vec<usize> = (0..64).collect();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                crew.each(&mut parts, |part| assert_ne!(*part, bad, "as the test asks"));
            }));
            assert!(outcome.is_err(), "part {bad} panicked and nobody heard");
        }
        let mut parts = vec![0; 64];
        crew.each(&mut parts, |part| *part += 1);
        assert_eq!(parts, vec![1; 64]);
    }
}
