//! What becomes of memory that devices know: one watch for the whole process.
//!
//! A device goes on seeing the pages that an address had when it was registered. So whoever keeps
//! registrations must hear when memory is unmapped, emptied or moved, before somebody else gets the
//! same address. The kernel tells it through userfaultfd: watched memory is never protected and
//! never faults, but who changes it waits until its message has been read.
//!
//! * A thread reads messages into a journal, at once. It takes only the journal's lock, under which
//!   nobody allocates or frees: whoever frees may be the one that waits for the thread.
//! * A reader of the journal first asks whether a change is under way. If not, then each change of
//!   memory that could by now be somebody else's has been read, under the lock that it takes next.
//! * The thread closes the descriptor itself, last of all, so that nobody waits for nobody.
//! * A child made by fork is watched by nobody, and loses the descriptor.
//!
//! What it costs others: to free watched memory takes a message to the thread and back; a mapping
//! that is watched in part is two, which kernels before 6.17 do not move as one (`mremap`; the C
//! library then copies); and nobody else can use userfaultfd on it meanwhile.
//!
//! A range can be watched by one descriptor only. So there is one for all ranks of a process, and
//! ranges are counted: one that two of them watch is let go of by the second.

mod sys;

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::sys::Userfault;
use super::sys::Gong;

pub(super) use self::sys::{Change, page_bytes};
pub(super) use crate::forks::forks;

/// How many changes the journal remembers.
const JOURNAL: usize = 512;
/// How many are looked at at a time.
pub(super) const BATCH: usize = 32;
/// How long a change under way is waited for: about as long as a copy takes instead.
const SETTLES: Duration = Duration::from_micros(200);

/// What a reader of the journal learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// So many changes; there may be more if the batch is full.
    Changes(usize),
    /// More happened than the journal remembers: anything may have changed.
    Lost,
    /// A change is under way, so nobody can tell.
    Unsettled,
}

/// The watch over this process's memory. Ends with the last that holds it.
pub(super) struct Watch {
    /// Present until it is dropped.
    shared: Option<Arc<Shared>>,
    gong: Arc<Gong>,
    thread: Option<JoinHandle<()>>,
    /// What is watched, each range as often as somebody wants it.
    ranges: Mutex<Vec<Range<usize>>>,
    /// In which process.
    forks: u32,
}

struct Shared {
    userfault: Userfault,
    journal: Mutex<Journal>,
}

/// The latest changes, each at its number modulo their count.
struct Journal {
    changes: [Change; JOURNAL],
    count: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why memory cannot be watched, and what to do about it.
pub(super) fn why_not(error: &io::Error) -> String {
    let next = match error.raw_os_error() {
        Some(libc::EPERM) => {
            "allow it: in a container by a seccomp profile that has userfaultfd, elsewhere by \
             `sysctl vm.unprivileged_userfaultfd=1`"
        }
        Some(libc::ENOSYS) => "the kernel was built without it",
        Some(libc::EINVAL) => "it needs Linux 5.7 on x86-64, 6.10 on arm64",
        _ => "look at the limits of this process",
    };
    format!("userfaultfd: {error}; {next}")
}

/// Try whether memory can be watched. Errors: why not, and what to do.
pub(super) fn probe() -> Result<(), String> {
    Userfault::new().map(drop).map_err(|error| why_not(&error))
}

impl Watch {
    /// The watch, which is made if there is none.
    pub(super) fn of_this_process() -> io::Result<Arc<Watch>> {
        static CURRENT: Mutex<Weak<Watch>> = Mutex::new(Weak::new());
        let mut current = lock(&CURRENT);
        let alive = current.upgrade().filter(|watch| watch.forks == forks());
        if let Some(watch) = alive {
            return Ok(watch);
        }
        let watch = Arc::new(Watch::start()?);
        *current = Arc::downgrade(&watch);
        Ok(watch)
    }

    fn start() -> io::Result<Watch> {
        let mut watch = Watch::unattended()?;
        let (its, heard) = (watch.shared.clone(), Arc::clone(&watch.gong));
        let thread = std::thread::Builder::new()
            .name("brigade-unmap".into())
            .spawn(move || its.expect("it has just been made").run(&heard))?;
        watch.thread = Some(thread);
        Ok(watch)
    }

