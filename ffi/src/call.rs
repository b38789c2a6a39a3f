//! What all collectives do once C's arguments have become a call.

use std::ffi::c_void;

use brigade_comm::{Call, Counts};
use brigade_wall::handle::Pinned;
use brigade_wall::listed::What;
use brigade_wall::memory::{Memory, Seat};

use crate::comm::Comm;
use crate::error::{Failure, Outcome};
use crate::group;
use crate::shape::Shape;
use crate::thread;
use crate::work::brigade_work_t;

/// Carry a call out, or list it in the open group, or start it.
///
/// # Safety
///
/// The memory is what C must pass, until the call has ended.
#[inline(always)]
pub(crate) unsafe fn carry_out(
    comm: &Pinned<Comm>,
    Shape { call, lengths }: Shape,
    sendbuf: *const c_void,
    recvbuf: *mut c_void,
    work: *mut brigade_work_t,
) -> Outcome {
    let memory = Memory::new(sendbuf, recvbuf, lengths, call.dtype)?;
    if let Some(hidden) = comm.sight.hidden(&memory) {
        return Err(on_device(hidden, &twin(&call)));
    }
    if work.is_null() && thread::is_plain() {
        // SAFETY: the caller's promise.
        let buffers = unsafe { memory.buffers() };
        return Ok(comm.communicator.run(&call, buffers)?);
    }
    // SAFETY: the caller's promise.
    unsafe { group::later(comm, What::Collective { call, memory }, work) }
}

impl Comm {
    /// Where lengths are counted from.
    #[inline(always)]
    pub(crate) fn seat(&self) -> Seat {
        Seat { rank: self.communicator.rank(), ranks: self.communicator.size() }
    }
}

/// A call on memory that the host cannot read, with the function that can.
#[cold]
pub(crate) fn on_device(address: u64, twin: &str) -> Box<Failure> {
    Failure::argument(format!(
        "the memory at {address:#x} is that of a device, which this call cannot read: {twin} does, \
         on a group that brigade_device_group_create makes"
    ))
}

/// The function that makes a call on memory of devices.
#[cold]
fn twin(call: &Call) -> String {
    let name = call.collective.to_string().replace('-', "_");
    let form = if matches!(call.counts, Counts::Even(_)) { "" } else { "_v" };
    format!("brigade_device_{name}{form}")
}
