//! How communicators end: behind their calls, or at once with the whole world.

use std::ffi::c_int;

use brigade_wall::handle::{close, pin};
use brigade_wall::{Cause, Outcome};

use crate::comm::{Comm, ncclComm_t};
use crate::group;
use crate::open::is_open;
use crate::result::{IN_PROGRESS, SUCCESS, enter, enter_for, ncclResult_t};

/// Waits until this rank's calls have ended; on devices, also until no process has memory of
/// another one's open, so a thread that has several ranks finalizes them in a group if there are
/// other processes. For a communicator that does not block, the latter is what ncclCommDestroy
/// waits for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t {
    enter_for(|| {
        if comm.is_null() {
            return Ok(SUCCESS);
        }
        let comm = pin::<Comm>(comm.addr() as u64)?.share();
        if is_open() {
            group::list_finalizing(comm);
            return Ok(SUCCESS);
        }
        comm.finalize()?;
        Ok(if comm.blocking { SUCCESS } else { IN_PROGRESS })
    })
}

/// Leaves the group, after the calls that were started on it have ended. On devices it waits two
/// seconds for ranks of other processes; what they may still have open then, the process keeps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t {
    enter(|| {
        let handle = comm.addr() as u64;
        if comm.is_null() {
            return Ok(());
        }
        if is_open() {
            drop(pin::<Comm>(handle)?);
            group::list_destroying(handle);
            return Ok(());
        }
        close::<Comm>(handle)
    })
}

/// Ends the world of the communicator on all its ranks, and the handle. From any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t {
    enter(|| {
        if comm.is_null() {
            return Ok(());
        }
        stop(comm, "ncclCommAbort was called")?;
        close::<Comm>(comm.addr() as u64)
    })
}

/// Ends the world of the communicator on all its ranks; the handle stays, and can be shrunk or
/// destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommRevoke(comm: ncclComm_t, _flags: c_int) -> ncclResult_t {
    enter(|| stop(comm, "ncclCommRevoke was called"))
}

/// End a world, unless there is none yet: joining then goes on to its own end, which nobody sees.
fn stop(comm: ncclComm_t, why: &str) -> Outcome {
    let comm = pin::<Comm>(comm.addr() as u64)?;
    match comm.member() {
        Ok(member) => member.communicator.abort(why),
        Err(failure) if failure.cause == Cause::Internal => return Err(failure),
        Err(_) => {}
    }
    Ok(())
}
