//! Works: calls that go on while their caller does something else.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use brigade_comm::device::DeviceWork;
use brigade_comm::{Event, Work};
use brigade_wall::failure::c_text;

use crate::error::brigade_result_t::{BRIGADE_IN_PROGRESS, BRIGADE_SUCCESS};
use crate::error::{Failure, Outcome, brigade_result_t, enter, enter_for};
use crate::on_device::OnDevice;
use crate::thread;
use brigade_wall::handle::{Noun, Reserved, close, pin};
use brigade_wall::pointer::Out;

/// Calls in flight. What is inside is nobody's.
pub struct brigade_work {
    _nobody: (),
}

/// A handle of calls in flight. Functions that carry out calls take a pointer to one last, where
/// NCCL's take a stream: with NULL they return when the call is done; else they return at once,
/// and the memory of the call belongs to it until brigade_work_test or brigade_work_wait tells its
/// end. Of all kinds of handles 65536 can be alive in a process.
pub type brigade_work_t = *mut brigade_work;

/// A function that is called when work has ended: `result` as brigade_work_wait would tell it, and
/// the whole sentence, empty after BRIGADE_SUCCESS and good until the function returns. It must
/// neither throw nor jump out.
pub type brigade_done_t = Option<
    unsafe extern "C" fn(result: brigade_result_t, sentence: *const c_char, user: *mut c_void),
>;

/// What stands behind a handle.
pub(crate) enum InFlight {
    /// Calls that were started.
    Started {
        work: Work<'static>,
        /// Made when it is first asked for.
        event: Mutex<Option<Event>>,
    },
    /// A place in a stream, and the group that it is of.
    Marked { work: DeviceWork, _group: Arc<OnDevice> },
}

impl Noun for InFlight {
    const KIND: u8 = 2;
    const NAME: &'static str = "work";
}

/// How the work ended; BRIGADE_IN_PROGRESS if it has not.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_work_test(work: brigade_work_t) -> brigade_result_t {
    enter_for(|| pin::<InFlight>(work.addr() as u64)?.wait(Some(Duration::ZERO)))
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
        let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        pin::<InFlight>(work.addr() as u64)?.wait(timeout)
    })
}

/// Call `done` once when the work has ended, well or not, which may be now. It runs on a thread
/// that the communicator keeps for such functions: never on the caller's, never on one that carries
/// calls out, and never behind another such function. So it may call collectives, also of the same
/// communicator, wait for works, and destroy the communicator. The handle of the work may be freed
/// before. brigade_comm_destroy waits for such functions (BRIGADE_TIMEOUT_MS at most), except in
/// one: a caller that holds a lock that they need lets go of it first. The handle of the
/// communicator ends before that, so whoever's function still calls something on it waits for that
/// before destroying.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_work_on_done(
    work: brigade_work_t,
    done: brigade_done_t,
    user: *mut c_void,
) -> brigade_result_t {
    enter(|| {
        let flight = pin::<InFlight>(work.addr() as u64)?;
        let done = done.ok_or_else(|| Failure::argument("done is NULL"))?;
        let user = User(user);
        let (work, _) = flight.calls()?;
        work.on_done(move |ending| {
            let (result, sentence) = match ending {
                Ok(()) => (BRIGADE_SUCCESS, String::new()),
                Err(error) => ((&error).into(), error.to_string()),
            };
            let sentence = c_text(&sentence);
            // SAFETY: the text is good until the function returns; the rest is C's promise.
            unsafe { done(result, sentence.as_ptr(), user.pointer()) };
        })?;
        Ok(())
    })
}

/// A file descriptor to poll (POLLIN, EPOLLIN): readable once the work has ended, well or not,
/// until somebody reads from it; what is read means nothing. The same one each time. It belongs to
/// the handle: brigade_work_free closes it.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_work_fd(work: brigade_work_t, fd: *mut c_int) -> brigade_result_t {
    enter(|| {
        let flight = pin::<InFlight>(work.addr() as u64)?;
        let out = Out::new(fd, "fd")?;
        let (work, event) = flight.calls()?;
        let mut event = event.lock().unwrap_or_else(PoisonError::into_inner);
        let event = match &mut *event {
            Some(event) => event,
            none => none.insert(work.event()?),
        };
        // SAFETY: C passes a place for it.
        unsafe { out.put(event.as_fd().as_raw_fd()) };
        Ok(())
    })
}

/// End a handle. Work that has not ended goes on, and still needs its memory.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_work_free(work: brigade_work_t) -> brigade_result_t {
    enter(|| close::<InFlight>(work.addr() as u64))
}

impl InFlight {
    /// Calls that were started.
    pub(crate) fn started(work: Work<'static>) -> Self {
        Self::Started { work, event: Mutex::default() }
    }

    /// Wait for the end, for at most so long.
    fn wait(&self, timeout: Option<Duration>) -> Outcome<brigade_result_t> {
        let has_ended = match (self, timeout) {
            (Self::Started { work, .. }, None) => work.wait().map(|()| true)?,
            (Self::Started { work, .. }, Some(timeout)) => match work.wait_for(timeout) {
                Some(ending) => ending.map(|()| true)?,
                None => false,
            },
            (Self::Marked { work, .. }, None) => work.wait().map(|()| true)?,
            (Self::Marked { work, .. }, Some(timeout)) => work.wait_for(timeout)?,
        };
        Ok(if has_ended { BRIGADE_SUCCESS } else { BRIGADE_IN_PROGRESS })
    }

    /// The work and its event, of calls that were started rather than a place in a stream.
    fn calls(&self) -> Outcome<(&Work<'static>, &Mutex<Option<Event>>)> {
        match self {
            Self::Started { work, event } => Ok((work, event)),
            Self::Marked { .. } => Err(Failure::usage(
                "a place in a stream calls no function and has no descriptor: CUDA's \
                 cudaLaunchHostFunc calls one when the stream gets there",
            )),
        }
    }
}

/// A user's pointer on its way to a function of theirs.
struct User(*mut c_void);

// SAFETY: it is only handed to the function, which runs on another thread: that is what
// `brigade_work_on_done` says.
unsafe impl Send for User {}

impl User {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}

/// What a handle that was reserved for work stands for from now on.
pub(crate) fn fill(reserved: Reserved<InFlight>, flight: InFlight) -> brigade_work_t {
    std::ptr::without_provenance_mut(reserved.fill(Arc::new(flight)) as usize)
}
