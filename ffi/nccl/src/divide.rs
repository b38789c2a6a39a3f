//! Communicators made of others.

use std::ffi::c_int;
use std::sync::Arc;

use brigade_wall::handle::{close, pin};
use brigade_wall::pointer::{Out, list};
use brigade_wall::{Failure, Outcome};

use crate::comm::{Comm, Member, ncclComm_t};
use crate::config::{Config, config, ncclConfig_t};
use crate::join::begin;
use crate::result::{enter_for, ncclResult_t};

/// The colour of a rank that gets no communicator.
const NO_COLOUR: c_int = -1;
/// Calls in flight are ended first.
const SHRINK_ABORT: c_int = 1;

/// A part belongs to the same world: a rank that is lost or aborts ends both.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommSplit(
    comm: ncclComm_t,
    color: c_int,
    key: c_int,
    new_comm: *mut ncclComm_t,
    wishes: *const ncclConfig_t,
) -> ncclResult_t {
    enter_for(|| {
        let parent = pin::<Comm>(comm.addr() as u64)?.share();
        let out = Out::new(new_comm, "newcomm")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(std::ptr::null_mut()) };
        let wrong = |_| Failure::argument(format!("color {color}: 0 or more, or -1 for none"));
        let colour = match color {
            NO_COLOUR => None,
            color => Some(u32::try_from(color).map_err(wrong)?),
        };
        parent.member()?;
        // SAFETY: C passes NULL or a config.
        let Config { blocking, blocks } = unsafe { config(wishes) }?;
        let made = Arc::new(Comm::new(blocking.unwrap_or(parent.blocking), parent.device));
        let before = parent.divide(&made);
        let divide = move || {
            wait_for(before);
            let member = parent.member()?;
            let part = member.communicator.split(colour, key)?;
            let root = member.root.clone();
            let join =
                || part.map(|part| Member::new(part, root, member.bound(blocks))).transpose();
            in_turn(member, colour, join)
        };
        // SAFETY: C passes a place for the handle.
        let (result, handle) = unsafe { begin(&out, made, divide) }?;
        if colour.is_none() {
            // The end of a group still waits for it.
            close::<Comm>(handle)?;
            // SAFETY: as above.
            unsafe { out.put(std::ptr::null_mut()) };
        }
        Ok(result)
    })
}

/// The survivors' world is their own: what becomes of the excluded ranks does not concern it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommShrink(
    comm: ncclComm_t,
    excluded: *const c_int,
    count: c_int,
    new_comm: *mut ncclComm_t,
    wishes: *const ncclConfig_t,
    flags: c_int,
) -> ncclResult_t {
    enter_for(|| {
        let parent = pin::<Comm>(comm.addr() as u64)?.share();
        let out = Out::new(new_comm, "newcomm")?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(std::ptr::null_mut()) };
        let wrong = |_| Failure::argument(format!("{count} ranks to exclude"));
        let count = usize::try_from(count).map_err(wrong)?;
        // SAFETY: C passes so many numbers.
        let excluded = unsafe { list(excluded, count, "excludeRanksList") }?;
        let member = parent.member()?;
        let seat = member.seat();
        let excluded = excluded.iter().map(|rank| seat.member("shrink: rank", *rank));
        let excluded = excluded.collect::<Outcome<Vec<_>>>()?;
        // SAFETY: C passes NULL or a config.
        let Config { blocking, blocks } = unsafe { config(wishes) }?;
        if flags == SHRINK_ABORT {
            member.communicator.abort("ncclCommShrink was called with NCCL_SHRINK_ABORT");
        }
        let made = Arc::new(Comm::new(blocking.unwrap_or(parent.blocking), parent.device));
        let before = parent.divide(&made);
        let shrink = move || -> Outcome<Option<Member>> {
            wait_for(before);
            let member = parent.member()?;
            let communicator = member.communicator.shrink(&excluded)?;
            Member::new(communicator, None, member.bound(blocks)).map(Some)
        };
        // SAFETY: C passes a place for the handle.
        unsafe { begin(&out, made, shrink) }.map(|(result, _)| result)
    })
}

/// Each part by itself, where there are devices: opening one waits for it, hence for what the ranks
/// of another part prove to each other on it, and holds up the threads that these wait for.
fn in_turn<T>(
    parent: &Member,
    colour: Option<u32>,
    join: impl FnOnce() -> Outcome<T>,
) -> Outcome<T> {
    // Colours are numbers of C's, so the last one is nobody's.
    let mine = [colour.unwrap_or(u32::MAX), u32::from(parent.on_device.is_some())];
    let mut all = vec![0; mine.len() * parent.communicator.size()];
    parent.communicator.all_gather(&mine, &mut all)?;
    let (all, _) = all.as_chunks::<2>();
    if all.iter().all(|[_, has_device]| *has_device == 0) {
        return join();
    }
    let mut turns: Vec<u32> = all.iter().map(|[colour, _]| *colour).collect();
    turns.sort_unstable();
    turns.dedup();
    let before = turns.iter().take_while(|turn| **turn != mine[0]).count();
    (0..before).try_for_each(|_| parent.communicator.barrier())?;
    let joined = join();
    (before..turns.len()).try_for_each(|_| parent.communicator.barrier())?;
    joined
}

/// Divisions of one communicator happen in the order in which they were asked for, on all ranks.
pub(crate) fn wait_for(before: Option<Arc<Comm>>) {
    if let Some(before) = before {
        before.joined.wait();
    }
}
