//! The collectives with a root, one function each.

use std::ffi::{c_int, c_void};

use brigade_comm::Call;
use brigade_schedule::Collective;

use crate::call::{carry_out, moving, rank_number};
use crate::comm::{Comm, brigade_comm_t};
use crate::dtype::DtypeCode;
use crate::error::{brigade_result_t, enter};
use crate::op::{brigade_op_t, parse};
use crate::work::brigade_work_t;
use brigade_wall::handle::pin;
use brigade_wall::memory::Lengths;

/// recvbuf of every rank = sendbuf of rank `root`, `count` elements. sendbuf counts only there. In
/// place: sendbuf == recvbuf.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_broadcast(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    root: c_int,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let collective = Collective::Broadcast { root: rank_number(root) };
        let call = Call::moving(collective, dtype.parse()?, count);
        let lengths = Lengths::apart(if comm.is(root) { count } else { 0 }, count);
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths, sendbuf, recvbuf, work) }
    })
}

/// recvbuf of rank `root` = the fold of the sendbufs of all ranks, `count` elements each. recvbuf
/// counts only there. In place: sendbuf == recvbuf.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_reduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    op: brigade_op_t,
    root: c_int,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let collective = Collective::Reduce { root: rank_number(root) };
        let call = Call::new(collective, dtype.parse()?, parse(op)?, count);
        let lengths = Lengths::apart(count, if comm.is(root) { count } else { 0 });
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths, sendbuf, recvbuf, work) }
    })
}

/// recvbuf of rank `root` = the sendbufs of all ranks, in their order. sendbuf: sendcount elements,
/// recvbuf: nranks * sendcount, which counts only there. In place: sendbuf == recvbuf + rank *
/// sendcount.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_gather(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    sendcount: usize,
    dtype: DtypeCode,
    root: c_int,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let collective = Collective::Gather { root: rank_number(root) };
        let call = Call::moving(collective, dtype.parse()?, sendcount);
        let lengths = match comm.is(root) {
            true => comm.gathering(sendcount),
            false => Lengths::apart(sendcount, 0),
        };
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths, sendbuf, recvbuf, work) }
    })
}

/// Like brigade_gather with sendcounts[r] elements from rank r. Rank `root` needs the whole list
/// right; elsewhere only the rank's own count matters.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_gather_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    sendcounts: *const usize,
    dtype: DtypeCode,
    root: c_int,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        // SAFETY: the caller's promise.
        let (counts, lengths) = unsafe { comm.counts_at(root, sendcounts, "sendcounts") }?;
        let collective = Collective::Gather { root: rank_number(root) };
        let call = moving(collective, dtype.parse()?, counts);
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths, sendbuf, recvbuf, work) }
    })
}

/// recvbuf of rank r = block r of sendbuf of rank `root`. recvbuf: recvcount elements, sendbuf:
/// nranks * recvcount, which counts only there. In place: recvbuf == sendbuf + rank * recvcount.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_scatter(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcount: usize,
    dtype: DtypeCode,
    root: c_int,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let collective = Collective::Scatter { root: rank_number(root) };
        let call = Call::moving(collective, dtype.parse()?, recvcount);
        let lengths = match comm.is(root) {
            true => comm.gathering(recvcount),
            false => Lengths::apart(recvcount, 0),
        };
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths.reversed(), sendbuf, recvbuf, work) }
    })
}

/// Like brigade_scatter with recvcounts[r] elements for rank r. Rank `root` needs the whole list
/// right; elsewhere only the rank's own count matters.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_scatter_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcounts: *const usize,
    dtype: DtypeCode,
    root: c_int,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        // SAFETY: the caller's promise.
        let (counts, lengths) = unsafe { comm.counts_at(root, recvcounts, "recvcounts") }?;
        let collective = Collective::Scatter { root: rank_number(root) };
        let call = moving(collective, dtype.parse()?, counts);
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths.reversed(), sendbuf, recvbuf, work) }
    })
}
