//! The collectives. Buffers lie apart, or are one where NCCL calls it in place.

use std::ffi::{c_int, c_void};

use brigade_comm::{Call, Op};
use brigade_schedule::Collective;
use brigade_wall::Outcome;
use brigade_wall::handle::pin;
use brigade_wall::listed::What;
use brigade_wall::memory::{Lengths, Memory, Seat};

use crate::comm::{Comm, ncclComm_t};
use crate::device::cudaStream_t;
use crate::group;
use crate::op::{dtype, ncclRedOp_t, parse};
use crate::result::{enter_for, ncclResult_t};

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
    let shape = |_| Ok((Collective::AllReduce, Lengths::equal(count)));
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, (count, datatype, Some(op)), (sendbuff, recvbuff, stream), shape) }
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
    let shape = |me: Seat| Ok((Collective::ReduceScatter, me.gathering(recvcount).reversed()));
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, (recvcount, datatype, Some(op)), (sendbuff, recvbuff, stream), shape) }
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
    let shape = |me: Seat| Ok((Collective::AllGather, me.gathering(sendcount)));
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, (sendcount, datatype, None), (sendbuff, recvbuff, stream), shape) }
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
    let shape =
        |me: Seat| Ok((Collective::AllToAll, Lengths::equal(count.saturating_mul(me.ranks))));
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, (count, datatype, None), (sendbuff, recvbuff, stream), shape) }
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
    let shape = |me: Seat| {
        let collective = Collective::Broadcast { root: root_of(me, "broadcast: root", root)? };
        Ok((collective, Lengths::apart(if me.is(root) { count } else { 0 }, count)))
    };
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, (count, datatype, None), (sendbuff, recvbuff, stream), shape) }
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
    let shape = |me: Seat| {
        let collective = Collective::Reduce { root: root_of(me, "reduce: root", root)? };
        Ok((collective, Lengths::apart(count, if me.is(root) { count } else { 0 })))
    };
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, (count, datatype, Some(op)), (sendbuff, recvbuff, stream), shape) }
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
    let shape = |me: Seat| {
        let collective = Collective::Gather { root: root_of(me, "gather: root", root)? };
        let at_root = me.is(root);
        Ok((collective, if at_root { me.gathering(count) } else { Lengths::apart(count, 0) }))
    };
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, (count, datatype, None), (sendbuff, recvbuff, stream), shape) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclScatter(
    sendbuff: *const c_void,
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    root: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    let shape = |me: Seat| {
        let collective = Collective::Scatter { root: root_of(me, "scatter: root", root)? };
        let block = Lengths::apart(0, count);
        Ok((collective, if me.is(root) { me.gathering(count).reversed() } else { block }))
    };
    // SAFETY: the caller's promise.
    unsafe { carry_out(comm, (count, datatype, None), (sendbuff, recvbuff, stream), shape) }
}

/// The root that C means, as calls number ranks.
fn root_of(seat: Seat, purpose: &str, root: c_int) -> Outcome<u32> {
    Ok(seat.member(purpose, root)? as u32)
}

/// Carry a collective out, or list or start it: so many elements of a block, of a type, by an
/// operator. `shape` says which it is, and how long its buffers are on this rank.
///
/// # Safety
///
/// The memory is what C must pass, until the call has ended.
unsafe fn carry_out(
    comm: ncclComm_t,
    (count, datatype, op): (usize, c_int, Option<ncclRedOp_t>),
    (input, output, stream): (*const c_void, *mut c_void, cudaStream_t),
    shape: impl FnOnce(Seat) -> Outcome<(Collective, Lengths)>,
) -> ncclResult_t {
    enter_for(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let dtype = dtype(datatype)?;
        let op = match op {
            // SAFETY: the caller's promise.
            Some(op) => unsafe { parse(op, dtype, &comm) }?,
            None => Op::Sum,
        };
        let (collective, lengths) = shape(comm.member()?.seat())?;
        let call = Call::new(collective, dtype, op, count);
        let memory = Memory::new(input, output, lengths, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { group::later(&comm, What::Collective { call, memory }, stream) }
    })
}
