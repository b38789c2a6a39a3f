//! The collectives without a root, one function each.

use std::ffi::c_void;

use brigade_comm::{Call, Counts, Dtype};
use brigade_schedule::Collective;

use crate::call::{carry_out, moving};
use crate::comm::{Comm, brigade_comm_t};
use crate::dtype::DtypeCode;
use crate::error::{brigade_result_t, enter};
use crate::op::{brigade_op_t, parse};
use crate::work::brigade_work_t;
use brigade_wall::handle::pin;
use brigade_wall::memory::{Lengths, sum};
use brigade_wall::pointer::list;

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
        let call = Call::new(Collective::AllReduce, dtype.parse()?, parse(op)?, count);
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, Lengths::equal(count), sendbuf, recvbuf, work) }
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
        let call = Call::new(Collective::ReduceScatter, dtype.parse()?, parse(op)?, recvcount);
        let lengths = comm.gathering(recvcount).reversed();
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths, sendbuf, recvbuf, work) }
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
        let (counts, lengths) = unsafe { comm.counts(recvcounts, "recvcounts") }?;
        let collective = Collective::ReduceScatter;
        let call = Call { collective, dtype: dtype.parse()?, op: parse(op)?, counts };
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths.reversed(), sendbuf, recvbuf, work) }
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
        let call = Call::moving(Collective::AllGather, dtype.parse()?, sendcount);
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, comm.gathering(sendcount), sendbuf, recvbuf, work) }
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
        let (counts, lengths) = unsafe { comm.counts(sendcounts, "sendcounts") }?;
        let call = moving(Collective::AllGather, dtype.parse()?, counts);
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths, sendbuf, recvbuf, work) }
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
        let call = Call::moving(Collective::AllToAll, dtype.parse()?, count);
        let lengths = Lengths::equal(count.saturating_mul(comm.communicator.size()));
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths, sendbuf, recvbuf, work) }
    })
}

/// Like brigade_all_to_all with sendcounts[r] elements to rank r and recvcounts[r] from it, one
/// block behind the other. In place: sendbuf == recvbuf, with as many elements out as in.
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
        let ranks = comm.communicator.size();
        // SAFETY: the caller's promise.
        let to = unsafe { list(sendcounts, ranks, "sendcounts") }?;
        // SAFETY: the caller's promise.
        let from = unsafe { list(recvcounts, ranks, "recvcounts") }?;
        let lengths = Lengths::apart(sum(to), sum(from));
        let counts = Counts::PerPair { to: to.into(), from: from.into() };
        let call = moving(Collective::AllToAll, dtype.parse()?, counts);
        // SAFETY: the caller's promise.
        unsafe { carry_out(&comm, call, lengths, sendbuf, recvbuf, work) }
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
        let call = Call::moving(Collective::Barrier, Dtype::U8, 0);
        let nothing = std::ptr::null_mut();
        // SAFETY: there is no memory.
        unsafe { carry_out(&comm, call, Lengths::equal(0), nothing, nothing, work) }
    })
}
