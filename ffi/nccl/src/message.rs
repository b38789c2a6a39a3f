//! Messages between two ranks.

use std::ffi::{c_int, c_void};

use brigade_wall::handle::pin;
use brigade_wall::listed::What;
use brigade_wall::memory::Memory;

use crate::collective::cudaStream_t;
use crate::comm::{Comm, ncclComm_t};
use crate::group;
use crate::op::dtype;
use crate::result::{enter_for, ncclResult_t};

/// Outside of a group it returns when sendbuff may be used again, which may be before the elements
/// have arrived.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    sendbuff: *const c_void,
    count: usize,
    datatype: c_int,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    enter_for(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let dtype = dtype(datatype)?;
        let memory = Memory::of_message(sendbuff, count, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { group::later(&comm, What::Send { dtype, memory, peer }, stream) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    recvbuff: *mut c_void,
    count: usize,
    datatype: c_int,
    peer: c_int,
    comm: ncclComm_t,
    stream: cudaStream_t,
) -> ncclResult_t {
    enter_for(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let dtype = dtype(datatype)?;
        let memory = Memory::of_message(recvbuff, count, dtype)?;
        // SAFETY: the caller's promise.
        unsafe { group::later(&comm, What::Recv { dtype, memory, peer }, stream) }
    })
}
