//! Works: calls that go on while their caller does something else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_comm::Work;

use crate::error::brigade_result_t::{BRIGADE_IN_PROGRESS, BRIGADE_SUCCESS};
use crate::error::{Outcome, brigade_result_t, enter, enter_for};
use crate::handle::{Noun, close, pin};
use crate::thread;

/// Calls in flight. What is inside is nobody's.
pub struct brigade_work {
    _nobody: (),
}

/// A handle of calls in flight. Functions that carry out calls take a pointer to one last, where
/// NCCL's take a stream: with NULL they return when the call is done; else they return at once,
/// and the memory of the call belongs to it until brigade_work_test or brigade_work_wait tells its
/// end.
pub type brigade_work_t = *mut brigade_work;

/// What stands behind a handle.
pub(crate) struct Works(pub(crate) Vec<Work<'static>>);

impl Noun for Works {
    const KIND: u8 = 2;
    const NAME: &'static str = "work";
}

/// How the work ended; BRIGADE_IN_PROGRESS if it has not.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_work_test(work: brigade_work_t) -> brigade_result_t {
    enter_for(|| {
        let works = pin::<Works>(work.addr() as u64)?;
        if works.0.iter().all(Work::is_done) {
            works.wait().map(|()| BRIGADE_SUCCESS)
        } else {
            Ok(BRIGADE_IN_PROGRESS)
        }
    })
}

/// Wait for the end of the work, at most `timeout_ms`, or as long as it takes if that is negative.
/// Returns how it ended, or BRIGADE_IN_PROGRESS if it has not: then it goes on. A call ends at its
/// own deadline (BRIGADE_TIMEOUT_MS) at the latest.
///
/// Threads: from any thread, also from several at once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_work_wait(
    work: brigade_work_t,
    timeout_ms: i64,
) -> brigade_result_t {
    enter_for(|| {
        thread::refuse_in_operator()?;
        let works = pin::<Works>(work.addr() as u64)?;
        let Ok(timeout_ms) = u64::try_from(timeout_ms) else {
            return works.wait().map(|()| BRIGADE_SUCCESS);
        };
        let timeout = Duration::from_millis(timeout_ms);
        let begun = Instant::now();
        for one in &works.0 {
            if one.wait_for(timeout.saturating_sub(begun.elapsed())).is_none() {
                return Ok(BRIGADE_IN_PROGRESS);
            }
        }
        works.wait().map(|()| BRIGADE_SUCCESS)
    })
}

/// End a handle. Work that has not ended goes on, and still needs its memory.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_work_free(work: brigade_work_t) -> brigade_result_t {
    enter(|| close::<Works>(work.addr() as u64))
}

impl Works {
    /// Wait for all, and then tell the first error.
    pub(crate) fn wait(&self) -> Outcome {
        let mut outcome = Ok(());
        for one in &self.0 {
            outcome = outcome.and(one.wait());
        }
        Ok(outcome?)
    }
}

/// A handle for works. If there is none to be had, they are waited for: nobody else could.
pub(crate) fn register(works: Works) -> Outcome<brigade_work_t> {
    let works = Arc::new(works);
    let handle = crate::handle::register(Arc::clone(&works));
    let handle = handle.inspect_err(|_| {
        // The want of a handle is what is told; it came first.
        let _ended = works.wait();
    })?;
    Ok(std::ptr::without_provenance_mut(handle as usize))
}
