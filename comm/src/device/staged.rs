//! Calls through pinned memory of the host: what always works.

use brigade_cuda::Stream;

use super::Inner;
use super::exchange::{agree, trouble};
use super::lent::Staging;
use super::looks::Looks;
use super::plans::Plan;
use super::room::Room;
use crate::Error;
use crate::call::{Buffers, Call};

impl Inner {
    /// Carry out a call through the host, or as much of it as goes from node to node.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::enqueue`].
    pub(super) unsafe fn staged(
        &self,
        staging: &mut Staging,
        rooms: &mut Vec<Room>,
        plan: &Plan,
        call: &Call,
        buffers: (u64, u64),
        stream: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.nodes {
                Some(nodes) if nodes.takes(call) => {
                    nodes.carry_out(self, rooms, call, buffers, stream)
                }
                _ => self.stage(staging, plan, call, buffers, stream),
            }
        }
    }

    /// Carry out a call through the host.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::enqueue`].
    pub(super) unsafe fn stage(
        &self,
        staging: &mut Staging,
        plan: &Plan,
        call: &Call,
        (input, output): (u64, u64),
        stream: &Stream,
    ) -> Result<(), Error> {
        let failed = |error| self.give_up(call, &error, stream);
        let size = call.dtype.size();
        let (input_bytes, output_bytes) = (plan.elems.0 * size, plan.elems.1 * size);
        // Pinning may wait for the device and hold up others who use it: calls that kernels are in
        // must have all their ranks by now, and no further one may begin meanwhile.
        let shared = &self.watched.shared;
        let pins =
            self.way.is_enqueued() && !agree(shared, staging.fits(input_bytes, output_bytes))?;
        let room = staging.room(&self.context, input_bytes, output_bytes);
        let (from, to) = room.map_err(failed)?;
        if pins {
            agree(shared, true)?;
        }
        // SAFETY: the caller vouches for the input; ours is as long, and waited for.
        unsafe { stream.copy(from.as_mut_ptr() as u64, input, input_bytes) }.map_err(failed)?;
        self.settle(stream)?;
        let (source, target) =
            (&from.as_slice()[..input_bytes], &mut to.as_mut_slice()[..output_bytes]);
        shared.progress.drain();
        let buffers = Buffers::OutOfPlace { input: source, output: target };
        shared.run_now(call, buffers).map_err(|error| *error)?;
        // SAFETY: likewise.
        unsafe { stream.copy(output, to.as_ptr() as u64, output_bytes) }.map_err(failed)?;
        self.settle(stream)
    }

    /// Wait until the stream is empty, no longer than a call may take.
    pub(super) fn settle(&self, stream: &Stream) -> Result<(), Error> {
        let failed = |error| trouble("waiting for a stream", &error);
        let mut looks = Looks::begin(self.ranks_here());
        while !stream.is_done().map_err(failed)? {
            if !looks.rest() {
                continue;
            }
            self.watched.check()?;
            let waited = looks.begun.elapsed();
            if waited > self.watched.shared.settings.timeout {
                let (place, waited_ms) = ("a stream does not end".into(), waited.as_millis());
                let (waited_ms, others) = (waited_ms as u64, String::new());
                return Err(Error::Timeout { place, waited_ms, others });
            }
        }
        Ok(())
    }
}
