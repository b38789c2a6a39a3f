//! Communicators: made, asked, ended.

use std::ffi::{CStr, c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::brigade_comm::bootstrap::Root;
use ::brigade_comm::launch::Launch;
use ::brigade_comm::{Communicator, Settings};

use crate::error::{Failure, Outcome, brigade_result_t, enter};
use crate::id::brigade_unique_id_t;
use crate::settings::{brigade_config_t, put_text, settings, sized};
use crate::thread;
use brigade_wall::handle::{Noun, close, pin, reserve};
use brigade_wall::pointer::Out;
use brigade_wall::roots;
use brigade_wall::sight::Sight;

/// A group of ranks that make the same calls in the same order. What is inside is nobody's.
pub struct brigade_comm {
    _nobody: (),
}

/// A communicator. The value is a handle, never an address: one that was destroyed, or made by
/// the process that forked this one, is refused.
pub type brigade_comm_t = *mut brigade_comm;

/// What stands behind a handle.
pub(crate) struct Comm {
    /// In front of the root, which it must not outlive.
    pub(crate) communicator: Communicator,
    pub(crate) root: Option<Arc<Root>>,
    /// For calls on memory that the host cannot read.
    pub(crate) sight: Sight,
}

impl Comm {
    pub(crate) fn new(communicator: Communicator, root: Option<Arc<Root>>) -> Self {
        Self { communicator, root, sight: Sight::default() }
    }
}

impl Noun for Comm {
    const KIND: u8 = 1;
    const NAME: &'static str = "communicator";
}

/// Counters of one communicator on one rank. Begin with BRIGADE_STATS_INIT; members are only ever
/// added at the end.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct brigade_stats_t {
    /// sizeof(brigade_stats_t).
    pub struct_size: usize,
    /// Payload bytes sent to other ranks, without headers and framing.
    pub sent_bytes: u64,
    /// Calls carried out.
    pub calls: u64,
}

/// The same numbers as in tests/c/layout.c.
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<brigade_stats_t>() == 24 && size_of::<brigade_comm_t>() == 8);
    assert!(offset_of!(brigade_stats_t, struct_size) == 0);
    assert!(offset_of!(brigade_stats_t, sent_bytes) == 8);
    assert!(offset_of!(brigade_stats_t, calls) == 16);
};

/// Join the world of those who have the same unique id, as rank `rank` of `nranks`, with the
/// settings of the environment. Returns when all have come, or BRIGADE_JOIN_TIMEOUT_MS has passed;
/// who is late is told on standard error after a sixth of BRIGADE_REPORT_MS. `comm` is NULL after
/// an error.
///
/// Threads: from any thread. Several ranks of one process need as many threads, or
/// brigade_comm_init_all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_init_rank(
    comm: *mut brigade_comm_t,
    nranks: c_int,
    unique_id: brigade_unique_id_t,
    rank: c_int,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe { brigade_comm_init_rank_config(comm, nranks, unique_id, rank, std::ptr::null()) }
}

/// Like brigade_comm_init_rank, with settings that count instead of the environment's. `config` may
/// be NULL.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_init_rank_config(
    comm: *mut brigade_comm_t,
    nranks: c_int,
    unique_id: brigade_unique_id_t,
    rank: c_int,
    config: *const brigade_config_t,
) -> brigade_result_t {
    let join = |settings| {
        let wrong = || Failure::argument(format!("rank {rank} of {nranks} ranks"));
        let ranks = usize::try_from(nranks).map_err(|_| wrong())?;
        let rank = usize::try_from(rank).map_err(|_| wrong())?;
        let (communicator, root) = roots::open(unique_id.bytes)?.join(rank, ranks, settings)?;
        Ok(Comm::new(communicator, root))
    };
    // SAFETY: the caller's promise.
    unsafe { init(comm, config, join) }
}

/// Join the world that the environment describes: that of `brigade run`, torchrun, mpirun, srun, a
/// Kubernetes indexed job, or BRIGADE_RANK and its sisters; without any of them a world of one
/// rank. `config` may be NULL. `comm` is NULL after an error.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_init_from_env(
    comm: *mut brigade_comm_t,
    config: *const brigade_config_t,
) -> brigade_result_t {
    let join = |settings| {
        let launch = Launch::discover().map_err(|error| Failure::argument(error.to_string()))?;
        let communicator = Communicator::join(launch, settings)?;
        Ok(Comm::new(communicator, None))
    };
    // What is misspelled may be why.
    let join = |settings| join(settings).inspect_err(|_| Settings::warn_of_unknown_variables());
    // SAFETY: the caller's promise.
    unsafe { init(comm, config, join) }
}

