//! What the system knows of the calling thread: whether it runs behind others, and on which cores.

use std::cell::Cell;
use std::io;

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

/// Have the calling thread go on on another of its cores, if it has another. Afterwards it may run
/// on as many as before. A few microseconds; an error leaves it where it was.
pub(crate) fn step_aside() -> io::Result<()> {
    // SAFETY: a set of cores is a plain array of bits, for which zero is a valid value.
    let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let bytes = size_of::<libc::cpu_set_t>();
    let check = |code: libc::c_int| match code {
        0.. => Ok(code),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the kernel writes at most so many bytes, and the set has as many.
    check(unsafe { libc::sched_getaffinity(0, bytes, &mut all) })?;
    // SAFETY: the call takes nothing and touches no memory.
    let here = check(unsafe { libc::sched_getcpu() })?.cast_unsigned() as usize;
    let mut others = all;
    // SAFETY: a core on which we run is one of those for which the set has bits.
    unsafe { libc::CPU_CLR(here, &mut others) };
    // SAFETY: the call only counts bits.
    if unsafe { libc::CPU_COUNT(&others) } > 0 {
        for set in [&others, &all] {
            // SAFETY: the kernel reads so many bytes of a set that lives on this stack.
            check(unsafe { libc::sched_setaffinity(0, bytes, set) })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_steps_aside_is_elsewhere_then_and_may_come_back() {
        use brigade_transports::Cores;
        let there = || {
            // SAFETY: the call takes nothing and touches no memory.
            let core = || unsafe { libc::sched_getcpu() };
            let (cores, before) = (Cores::of_this_thread(), core());
            step_aside().expect("cores of our own");
            (before, core(), cores, Cores::of_this_thread())
        };
        // The system may bring it back at once.
        let tries = (0..100).map(|_| std::thread::spawn(there).join().expect("a thread"));
        let is_alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
        let mut gone = tries.inspect(|(.., before, after)| assert_eq!(before, after));
        assert!(is_alone || gone.any(|(before, after, ..)| before != after));
    }

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
