//! Newcomers to a communicator that is there already.

use std::ffi::c_int;
use std::sync::{Arc, PoisonError};

use brigade_wall::handle::pin;
use brigade_wall::pointer::Out;
use brigade_wall::{Failure, Outcome, roots};

use crate::comm::{Comm, Member, ncclComm_t};
use crate::config::{Config, config, ncclConfig_t};
use crate::divide::wait_for;
use crate::id::ncclUniqueId;
use crate::join::{begin, ncclCommInitRankConfig};
use crate::result::{enter, enter_for, ncclResult_t};

/// The number of a rank that has one in the communicator that grows.
const OWN_RANK: c_int = -1;

/// An id like any other: it leads to one world, that which the communicator grows to. The
/// communicator knows it from now on until it has grown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetUniqueId(
    comm: ncclComm_t,
    unique_id: *mut ncclUniqueId,
) -> ncclResult_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(unique_id, "uniqueId")?;
        let internal = roots::draw()?;
        *comm.growth.lock().unwrap_or_else(PoisonError::into_inner) = Some(internal);
        // SAFETY: C passes a place for it.
        unsafe { out.put(ncclUniqueId { internal }) };
        Ok(())
    })
}

/// Ranks of the communicator keep their numbers, and call it with -1; the one that has asked it for
/// an id need not pass that, and others may. Newcomers have no communicator, and a number behind
/// those.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGrow(
    comm: ncclComm_t,
    nranks: c_int,
    unique_id: *const ncclUniqueId,
    rank: c_int,
    new_comm: *mut ncclComm_t,
    wishes: *const ncclConfig_t,
) -> ncclResult_t {
    if comm.is_null() {
        // SAFETY: C passes NULL or an id.
        return match unsafe { unique_id.as_ref() } {
            // SAFETY: C passes what the other function needs.
            Some(id) => unsafe { ncclCommInitRankConfig(new_comm, nranks, *id, rank, wishes) },
            None => enter(|| Err(Failure::argument("uniqueId is NULL: newcomers need it"))),
        };
    }
    enter_for(|| {
        let parent = pin::<Comm>(comm.addr() as u64)?.share();
        let out = Out::new(new_comm, "newcomm")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(std::ptr::null_mut()) };
        if rank != OWN_RANK {
            let what = format!("rank {rank}: ranks of the communicator keep theirs, and pass -1");
            return Err(Failure::argument(what));
        }
        // What is wrong with a number the others hear, too.
        let ranks = i64::from(nranks);
        parent.member()?;
        // SAFETY: C passes NULL or a config.
        let Config { blocking, blocks } = unsafe { config(wishes) }?;
        // SAFETY: C passes NULL or an id.
        let given = unsafe { unique_id.as_ref() }.map(|id| id.internal);
        let made = Arc::new(Comm::new(blocking.unwrap_or(parent.blocking), parent.device));
        let before = parent.divide(&made);
        let grow = move || -> Outcome<Option<Member>> {
            wait_for(before);
            let member = parent.member()?;
            let settings = || Ok(member.communicator.settings().clone());
            let drawn = || parent.growth.lock().unwrap_or_else(PoisonError::into_inner);
            let ids = [given, *drawn()];
            let (communicator, root) = roots::grow(&member.communicator, ranks, ids, settings)?;
            *drawn() = None;
            Member::new(communicator, root, member.bound(blocks)).map(Some)
        };
        // SAFETY: C passes a place for the handle.
        unsafe { begin(&out, made, grow) }.map(|(result, _)| result)
    })
}