/// `nranks` communicators of one world within this process, `comms[r]` being rank r's. Blocking
/// calls on them need a thread for each, or a group that holds the calls of all. Joining takes a
/// thread for each, too: BRIGADE_SYSTEM_ERROR where there are not so many, or not so many files.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_init_all(
    comms: *mut brigade_comm_t,
    nranks: c_int,
    config: *const brigade_config_t,
) -> brigade_result_t {
    enter(|| {
        let ranks = usize::try_from(nranks).unwrap_or_default();
        if ranks == 0 || ranks > isize::MAX as usize / size_of::<brigade_comm_t>() {
            return Err(Failure::argument(format!("{nranks} ranks")));
        }
        let places = (0..ranks).map(|rank| {
            let place = Out::new(comms.wrapping_add(rank), "comms")?;
            // SAFETY: C passes room for so many.
            Ok(unsafe { place.holding(std::ptr::null_mut()) })
        });
        let places = places.collect::<Outcome<Vec<_>>>()?;
        may_wait("brigade_comm_init_all")?;
        // SAFETY: C passes NULL or a config.
        let settings = unsafe { settings(config) }?;
        let reserved = (0..ranks).map(|_| reserve()).collect::<Outcome<Vec<_>>>()?;
        let world = Communicator::local_world(ranks, &settings)?;
        for ((place, reserved), communicator) in places.into_iter().zip(reserved).zip(world) {
            let handle = reserved.fill(Arc::new(Comm::new(communicator, None)));
            // SAFETY: as above.
            unsafe { place.put(as_comm(handle)) };
        }
        Ok(())
    })
}

/// Wait until all ranks have come here and all their calls have ended, and leave the group. After
/// that no rank needs another one any more, the process may end, and the handle is good for
/// brigade_comm_destroy only. What was made of the communicator and is still used (parts of it,
/// windows, groups on devices) keeps it; whoever ends without having ended these is lost to others.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_finalize(comm: brigade_comm_t) -> brigade_result_t {
    enter(|| {
        may_wait("brigade_comm_finalize")?;
        let handle = comm.addr() as u64;
        let pinned = pin::<Comm>(handle)?;
        pinned.communicator.barrier()?;
        // A rank that is not as far yet must not take the end of this process for a loss. What ends
        // does so with our pin, when nobody waits for the list.
        let mut finalized = finalized();
        close::<Comm>(handle)?;
        finalized.push(handle);
        drop(finalized);
        drop(pinned);
        Ok(())
    })
}

/// Handles that were finalized, and are still to be destroyed.
fn finalized() -> MutexGuard<'static, Vec<u64>> {
    static FINALIZED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    FINALIZED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// End the world of this communicator on all its ranks: calls in flight, here and there, end with
/// BRIGADE_ABORTED and this reason, which may be NULL. The communicator must still be destroyed.
/// Returns at once, or within a second if the network is stuck; it waits for no call.
///
/// Threads: from any thread, also while another one is inside a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_abort(
    comm: brigade_comm_t,
    reason: *const c_char,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let reason = match reason.is_null() {
            true => "brigade_comm_abort was called".into(),
            // Words in another encoding are no reason to go on.
            // SAFETY: C passes text.
            false => unsafe { CStr::from_ptr(reason) }.to_string_lossy(),
        };
        comm.communicator.abort(&reason);
        Ok(())
    })
}

/// Whether the world of this communicator goes on: `result` is BRIGADE_SUCCESS, or what ended it (a
/// lost rank, an abort, a mismatch), as soon as that is known. For those who watch while another
/// thread is inside a call.
///
/// Threads: from any thread, also while another one is inside a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_get_async_error(
    comm: brigade_comm_t,
    result: *mut brigade_result_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(result, "result")?;
        let ended = comm.communicator.ended();
        let told = ended.map_or(brigade_result_t::BRIGADE_SUCCESS, |error| (&error).into());
        // SAFETY: C passes a place for it.
        unsafe { out.put(told) };
        Ok(())
    })
}

