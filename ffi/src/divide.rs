//! Communicators made of others.

use std::ffi::c_int;
use std::sync::Arc;

use brigade_wall::handle::{pin, reserve};
use brigade_wall::pointer::{Out, list};
use brigade_wall::roots;

use crate::comm::{Comm, as_comm, brigade_comm_t, may_wait};
use crate::error::{Failure, Outcome, brigade_result_t, enter};
use crate::id::brigade_unique_id_t;
use crate::settings::{brigade_config_t, settings_over};

/// The colour of a rank that takes part in a division, but in no new communicator.
pub const BRIGADE_SPLIT_NOCOLOR: c_int = -1;

/// Divide a group: ranks that give the same colour, 0 or more, become a new communicator, in the
/// order of `key` and then of rank. With BRIGADE_SPLIT_NOCOLOR a rank gets NULL. Every rank must
/// call it.
///
/// The new communicators share their fate with each other and with the old one: an error that ends
/// one of them, a lost rank or brigade_comm_abort ends all, and each of their later calls returns
/// it. One in a world of its own is made by brigade_comm_shrink.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_split(
    comm: brigade_comm_t,
    color: c_int,
    key: c_int,
    new_comm: *mut brigade_comm_t,
) -> brigade_result_t {
    // SAFETY: the caller's promise.
    unsafe { brigade_comm_split_config(comm, color, key, new_comm, std::ptr::null()) }
}

/// Like brigade_comm_split, with settings for the new communicator that count instead of the old
/// one's. `config` may be NULL. Those about transports mean nothing here: they were opened when the
/// world came together.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_split_config(
    comm: brigade_comm_t,
    color: c_int,
    key: c_int,
    new_comm: *mut brigade_comm_t,
    config: *const brigade_config_t,
) -> brigade_result_t {
    enter(|| {
        // SAFETY: C passes a place for it.
        let out = unsafe { Out::new(new_comm, "new_comm")?.holding(std::ptr::null_mut()) };
        may_wait("brigade_comm_split")?;
        let (parent, reserved) = (pin::<Comm>(comm.addr() as u64)?, reserve()?);
        let color = match color {
            BRIGADE_SPLIT_NOCOLOR => None,
            color => Some(u32::try_from(color).map_err(|_| {
                Failure::argument(format!("color {color}: 0 or more, or BRIGADE_SPLIT_NOCOLOR"))
            })?),
        };
        let inherited = parent.communicator.settings().clone();
        // SAFETY: C passes NULL or a config.
        let settings = unsafe { settings_over(inherited, config) }?;
        if let Some(communicator) = parent.communicator.split_with(color, key, settings)? {
            let handle = reserved.fill(Arc::new(Comm::new(communicator, parent.root.clone())));
            // SAFETY: as above.
            unsafe { out.put(as_comm(handle)) };
        }
        Ok(())
    })
}

/// A communicator of this group's ranks but the `count` ones in `excluded`, in a world of their
/// own: what has become of the excluded ranks, or will, does not concern it. All others call this
/// with the same list, whatever has happened to `comm`, which stays as it is; the excluded ones do
/// not. A list that leaves out a rank that is known to be gone is BRIGADE_INVALID_ARGUMENT.
/// `config` may be NULL, and counts as for brigade_comm_split_config.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_shrink(
    comm: brigade_comm_t,
    excluded: *const c_int,
    count: usize,
    new_comm: *mut brigade_comm_t,
    config: *const brigade_config_t,
) -> brigade_result_t {
    enter(|| {
        // SAFETY: C passes a place for it.
        let out = unsafe { Out::new(new_comm, "new_comm")?.holding(std::ptr::null_mut()) };
        may_wait("brigade_comm_shrink")?;
        let (parent, reserved) = (pin::<Comm>(comm.addr() as u64)?, reserve()?);
        // SAFETY: C passes so many numbers.
        let excluded = unsafe { list(excluded, count, "excluded") }?;
        let seat = parent.seat();
        let ranks = excluded.iter().map(|rank| seat.member("shrink: rank", *rank));
        let ranks = ranks.collect::<Outcome<Vec<_>>>()?;
        let inherited = parent.communicator.settings().clone();
        // SAFETY: C passes NULL or a config.
        let settings = unsafe { settings_over(inherited, config) }?;
        let communicator = parent.communicator.shrink_with(&ranks, settings)?;
        let handle = reserved.fill(Arc::new(Comm::new(communicator, None)));
        // SAFETY: as above.
        unsafe { out.put(as_comm(handle)) };
        Ok(())
    })
}

/// A communicator of this group's ranks, which keep their numbers, and of newcomers behind them:
/// `nranks` in all, in a world of their own. Every rank of `comm` calls it, one or more of them
/// with the unique id of that world, which is not the old one's, the others with NULL; the
/// newcomers call brigade_comm_init_rank with this id and their own number. `comm` stays as it is.
/// `config` may be NULL; all of it counts. After a loss, brigade_comm_shrink first: then a process
/// may come in the place of one that was lost.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_comm_grow(
    comm: brigade_comm_t,
    nranks: c_int,
    unique_id: *const brigade_unique_id_t,
    new_comm: *mut brigade_comm_t,
    config: *const brigade_config_t,
) -> brigade_result_t {
    enter(|| {
        // SAFETY: C passes a place for it.
        let out = unsafe { Out::new(new_comm, "new_comm")?.holding(std::ptr::null_mut()) };
        may_wait("brigade_comm_grow")?;
        let (parent, reserved) = (pin::<Comm>(comm.addr() as u64)?, reserve()?);
        // The others hear of what is wrong with a number, too.
        let ranks = i64::from(nranks);
        // SAFETY: C passes NULL or an id.
        let id = unsafe { unique_id.as_ref() }.map(|id| id.bytes);
        let inherited = parent.communicator.settings().clone();
        // SAFETY: C passes NULL or a config.
        let settings = || unsafe { settings_over(inherited, config) };
        let (communicator, root) = roots::grow(&parent.communicator, ranks, [id, None], settings)?;
        let handle = reserved.fill(Arc::new(Comm::new(communicator, root)));
        // SAFETY: as above.
        unsafe { out.put(as_comm(handle)) };
        Ok(())
    })
}
