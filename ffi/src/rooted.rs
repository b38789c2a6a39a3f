//! The collectives with a root, one function each.

use std::ffi::{c_int, c_void};

use crate::call::carry_out;
use crate::comm::{Comm, brigade_comm_t};
use crate::dtype::DtypeCode;
use crate::error::{brigade_result_t, enter};
use crate::op::brigade_op_t;
use crate::shape;
use crate::work::brigade_work_t;
use brigade_wall::handle::pin;

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
        let shape = shape::broadcast(comm.seat(), count, dtype, root)?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
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
        let shape = shape::reduce(comm.seat(), count, dtype, op, root)?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
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
        let shape = shape::gather(comm.seat(), sendcount, dtype, root)?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
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
        let shape = unsafe { shape::gather_v(comm.seat(), sendcounts, dtype, root) }?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
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
        let shape = shape::scatter(comm.seat(), recvcount, dtype, root)?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
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
        let shape = unsafe { shape::scatter_v(comm.seat(), recvcounts, dtype, root) }?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
    })
}
