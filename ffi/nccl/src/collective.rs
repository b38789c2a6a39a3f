//! The collectives. Buffers lie apart, or are one where NCCL calls it in place.

use std::ffi::{c_int, c_void};

use brigade_comm::{Call, Op};
use brigade_schedule::Collective;
use brigade_wall::Outcome;
use brigade_wall::handle::{Pinned, pin};
use brigade_wall::listed::What;
use brigade_wall::memory::{Lengths, Memory, Seat};

use crate::comm::{Comm, ncclComm_t};
use crate::group;
use crate::op::{dtype, ncclRedOp_t, parse};
use crate::result::{enter_for, ncclResult_t};

/// What calls on memory of devices are put into; those on memory of the host do without.
pub type cudaStream_t = *mut c_void;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let what = (Collective::AllReduce, count, datatype, Some(op));
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, what, (sendbuff, recvbuff, stream), |_| Lengths::equal(count)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduceScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    recvcount: usize,
    datatype: c_int,
    op: ncclRedOp_t,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let what = (Collective::ReduceScatter, recvcount, datatype, Some(op));
    let lengths = |me: Seat| me.gathering(recvcount).reversed();
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, what, (sendbuff, recvbuff, stream), lengths) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    sendcount: usize,
    datatype: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let what = (Collective::AllGather, sendcount, datatype, None);
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, what, (sendbuff, recvbuff, stream), |me| me.gathering(sendcount)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAlltoAll(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let what = (Collective::AllToAll, count, datatype, None);
    let lengths = |me: Seat| Lengths::equal(count.saturating_mul(me.ranks));
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, what, (sendbuff, recvbuff, stream), lengths) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBroadcast(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let what = (Collective::Broadcast { root: rank(root) }, count, datatype, None);
    let lengths = |me: Seat| Lengths::apart(if me.is(root) { count } else { 0 }, count);
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, what, (sendbuff, recvbuff, stream), lengths) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclBcast(
    buff: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    // SAFETY: the caller's promise.
    unsafe { ncclBroadcast(buff, buff, count, datatype, root, comm, stream) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclReduce(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    op: ncclRedOp_t,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let what = (Collective::Reduce { root: rank(root) }, count, datatype, Some(op));
    let lengths = |me: Seat| Lengths::apart(count, if me.is(root) { count } else { 0 });
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, what, (sendbuff, recvbuff, stream), lengths) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGather(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let what = (Collective::Gather { root: rank(root) }, count, datatype, None);
    let lengths = |me: Seat| match me.is(root) {
        true => me.gathering(count),
        false => Lengths::apart(count, 0),
    };
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, what, (sendbuff, recvbuff, stream), lengths) }
}

/// A rank as calls number them; one that no group has stays one that no group has.
fn rank(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Carry a collective out, or list or start it. `what`: which, elements of a block, type, operator.
///
/// # Safety
///
/// The memory is what C must pass, until the call has ended.
unsafe fn carry_out(
    comm: ncclComm_t,
    what: (Collective, usize, c_int, Option<ncclRedOp_t>),
    (input, output, stream): (*const c_void, *mut c_void, cudaStream_t),
    lengths: impl FnOnce(Seat) -> Lengths,
) -> ncclResult_t {
    enter_for(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        // SAFETY: the caller's promise.
        let call = unsafe { call(&comm, what) }?;
        let communicator = &comm.member()?.communicator;
        let me = Seat { rank: communicator.rank(), ranks: communicator.size() };
        let memory = Memory::new(input, output, lengths(me), call.dtype)?;
        // SAFETY: the caller's promise.
        unsafe { group::later(&comm, What::Collective { call, memory }, stream) }
    })
}

/// # Safety
///
/// As for [`parse`].
unsafe fn call(
    comm: &Pinned<Comm>,
    (collective, count, datatype, op): (Collective, usize, c_int, Option<ncclRedOp_t>),
) -> Outcome<Call> {
    let dtype = dtype(datatype)?;
    let op = match op {
        // SAFETY: the caller's promise.
        Some(op) => unsafe { parse(op, comm) }?,
        None => Op::Sum,
    };
    Ok(Call::new(collective, dtype, op, count))
}
