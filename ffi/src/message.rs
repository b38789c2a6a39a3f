//! Messages between two ranks.

use std::ffi::{c_int, c_void};

use crate::call::on_device;
use crate::comm::{Comm, brigade_comm_t, may_wait};
use crate::dtype::DtypeCode;
use crate::error::{Outcome, brigade_result_t, enter};
use crate::group;
use crate::work::brigade_work_t;
use brigade_wall::handle::pin;
use brigade_wall::listed::What;
use brigade_wall::memory::Memory;
use brigade_wall::pointer::Out;

/// Send `count` elements to rank `peer`, which must receive as many of the same type. Returns when
/// sendbuf may be used again, which may be before they have arrived. Messages between two ranks
/// keep their order. Calls on one communicator begin in the order in which they were made, with a
/// work, too: ranks that both send to each other first, or both receive first, and do the other
/// afterwards wait for each other until BRIGADE_TIMEOUT_MS. Put both into a group.
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
        let memory = Memory::of_message("sendbuf", sendbuf, count, dtype)?;
        let peer = comm.seat().member("message: rank", peer)?;
        refuse_on_device(&comm, &memory, "brigade_device_send")?;
        // SAFETY: the caller's promise.
        unsafe { group::later(&comm, What::Send { dtype, memory, peer }, work) }
    })
}

/// Receive `count` elements from rank `peer`; in a group with what goes there at the same time, as
/// brigade_send says.
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
        let memory = Memory::of_message("recvbuf", recvbuf, count, dtype)?;
        let peer = comm.seat().member("message: rank", peer)?;
        refuse_on_device(&comm, &memory, "brigade_device_recv")?;
        // SAFETY: the caller's promise.
        unsafe { group::later(&comm, What::Recv { dtype, memory, peer }, work) }
    })
}

/// Receive the next message of whichever other rank has one: at most `count` elements, into the
/// first ones of recvbuf. `source` gets who sent it, and `received`, which may be NULL, how many
/// there were. No sender is passed over for ever. A message of another type, or a longer one, is
/// BRIGADE_INVALID_ARGUMENT and still there. It has no form in a group or with a work.
///
/// Threads: from any thread; calls on one communicator are carried out one after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_recv_any(
    recvbuf: *mut c_void,
    count: usize,
    dtype: DtypeCode,
    comm: brigade_comm_t,
    source: *mut c_int,
    received: *mut usize,
) -> brigade_result_t {
    enter(|| {
        may_wait("brigade_recv_any")?;
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let dtype = dtype.parse()?;
        let memory = Memory::of_message("recvbuf", recvbuf, count, dtype)?;
        refuse_on_device(&comm, &memory, "brigade_device_recv")?;
        let source = Out::new(source, "source")?;
        let told = if received.is_null() { None } else { Some(Out::new(received, "received")?) };
        // SAFETY: C passes as much memory as it says.
        let came = comm.communicator.recv_any_bytes(dtype, unsafe { memory.written() })?;
        // SAFETY: C passes a place for it.
        unsafe { source.put(came.source as c_int) };
        if let Some(told) = told {
            // SAFETY: likewise.
            unsafe { told.put(came.count) };
        }
        Ok(())
    })
}

/// Refuse memory that the host cannot read, with the function that can.
fn refuse_on_device(comm: &Comm, memory: &Memory, twin: &str) -> Outcome {
    comm.sight.hidden(memory).map_or(Ok(()), |hidden| Err(on_device(hidden, twin)))
}
