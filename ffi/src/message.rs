//! Messages between two ranks.

use std::ffi::{c_int, c_void};

use crate::comm::{Comm, brigade_comm_t};
use crate::dtype::DtypeCode;
use crate::error::{brigade_result_t, enter};
use crate::group;
use crate::work::brigade_work_t;
use brigade_wall::handle::pin;
use brigade_wall::listed::What;
use brigade_wall::memory::Memory;

/// Send `count` elements to rank `peer`, which must receive as many of the same type. Returns when
/// sendbuf may be used again, which may be before they have arrived. Messages between two ranks
/// keep their order. Ranks that send to each other first and receive afterwards may wait for each
/// other: put both into a group.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_send(
    sendbuf: *const c_void,
    count: usize,
    dtype: DtypeCode,
    peer: c_int,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let dtype = dtype.parse()?;
        let memory = Memory::of_message(sendbuf, count, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { group::later(&comm, What::Send { dtype, memory, peer }, work) }
    })
}

/// Receive `count` elements from rank `peer`.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_recv(
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    peer: c_int,
    comm: brigade_comm_t,
    work: *mut brigade_work_t,
) -> brigade_result_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let dtype = dtype.parse()?;
        let memory = Memory::of_message(recvbuf, count, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { group::later(&comm, What::Recv { dtype, memory, peer }, work) }
    })
}
