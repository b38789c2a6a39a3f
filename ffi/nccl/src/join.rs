//! How communicators are made: at once, by other threads meanwhile, or at the end of a group.

use std::ffi::c_int;
use std::sync::Arc;

use brigade_comm::{Communicator, Settings, at_once};
use brigade_wall::failure::guard;
use brigade_wall::handle::{close, register};
use brigade_wall::pointer::{Out, list};
use brigade_wall::{Failure, Outcome, roots};

use crate::comm::{Comm, Member, ncclComm_t};
use crate::config::{config, ncclConfig_t};
use crate::device;
use crate::group;
use crate::id::ncclUniqueId;
use crate::joining::Joining;
use crate::open;
use crate::result::{IN_PROGRESS, SUCCESS, enter, enter_for, ncclResult_t};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    comm: *mut ncclComm_t,
    nranks: c_int,
    unique_id: ncclUniqueId,
    rank: c_int,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { ncclCommInitRankConfig(comm, nranks, unique_id, rank, std::ptr::null()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    comm: *mut ncclComm_t,
    nranks: c_int,
    unique_id: ncclUniqueId,
    rank: c_int,
    wishes: *const ncclConfig_t,
) -> ncclResult_t {
    enter_for(|| {
        let out = Out::new(comm, "comm")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(std::ptr::null_mut()) };
        let wrong = || Failure::argument(format!("rank {rank} of {nranks} ranks"));
        let ranks = usize::try_from(nranks).map_err(|_| wrong())?;
        let rank = usize::try_from(rank).map_err(|_| wrong())?;
        if rank >= ranks {
            return Err(wrong());
        }
        // SAFETY: C passes NULL or a config.
        let wishes = unsafe { config(wishes) }?;
        let settings = Settings::from_env()?;
        let opened = roots::open(unique_id.internal)?;
        let bound = device::bound().map(|bound| bound.at_most(wishes.blocks));
        let comm = Arc::new(Comm::new(wishes.blocking.unwrap_or(true), device::number(&bound)));
        let join = move || {
            let (communicator, root) = opened.join(rank, ranks, settings)?;
            Member::new(communicator, root, bound).map(Some)
        };
        // SAFETY: C passes a place for the handle.
        unsafe { begin(&out, comm, join) }.map(|(result, _)| result)
    })
}

/// Of several ids the first one is used: it leads everybody together by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankScalable(
    comm: *mut ncclComm_t,
    nranks: c_int,
    rank: c_int,
    id_count: c_int,
    unique_ids: *const ncclUniqueId,
    config: *const ncclConfig_t,
) -> ncclResult_t {
    enter_for(|| {
        let count = usize::try_from(id_count).unwrap_or_default();
        // SAFETY: C passes so many.
        let ids = unsafe { list(unique_ids, count, "commIds") }?;
        let Some(id) = ids.first() else {
            return Err(Failure::argument(format!("{id_count} unique ids, but one is needed")));
        };
        // SAFETY: C passes what the other function needs.
        Ok(unsafe { ncclCommInitRankConfig(comm, nranks, *id, rank, config) })
    })
}

/// Calls on the communicators need a thread for each, or a group that holds the calls of all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitAll(
    comms: *mut ncclComm_t,
    ndev: c_int,
    devices: *const c_int,
) -> ncclResult_t {
    enter(|| {
        open::refuse("ncclCommInitAll")?;
        let ranks = usize::try_from(ndev).unwrap_or_default();
        if ranks == 0 || ranks > isize::MAX as usize / size_of::<ncclComm_t>() {
            return Err(Failure::argument(format!("{ndev} ranks")));
        }
        let count = if devices.is_null() { 0 } else { ranks };
        // SAFETY: C passes NULL or so many.
        let devices = unsafe { list(devices, count, "devlist") }?;
        let places = (0..ranks).map(|rank| Out::new(comms.wrapping_add(rank), "comm"));
        let places = places.collect::<Outcome<Vec<_>>>()?;
        let mut handles = Vec::with_capacity(ranks);
        let world = Communicator::local_world(ranks, &Settings::from_env()?)?;
        let members = meet_all(world, devices)?;
        for (rank, member) in members.into_iter().enumerate() {
            let comm = Comm::new(true, devices.get(rank).copied().unwrap_or(rank as c_int));
            // Nobody else has seen the communicator, so it has not joined yet.
            let _first = comm.joined.set(Ok(Some(member)));
            match register(Arc::new(comm)) {
                Ok(handle) => handles.push(handle),
                Err(failure) => {
                    handles.into_iter().try_for_each(close::<Comm>)?;
                    return Err(failure);
                }
            }
        }
        for (place, handle) in places.into_iter().zip(handles) {
            // SAFETY: C passes room for so many.
            unsafe { place.put(as_comm(handle)) };
        }
        Ok(())
    })
}

/// The members of a world in this process, with the devices of these numbers.
fn meet_all(world: Vec<Communicator>, numbers: &[c_int]) -> Outcome<Vec<Member>> {
    let Some(bound) = device::bound_all(world.len(), numbers)? else {
        let alone = |communicator| Member { on_device: None, communicator, root: None };
        return Ok(world.into_iter().map(alone).collect());
    };
    let ranks: Vec<_> = world.into_iter().zip(bound).collect();
    let join = |(communicator, bound)| Member::new(communicator, None, Some(bound));
    at_once(ranks, join)?.into_iter().collect()
}

/// Make a communicator of what `join` comes to. In a group its end does, in other threads; another
/// thread also makes one that does not block, and nobody waits. The handle is also returned.
///
/// # Safety
///
/// The place can be written to.
pub(crate) unsafe fn begin(
    out: &Out<ncclComm_t>,
    comm: Arc<Comm>,
    join: impl FnOnce() -> Outcome<Option<Member>> + Send + 'static,
) -> Outcome<(ncclResult_t, u64)> {
    let handle = register(Arc::clone(&comm))?;
    let blocking = comm.blocking;
    if blocking && !open::is_open() {
        if let Err(failure) = comm.joined.get_or_init(|| guard(join)) {
            close::<Comm>(handle)?;
            return Err(failure.clone());
        }
        // SAFETY: the caller's promise.
        unsafe { out.put(as_comm(handle)) };
        return Ok((SUCCESS, handle));
    }
    let joining = Joining::new(comm, join);
    if blocking {
        group::list_joining(joining);
    } else if let Err(failure) = joining.start() {
        close::<Comm>(handle)?;
        return Err(failure);
    } else {
        group::note_joining();
    }
    // SAFETY: the caller's promise.
    unsafe { out.put(as_comm(handle)) };
    Ok((if blocking { SUCCESS } else { IN_PROGRESS }, handle))
}

fn as_comm(handle: u64) -> ncclComm_t {
    std::ptr::without_provenance_mut(handle as usize)
}
