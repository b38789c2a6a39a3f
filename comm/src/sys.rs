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
/// on as many as before. A few microseconds where the other core is free; an error leaves it where
/// it was.
pub(crate) fn step_aside() -> io::Result<()> {
    let (here, before) = (current_core()?, affinity()?);
    let mut others = before;
    // SAFETY: a core on which we run is one of those for which the set has bits.
    unsafe { libc::CPU_CLR(here, &mut others) };
    // SAFETY: the call only counts bits.
    if unsafe { libc::CPU_COUNT(&others) } == 0 {
        return Ok(());
    }
    set_affinity(&others)?;
    if affinity().is_ok_and(|now| !is_same(&now, &others)) {
        // Somebody else has bound this thread meanwhile.
        return Ok(());
    }
    // The system remembers what was asked for, and holds a thread to that when its control group is
    // given more cores. Who asked for nothing is to go on asking for nothing.
    // SAFETY: a set of cores is a plain array of bits, of which all may be set.
    let any: libc::cpu_set_t = unsafe { std::mem::transmute([0xff_u8; SET_BYTES]) };
    match set_affinity(&any).and_then(|()| affinity()) {
        Ok(now) if is_same(&now, &before) => Ok(()),
        _ => set_affinity(&before),
    }
}

/// The core on which the calling thread runs.
fn current_core() -> io::Result<usize> {
    // SAFETY: the call takes nothing and touches no memory.
    Ok(check(unsafe { libc::sched_getcpu() })?.cast_unsigned() as usize)
}

const SET_BYTES: usize = size_of::<libc::cpu_set_t>();

/// The cores that the calling thread may run on.
fn affinity() -> io::Result<libc::cpu_set_t> {
    // SAFETY: a set of cores is a plain array of bits, for which zero is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most so many bytes, and the set has as many.
    check(unsafe { libc::sched_getaffinity(0, SET_BYTES, &mut set) })?;
    Ok(set)
}

fn set_affinity(set: &libc::cpu_set_t) -> io::Result<()> {
    // SAFETY: the kernel reads so many bytes of a set that lives while the call lasts.
    check(unsafe { libc::sched_setaffinity(0, SET_BYTES, set) }).map(drop)
}

fn is_same(a: &libc::cpu_set_t, b: &libc::cpu_set_t) -> bool {
    // SAFETY: the call only compares bits.
    unsafe { libc::CPU_EQUAL(a, b) }
}

fn check(code: libc::c_int) -> io::Result<libc::c_int> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_steps_aside_is_elsewhere_then_and_may_come_back() {
        use brigade_transports::Cores;
        let there = || {
            let core = || current_core().expect("a core");
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
    fn who_was_bound_to_some_cores_is_bound_to_no_others_afterwards() {
        let there = || {
            let mut bound = affinity().expect("cores of our own");
            // SAFETY: the calls only look at bits, of which there are so many, or clear one.
            unsafe {
                let all = 0..8 * SET_BYTES;
                let last = all.rev().find(|core| libc::CPU_ISSET(*core, &bound));
                libc::CPU_CLR(last.expect("a core"), &mut bound);
                if libc::CPU_COUNT(&bound) == 0 {
                    return;
                }
            }
            set_affinity(&bound).expect("cores of our own");
            step_aside().expect("cores of our own");
            assert!(is_same(&affinity().expect("cores of our own"), &bound));
        };
        std::thread::spawn(there).join().expect("a thread");
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
