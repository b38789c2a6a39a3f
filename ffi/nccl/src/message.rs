//! Messages between two ranks.

use std::ffi::{c_int, c_void};

use brigade_wall::handle::pin;
use brigade_wall::listed::What;
use brigade_wall::memory::Memory;
use brigade_wall::{Failure, Outcome};

use crate::comm::{Comm, ncclComm_t};
use crate::device::cudaStream_t;
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
        let memory = Memory::of_message("sendbuff", sendbuff, count, dtype)?;
        let peer = number(&comm, peer)?;
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
        let memory = Memory::of_message("recvbuff", recvbuff, count, dtype)?;
        let peer = number(&comm, peer)?;
        // SAFETY: the caller's promise.
        unsafe { group::later(&comm, What::Recv { dtype, memory, peer }, stream) }
    })
}

/// The rank that C means. Of a communicator that is still being made the size is not known yet.
fn number(comm: &Comm, peer: c_int) -> Outcome<usize> {
    match comm.joined.get() {
        Some(Ok(Some(member))) => member.seat().member("message: rank", peer),
        _ => usize::try_from(peer).map_err(|_| Failure::argument(format!("message: rank {peer}"))),
    }
}
