//! Threads that live on between passes, so that a pass costs a wake-up and not a thread.
//!
//! Plainly: `for part in parts { work(part) }`. Deviations: (1) the parts are claimed one by one by
//! all threads and the caller, so a core that is busy elsewhere does less; (2) a thread that comes
//! late finds the gate closed, and nobody waits for it: measured on a busy machine, waiting for all
//! to have looked cost more than starting a thread; (3) the threads look for work for some
//! microseconds after a pass before they sleep, because the next one often follows at once;
//! (4) nothing is allocated: the parts lie with the caller.
//!
//! The caller waits for its threads without a deadline: they run nothing but the work it brought.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
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
    /// Which pass it is, whether it is open, and how many workers are inside: see [`Gate`].
    gate: AtomicU64,
    /// Written by the caller while the gate is closed and nobody inside; read by workers inside.
    task: UnsafeCell<Task>,
    /// The next part that nobody has claimed.
    next: AtomicUsize,
    has_panicked: AtomicBool,
    is_over: AtomicBool,
}

/// A value of the gate: the number of the pass, a bit that says it is open, the workers inside.
#[derive(Clone, Copy)]
struct Gate(u64);

/// Work on parts, with its types erased.
#[derive(Clone, Debug)]
struct Task {
    work: *const (),
    parts: *mut (),
    count: usize,
    /// # Safety
    /// `work` and `parts` are those of this task and still borrowed by its caller; the index is
    /// below `count`, and nobody else ever gets the same one in this pass.
    call: unsafe fn(*const (), *mut (), usize),
    caller: Option<Thread>,
}

// SAFETY: the pointers in a task come from references that may be sent (see the bounds of `each`);
// the protocol of the gate keeps the only write of `task` apart from its reads.
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
            gate: AtomicU64::new(0),
            task: UnsafeCell::new(Task::nothing()),
            next: AtomicUsize::new(0),
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
        // SAFETY: the gate is closed and nobody is inside since the last pass was waited for, so no
        // worker reads the task.
        unsafe { *shared.task.get() = task.clone() };
        shared.next.store(0, Ordering::Relaxed);
        // A pass in which the caller panicked too has left this unread.
        shared.has_panicked.store(false, Ordering::Relaxed);
        shared.open();
        let inside = Inside(shared);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        shared.claim(&task);
        drop(inside);
        let has_panicked = shared.has_panicked.load(Ordering::Relaxed);
        assert!(!has_panicked, "work panicked on another thread of the crew");
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.open();
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what its work panics with, so there is nothing to learn here.
            let _ended = worker.join();
        }
    }
}

/// Closes the gate when dropped and waits for the workers inside: what they work on is borrowed,
/// panic or not.
struct Inside<'a>(&'a Shared);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.gate.fetch_and(!Gate::OPEN, Ordering::AcqRel);
        let inside = || Gate(self.0.gate.load(Ordering::Acquire)).inside();
        look_then_park(|| (inside() == 0).then_some(()));
    }
}

impl Gate {
    const OPEN: u64 = 1 << 15;
    const PASS: u64 = 1 << 16;

    fn pass(self) -> u64 {
        self.0 / Self::PASS
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn inside(self) -> u64 {
        self.0 % Self::OPEN
    }
}

impl Task {
    fn nothing() -> Self {
        let (work, parts) = (std::ptr::null(), std::ptr::null_mut());
        Self { work, parts, count: 0, call: |_, _, _| {}, caller: None }
    }
}

impl Shared {
    /// Begin a pass. Nobody is inside, so nobody else changes the gate.
    fn open(&self) {
        let pass = Gate(self.gate.load(Ordering::Relaxed)).pass() + 1;
        self.gate.store(pass * Gate::PASS + Gate::OPEN, Ordering::Release);
    }

    /// Go inside if the gate is open for a pass other than the last one; which pass it is.
    fn enter(&self, last: u64) -> Option<u64> {
        let mut seen = self.gate.load(Ordering::Relaxed);
        while Gate(seen).is_open() && Gate(seen).pass() != last {
            let (inside, order) = (seen + 1, Ordering::Acquire);
            match self.gate.compare_exchange_weak(seen, inside, order, Ordering::Relaxed) {
                Ok(_) => return Some(Gate(seen).pass()),
                Err(now) => seen = now,
            }
        }
        None
    }

    /// The life of a worker.
    fn work(&self) {
        let mut last = 0;
        loop {
            last = look_then_park(|| self.enter(last));
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: this worker is inside, and the caller writes the next task only when nobody
            // is.
            let task = unsafe { (*self.task.get()).clone() };
            if catch_unwind(AssertUnwindSafe(|| self.claim(&task))).is_err() {
                self.has_panicked.store(true, Ordering::Relaxed);
            }
            let before = Gate(self.gate.fetch_sub(1, Ordering::AcqRel));
            if before.inside() == 1
                && !before.is_open()
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
            // SAFETY: the caller of `each` waits for who is inside, so what it lent is still there;
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

/// Look until there is something. Somebody unparks this thread after having put it there.
fn look_then_park<T>(look: impl Fn() -> Option<T>) -> T {
    for _ in 0..LOOKS {
        if let Some(found) = look() {
            return found;
        }
        std::hint::spin_loop();
    }
    loop {
        if let Some(found) = look() {
            return found;
        }
        std::thread::park();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn every_part_is_worked_on_once_by_any_number_of_threads() {
        for threads in [0, 1, 2, 3, 8] {
            let mut crew = Crew::new(threads).expect("there are threads");
            assert_eq!(crew.threads(), threads.max(1));
            for count in [0, 1, 2, 63, 64] {
                let mut parts = vec![0; count];
                for round in 1..=500 {
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

    /// Part by part, on as many threads as there are parts: each waits for all others to begin.
    fn all_at_once(crew: &mut Crew, work: impl Fn() + Sync) {
        let (begun, deadline) = (AtomicUsize::new(0), Instant::now() + Duration::from_secs(30));
        let mut parts = vec![(); crew.threads()];
        let count = parts.len();
        crew.each(&mut parts, |()| {
            begun.fetch_add(1, Ordering::Relaxed);
            while begun.load(Ordering::Relaxed) < count {
                assert!(Instant::now() < deadline, "a thread never came");
                std::thread::yield_now();
            }
            work();
        });
    }

    #[test]
    fn all_threads_work_at_once_pass_after_pass() {
        for threads in [2, 3, 5] {
            let mut crew = Crew::new(threads).expect("there are threads");
            for _ in 0..100 {
                all_at_once(&mut crew, || {});
            }
        }
    }

    #[test]
    fn a_panic_on_another_thread_is_heard_by_the_caller() {
        let (mut crew, caller) = (Crew::new(3).expect("there are threads"), std::thread::current());
        for _ in 0..20 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let is_caller = || std::thread::current().id() == caller.id();
                all_at_once(&mut crew, || assert!(is_caller(), "as the test asks"));
            }));
            let why = outcome.expect_err("two threads panicked");
            let why = why.downcast_ref::<&str>().expect("a sentence");
            assert_eq!(*why, "work panicked on another thread of the crew");
            let everywhere = AssertUnwindSafe(|| all_at_once(&mut crew, || panic!("as asked")));
            assert!(catch_unwind(everywhere).is_err());
            all_at_once(&mut crew, || {});
        }
    }
}
