//! What the system knows of the calling thread: whether it runs behind others.

use std::cell::Cell;

/// Let the calling thread run behind others: it has its share of a core, but when it is woken it
/// does not interrupt who computes there. Whoever chose another policy than the usual one keeps it.
pub(crate) fn run_behind() {
    // SAFETY: both calls are about the calling thread; the parameter is read while the call lasts.
    // Where they fail, the thread runs as it did.
    unsafe {
        if libc::sched_getscheduler(0) == libc::SCHED_OTHER {
            let parameter = libc::sched_param { sched_priority: 0 };
            libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameter);
        }
    }
}

/// Whether the calling thread runs behind others. The system is asked once a thread.
#[inline]
pub(crate) fn runs_behind() -> bool {
    thread_local!(static BEHIND: Cell<Option<bool>> = const { Cell::new(None) });
    BEHIND.with(|known| match known.get() {
        Some(behind) => behind,
        None => {
            // SAFETY: the call is about the calling thread and touches no memory.
            let policy = unsafe { libc::sched_getscheduler(0) };
            let behind = policy == libc::SCHED_BATCH || policy == libc::SCHED_IDLE;
            known.set(Some(behind));
            behind
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_behind_others_and_knows_it() {
        let there = || {
            run_behind();
            runs_behind()
        };
        assert!(std::thread::spawn(there).join().expect("a thread"));
        assert!(!std::thread::spawn(runs_behind).join().expect("a thread"));
    }
}
