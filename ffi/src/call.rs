//! What all collectives do once C's arguments have become a call.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use brigade_comm::{Call, Counts, Dtype, Op};
use brigade_schedule::Collective;

use crate::comm::Comm;
use crate::error::Outcome;
use crate::group;
use crate::thread;
use crate::work::brigade_work_t;
use brigade_wall::handle::Pinned;
use brigade_wall::listed::What;
use brigade_wall::memory::{Lengths, Memory};
use brigade_wall::pointer::list;

/// Carry a call out, or list it in the open group, or start it.
///
/// # Safety
///
/// The memory is what C must pass, until the call has ended.
#[inline(always)]
pub(crate) unsafe fn carry_out(
    comm: &Pinned<Comm>,
    call: Call,
    lengths: Lengths,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    work: *mut brigade_work_t,
) -> Outcome {
    let memory = Memory::new(sendbuf, recvbuf, lengths, call.dtype)?;
    if work.is_null() && thread::is_plain() {
        // SAFETY: the caller's promise.
        let buffers = unsafe { memory.buffers() };
        return Ok(comm.communicator.run(&call, buffers)?);
    }
    // SAFETY: the caller's promise.
    unsafe { group::later(comm, What::Collective { call, memory }, work) }
}

/// A call that only moves elements.
pub(crate) fn moving(collective: Collective, dtype: Dtype, counts: Counts) -> Call {
    Call { collective, dtype, op: Op::Sum, counts }
}

/// A rank as calls number them; one that no group has stays one that no group has.
pub(crate) fn rank_number(rank: c_int) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

impl Comm {
    /// Whether this is the rank that C means.
    pub(crate) fn is(&self, rank: c_int) -> bool {
        usize::try_from(rank) == Ok(self.communicator.rank())
    }

    /// One block in, a block of each rank out.
    pub(crate) fn gathering(&self, count: usize) -> Lengths {
        Lengths::gathering(count, self.communicator.size(), self.communicator.rank())
    }

    /// The counts of all ranks, and the lengths of a rank that gathers.
    ///
    /// # Safety
    ///
    /// The counts are what C must pass.
    pub(crate) unsafe fn counts(
        &self,
        counts: *const usize,
        name: &str,
    ) -> Outcome<(Counts, Lengths)> {
        // SAFETY: the caller's promise.
        let counts = unsafe { list(counts, self.communicator.size(), name) }?;
        let lengths = Lengths::gathering_v(counts, self.communicator.rank());
        Ok((Counts::PerRank(Arc::from(counts)), lengths))
    }

    /// Like [`Comm::counts`], where only the root gathers.
    ///
    /// # Safety
    ///
    /// The counts are what C must pass.
    pub(crate) unsafe fn counts_at(
        &self,
        root: c_int,
        counts: *const usize,
        name: &str,
    ) -> Outcome<(Counts, Lengths)> {
        // SAFETY: the caller's promise.
        let (counts, lengths) = unsafe { self.counts(counts, name) }?;
        let own = match &counts {
            Counts::PerRank(counts) => counts[self.communicator.rank()],
            _ => 0,
        };
        Ok((counts, if self.is(root) { lengths } else { Lengths::apart(own, 0) }))
    }
}
