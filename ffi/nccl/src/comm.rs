//! Communicators: what stands behind a handle, and what may be asked of it.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use brigade_comm::bootstrap::{ID_BYTES, Root};
use brigade_comm::{Communicator, Work};
use brigade_wall::failure::last_sentence;
use brigade_wall::handle::{Noun, pin};
use brigade_wall::memory::Seat;
use brigade_wall::pointer::Out;
use brigade_wall::sight::Sight;
use brigade_wall::{Failure, Outcome};

use crate::device::{Bound, OnDevice};
use crate::factor::Factor;
use crate::result::{IN_PROGRESS, SUCCESS, enter, ncclResult_t, number};

/// A handle, never an address.
pub type ncclComm_t = *mut c_void;

/// A rank in a group, once it has joined.
pub(crate) struct Member {
    /// In front of the communicator, whose calls it makes.
    pub(crate) on_device: Option<OnDevice>,
    /// In front of the root, which it must not outlive.
    pub(crate) communicator: Communicator,
    pub(crate) root: Option<Arc<Root>>,
}

impl Member {
    /// A rank that has just joined, with what its thread had of devices before. Collective.
    pub(crate) fn new(
        communicator: Communicator,
        root: Option<Arc<Root>>,
        bound: Option<Bound>,
    ) -> Outcome<Self> {
        let on_device = OnDevice::meet(&communicator, bound)?;
        Ok(Self { on_device, communicator, root })
    }

    /// Where it stands in the group.
    pub(crate) fn seat(&self) -> Seat {
        Seat { rank: self.communicator.rank(), ranks: self.communicator.size() }
    }

    /// What a part of this one has of devices, with so many blocks of a call, if a number is given.
    pub(crate) fn bound(&self, blocks: Option<u32>) -> Option<Bound> {
        self.on_device.as_ref().map(|on_device| on_device.bound().at_most(blocks))
    }
}

/// What stands behind a handle.
pub(crate) struct Comm {
    /// What joining came to, once it has; no member where a division gave none.
    pub(crate) joined: OnceLock<Outcome<Option<Member>>>,
    /// Whether calls return when they are done.
    pub(crate) blocking: bool,
    /// The number of its device, or what ncclCommInitAll was given for one.
    pub(crate) device: c_int,
    /// Of a communicator that does not block, what is on its way.
    works: Mutex<Vec<Work<'static>>>,
    /// Without devices: whether calls are on their memory all the same.
    pub(crate) sight: Sight,
    /// Operators that were made for it, by their numbers.
    pub(crate) factors: Mutex<Vec<Option<Factor>>>,
    /// The last division of it, and whether that may still go on: calls look there first.
    part: Mutex<Weak<Comm>>,
    divided: AtomicBool,
    /// The id that was drawn for its growth.
    pub(crate) growth: Mutex<Option<[u8; ID_BYTES]>>,
}

impl Noun for Comm {
    const KIND: u8 = 1;
    const NAME: &'static str = "communicator";
}

impl Comm {
    pub(crate) fn new(blocking: bool, device: c_int) -> Self {
        let (joined, works, sight, factors, part, divided, growth) = Default::default();
        Self { joined, blocking, device, works, sight, factors, part, divided, growth }
    }

    /// The member that this is, if it has joined.
    pub(crate) fn member(&self) -> Outcome<&Member> {
        match self.joined.get() {
            Some(Ok(Some(member))) => Ok(member),
            Some(Err(failure)) => Err(failure.clone()),
            Some(Ok(None)) => Err(Failure::usage("this rank was given no colour")),
            None => Err(Failure::usage(
                "the communicator is still joining: wait until ncclCommGetAsyncError says so, or \
                 for the end of the group",
            )),
        }
    }

    /// The member, once no division of it goes on: that has its place in the order of its calls.
    pub(crate) fn undivided(&self) -> Outcome<&Member> {
        if let Some(part) = self.dividing() {
            part.joined.wait();
        }
        self.member()
    }

    /// The division that still goes on, after all that were begun before it.
    pub(crate) fn dividing(&self) -> Option<Arc<Self>> {
        if !self.divided.load(Ordering::Relaxed) {
            return None;
        }
        let part = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever makes a part keeps it until then.
        let going_on = part.upgrade().filter(|part| part.joined.get().is_none());
        self.divided.store(going_on.is_some(), Ordering::Relaxed);
        going_on
    }

    /// Begin a division. Returns the one before it, which must have ended first.
    pub(crate) fn divide(&self, part: &Arc<Self>) -> Option<Arc<Self>> {
        let mut last = self.part.lock().unwrap_or_else(PoisonError::into_inner);
        self.divided.store(true, Ordering::Relaxed);
        std::mem::replace(&mut *last, Arc::downgrade(part)).upgrade()
    }

    /// Wait until its calls have ended, and where it blocks, until nothing of it on devices is open
    /// to others.
    pub(crate) fn finalize(&self) -> Outcome {
        let member = self.undivided()?;
        match &member.on_device {
            Some(on_device) if self.blocking => on_device.close(),
            _ => Ok(()),
        }
    }

    /// Calls are on their way; ncclCommGetAsyncError tells when they have ended.
    pub(crate) fn keep(&self, works: Vec<Work<'static>>) {
        self.works.lock().unwrap_or_else(PoisonError::into_inner).extend(works);
    }

    /// How joining, a division, and the calls on their way stand.
    fn state(&self) -> Outcome<ncclResult_t> {
        let member = match self.joined.get() {
            None => return Ok(IN_PROGRESS),
            Some(Err(failure)) => return Err(failure.clone()),
            Some(Ok(None)) => return Ok(SUCCESS),
            Some(Ok(Some(member))) => member,
        };
        if self.dividing().is_some() {
            return Ok(IN_PROGRESS);
        }
        let mut works = self.works.lock().unwrap_or_else(PoisonError::into_inner);
        if works.iter().any(|work| !work.is_done()) {
            return Ok(IN_PROGRESS);
        }
        let ended = Work::all(works.drain(..)).wait();
        drop(works);
        ended?;
        if let Some(on_device) = &member.on_device {
            on_device.check()?;
        }
        match member.communicator.ended() {
            Some(error) => Err(error.into()),
            None => Ok(SUCCESS),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(
    comm: ncclComm_t,
    result: *mut ncclResult_t,
) -> ncclResult_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(result, "asyncError")?;
        let state = comm.state().unwrap_or_else(|failure| {
            failure.note();
            number(failure.cause)
        });
        // SAFETY: C passes a place for it.
        unsafe { out.put(state) };
        Ok(())
    })
}

/// Ask a member for a number.
///
/// # Safety
///
/// C passes a place for it.
unsafe fn ask(
    comm: ncclComm_t,
    answer: *mut c_int,
    question: impl FnOnce(&Comm) -> Outcome<c_int>,
) -> ncclResult_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(answer, "the place of the answer")?;
        let answer = question(&comm)?;
        // SAFETY: the caller's promise.
        unsafe { out.put(answer) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { ask(comm, count, |comm| Ok(comm.member()?.communicator.size() as c_int)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { ask(comm, rank, |comm| Ok(comm.member()?.communicator.rank() as c_int)) }
}

/// The number of its device; without devices the number that ncclCommInitAll was given, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { ask(comm, device, |comm| Ok(comm.device)) }
}

/// The whole sentence of the last call that failed on this thread, of whichever communicator.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: ncclComm_t) -> *const c_char {
    last_sentence()
}
