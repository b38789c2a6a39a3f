//! The collectives without a root, one function each.

use std::ffi::c_void;

use crate::call::carry_out;
use crate::comm::{Comm, brigade_comm_t};
use crate::dtype::DtypeCode;
use crate::error::{brigade_result_t, enter};
use crate::op::brigade_op_t;
use crate::shape;
use crate::work::brigade_work_t;
use brigade_wall::handle::pin;

/// recvbuf of every rank = the fold of the sendbufs of all ranks, `count` elements each; with the
/// same bits everywhere. In place: sendbuf == recvbuf.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_all_reduce(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    op: brigade_op_t,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let shape = shape::all_reduce(count, dtype, op)?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
    })
}

/// recvbuf of rank r = block r of the fold of the sendbufs of all ranks. sendbuf: nranks *
/// recvcount elements, recvbuf: recvcount. In place: recvbuf == sendbuf + rank * recvcount.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_reduce_scatter(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcount: usize,
    dtype: DtypeCode,
    op: brigade_op_t,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let shape = shape::reduce_scatter(comm.seat(), recvcount, dtype, op)?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
    })
}

/// Like brigade_reduce_scatter with recvcounts[r] elements for rank r, the same list on all ranks.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_reduce_scatter_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    recvcounts: *const usize,
    dtype: DtypeCode,
    op: brigade_op_t,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        // SAFETY: the caller's promise.
        let shape = unsafe { shape::reduce_scatter_v(comm.seat(), recvcounts, dtype, op) }?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
    })
}

/// recvbuf of every rank = the sendbufs of all ranks, in their order. sendbuf: sendcount elements,
/// recvbuf: nranks * sendcount. In place: sendbuf == recvbuf + rank * sendcount.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_all_gather(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    sendcount: usize,
    dtype: DtypeCode,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let shape = shape::all_gather(comm.seat(), sendcount, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
    })
}

/// Like brigade_all_gather with sendcounts[r] elements from rank r, the same list on all ranks.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_all_gather_v(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    sendcounts: *const usize,
    dtype: DtypeCode,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        // SAFETY: the caller's promise.
        let shape = unsafe { shape::all_gather_v(comm.seat(), sendcounts, dtype) }?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
    })
}

/// Block s of recvbuf of rank t = block t of sendbuf of rank s. Both hold nranks * count elements.
/// In place: sendbuf == recvbuf.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_all_to_all(
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let shape = shape::all_to_all(comm.seat(), count, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
    })
}

/// Like brigade_all_to_all with sendcounts[r] elements to rank r and recvcounts[r] from it, one
/// block behind the other; for itself a rank has one number in both. In place: sendbuf == recvbuf,
/// with as many elements out as in.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_all_to_all_v(
    sendbuf: *const c_void,
    sendcounts: *const usize,
    recvbuf: *mut c_void,
    recvcounts: *const usize,
    dtype: DtypeCode,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        // SAFETY: the caller's promise.
        let shape = unsafe { shape::all_to_all_v(comm.seat(), sendcounts, recvcounts, dtype) }?;
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, shape, sendbuf, recvbuf, work) }
    })
}

/// Wait until every rank has come here.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_barrier(
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let shape = shape::barrier();
        let nothing = std::ptr::null_mut();
        // SAFETY: there is no memory.
        unsafe { carry_out(&comm, shape, nothing, nothing, work) }
    })
}