/// Whether rank `rank` of this communicator has gone, as far as is known: `result` is
/// BRIGADE_PEER_LOST for one whose process has ended, BRIGADE_PEER_LEFT for one that has left, else
/// BRIGADE_SUCCESS. Once the process is lost that brought the ranks together, further losses are
/// not known. For those who wait for that rank elsewhere.
///
/// Threads: from any thread, also while another one is inside a call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_get_rank_error(
    comm: brigade_comm_t,
    rank: c_int,
    result: *mut brigade_result_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(result, "result")?;
        let member = comm.seat().member("rank", rank)?;
        let gone = comm.communicator.gone(member)?;
        let told = gone.map_or(brigade_result_t::BRIGADE_SUCCESS, |error| (&error).into());
        // SAFETY: C passes a place for it.
        unsafe { out.put(told) };
        Ok(())
    })
}

/// Leave the group, after the calls that were started on it have ended. The handle ends at once; if
/// another thread is inside a call, the rest ends with that call.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_destroy(comm: brigade_comm_t) -> brigade_result_t {
    enter(|| {
        thread::refuse_in_group("brigade_comm_destroy")?;
        let handle = comm.addr() as u64;
        let mut finalized = finalized();
        if let Some(at) = finalized.iter().position(|known| *known == handle) {
            finalized.swap_remove(at);
            return Ok(());
        }
        drop(finalized);
        close::<Comm>(handle)
    })
}

/// This rank's number in the group.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_rank(
    comm: brigade_comm_t,
    rank: *mut c_int,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(rank, "rank")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(comm.communicator.rank() as c_int) };
        Ok(())
    })
}

/// How many ranks the group has.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_size(
    comm: brigade_comm_t,
    size: *mut c_int,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(size, "size")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(comm.communicator.size() as c_int) };
        Ok(())
    })
}

/// Read the counters of a communicator.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_stats(
    comm: brigade_comm_t,
    stats: *mut brigade_stats_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        // SAFETY: C passes NULL or a struct that begins with its size.
        let asked: brigade_stats_t = unsafe { sized(stats.cast(), "stats") }?;
        let now = comm.communicator.stats();
        let struct_size = asked.struct_size;
        let told = brigade_stats_t { struct_size, sent_bytes: now.sent_bytes, calls: now.calls };
        let bytes = struct_size.min(size_of::<brigade_stats_t>());
        // SAFETY: C's struct has as many bytes as it says, and ours has no fewer than these.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const told).cast::<u8>(), stats.cast(), bytes)
        };
        Ok(())
    })
}

/// Describe a communicator for people, as text with a zero at its end: this rank's place, which
/// transport goes to whom, and by which algorithm each collective goes, by size. `text` has room
/// for `bytes` bytes, of which 2048 are enough for most; else the error tells how many it takes.
///
/// Threads: from any thread. It waits for no call, so what runs inside one may call it, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_describe(
    comm: brigade_comm_t,
    text: *mut c_char,
    bytes: usize,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        Out::new(text, "text")?;
        // SAFETY: C passes room for so many bytes.
        unsafe { put_text((text, bytes), "the description", &comm.communicator.describe()) }
    })
}

/// Make a communicator, and a handle for it.
///
/// # Safety
///
/// `comm` and `config` are what C must pass.
unsafe fn init(
    comm: *mut brigade_comm_t,
    config: *const brigade_config_t,
    join: impl FnOnce(Settings) -> Outcome<Comm>,
) -> brigade_result_t {
    enter(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(comm, "comm")?.holding(std::ptr::null_mut()) };
        may_wait("making a communicator")?;
        // SAFETY: the caller's promise.
        let settings = unsafe { settings(config) }?;
        let reserved = reserve()?;
        let handle = reserved.fill(Arc::new(join(settings)?));
        // SAFETY: the caller's promise.
        unsafe { out.put(as_comm(handle)) };
        Ok(())
    })
}

pub(crate) fn may_wait(what: &str) -> Outcome {
    thread::refuse_in_operator()?;
    thread::refuse_in_group(what)
}

pub(crate) fn as_comm(handle: u64) -> brigade_comm_t {
    std::ptr::without_provenance_mut(handle as usize)
}