    /// One whose messages nobody reads yet.
    fn unattended() -> io::Result<Watch> {
        let nothing = Change::Unmapped { start: 0, end: 0 };
        let journal = Mutex::new(Journal { changes: [nothing; JOURNAL], count: 0 });
        let shared = Some(Arc::new(Shared { userfault: Userfault::new()?, journal }));
        let (gong, ranges) = (Arc::new(Gong::new()?), Mutex::default());
        Ok(Watch { shared, gong, thread: None, ranges, forks: forks() })
    }

    fn shared(&self) -> &Shared {
        self.shared.as_ref().expect("present until it is dropped")
    }

    /// How many changes there have been.
    pub(super) fn now(&self) -> u64 {
        lock(&self.shared().journal).count
    }

    /// Watch whole pages. Errors: they are of a kind that cannot be watched.
    pub(super) fn watch(&self, range: &Range<usize>) -> io::Result<()> {
        let mut ranges = lock(&self.ranges);
        self.shared().userfault.watch(range.start, range.len())?;
        ranges.push(range.clone());
        Ok(())
    }

    /// Watch a range once less, except for what of it is `gone` and may be anything by now.
    pub(super) fn unwatch(&self, range: &Range<usize>, gone: &[Range<usize>]) {
        let mut ranges = lock(&self.ranges);
        if let Some(index) = ranges.iter().position(|watched| watched == range) {
            ranges.swap_remove(index);
        }
        for piece in without(range, ranges.iter().chain(gone)) {
            // Refused where other things lie by now: then there is nothing to let go of.
            let _done = self.shared().userfault.unwatch(piece.start, piece.len());
        }
    }

    /// The next changes after the first `seen`, which goes on with them. What has returned from
    /// changing memory before this call is among them.
    pub(super) fn news(&self, seen: &mut u64, batch: &mut [Change; BATCH]) -> News {
        if !self.settle() {
            return News::Unsettled;
        }
        let journal = lock(&self.shared().journal);
        let unseen = journal.count - *seen;
        if unseen > JOURNAL as u64 {
            *seen = journal.count;
            return News::Lost;
        }
        let count = (unseen as usize).min(BATCH);
        for change in &mut batch[..count] {
            *change = journal.changes[*seen as usize % JOURNAL];
            *seen += 1;
        }
        News::Changes(count)
    }

    /// Wait until no change is under way that has not been read. Returns whether that came true.
    fn settle(&self) -> bool {
        let shared = self.shared();
        if !shared.userfault.is_changing() {
            return true;
        }
        let until = Instant::now() + SETTLES;
        while Instant::now() < until {
            shared.collect();
            if !shared.userfault.is_changing() {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The thread's share is then the last one, and it is the thread that closes.
        self.shared = None;
        self.gong.ring();
        // In a child there is no such thread.
        if let Some(thread) = self.thread.take().filter(|_| self.forks == forks()) {
            let outcome = thread.join();
            debug_assert!(outcome.is_ok(), "the watching thread does not panic");
        }
    }
}

impl Shared {
    fn run(self: Arc<Shared>, gong: &Gong) {
        sys::refuse_signals();
        loop {
            let is_over = sys::wait_for_either(self.userfault.as_fd(), gong.as_fd());
            if is_over.is_ok_and(|is_over| is_over) {
                return;
            }
            self.collect();
        }
    }

    /// Read what there is. Nothing is allocated or freed under the lock.
    fn collect(&self) {
        let mut journal = lock(&self.journal);
        self.userfault.read(|change| {
            let place = journal.count as usize % JOURNAL;
            journal.changes[place] = change;
            journal.count += 1;
        });
    }
}

/// What is left of a range without others.
pub(super) fn without<'a>(
    range: &Range<usize>,
    others: impl Iterator<Item = &'a Range<usize>>,
) -> Vec<Range<usize>> {
    let mut left = vec![range.clone()];
    for other in others {
        let mut pieces = Vec::with_capacity(left.len() + 1);
        for piece in left {
            let before = piece.start..piece.end.min(other.start);
            let after = piece.start.max(other.end)..piece.end;
            pieces.extend([before, after].into_iter().filter(|part| !part.is_empty()));
        }
        left = pieces;
    }
    left
}

#[cfg(test)]
pub(super) mod tests;
