//! Calls through pinned memory of the host: what always works.

pub(super) mod pieces;
pub(super) mod relay;

use brigade_cuda::{CudaError, Stream};

use super::Inner;
use super::exchange::{agree, trouble};
use super::looks::Looks;
use super::room::Room;
use crate::Error;
use crate::call::{Call, Counts};
use relay::{Crossing, Relay, Staging};

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
        call: &Call,
        buffers: (u64, u64),
        stream: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.nodes {
                Some(nodes) if nodes.takes(call) => {
                    nodes.carry_out(self, (staging, rooms), call, buffers, stream)
                }
                _ => self.stage(staging, call, buffers, stream),
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
        call: &Call,
        (input, output): (u64, u64),
        stream: &Stream,
    ) -> Result<(), Error> {
        let shared = &self.watched.shared;
        self.pin(staging, (call, stream), call.buffer_elems(shared.ranks, shared.rank))?;
        let whole = if let Counts::Even(count) = call.counts { count } else { 0 };
        let crossing = Crossing { call, whole, input, output };
        let mut relay = Relay::new(self, shared, staging, stream)?;
        // SAFETY: the caller's promise.
        let done =
            unsafe { relay.bring_down(&crossing).and_then(|()| relay.take_across(&crossing)) };
        match done {
            // What ended the world took its time; pinned memory stays as long as the group does.
            Err(error) if !error.is_recoverable() => Err(error),
            done => {
                let settled = self.settle(stream);
                done.and(settled)
            }
        }
    }

    /// Have pinned memory for so many elements each of a call. Pinning may wait for the device and
    /// hold up others who use it: calls that kernels are in must have all their ranks by now, and
    /// no further one may begin meanwhile.
    pub(super) fn pin(
        &self,
        staging: &mut Staging,
        (call, stream): (&Call, &Stream),
        (input_elems, output_elems): (usize, usize),
    ) -> Result<(), Error> {
        let bytes = [input_elems, output_elems].map(|elems| elems * call.dtype.size());
        let bytes = (bytes[0], bytes[1]);
        let waiting = match &self.nodes {
            _ if self.way.is_enqueued() => Some(&self.watched.shared),
            Some(nodes) if !nodes.has_pinned(call) => nodes.waiting(),
            _ => None,
        };
        let pins = match waiting {
            Some(shared) => !agree(shared, staging.fits(bytes))?,
            None => !staging.fits(bytes),
        };
        if pins {
            let made = staging.make_room(&self.context, bytes);
            made.map_err(|error| self.give_up(call, &error, stream))?;
        }
        match waiting {
            Some(shared) if pins => agree(shared, true).map(drop),
            _ => Ok(()),
        }
    }

    /// Wait until the stream is empty, no longer than a call may take.
    pub(super) fn settle(&self, stream: &Stream) -> Result<(), Error> {
        self.await_device("a stream", || stream.is_done())
    }

    /// Wait until something on the device has ended, likewise.
    pub(super) fn await_device(
        &self,
        what: &str,
        mut is_done: impl FnMut() -> Result<bool, CudaError>,
    ) -> Result<(), Error> {
        let failed = |error| trouble(&format!("waiting for {what}"), &error);
        let mut looks = Looks::begin(self.ranks_here());
        while !is_done().map_err(failed)? {
            if !looks.rest() {
                continue;
            }
            self.watched.check()?;
            let waited = looks.begun.elapsed();
            if waited > self.watched.shared.settings.timeout {
                let (place, waited_ms) = (format!("{what} does not end"), waited.as_millis());
                let (waited_ms, others) = (waited_ms as u64, String::new());
                return Err(Error::Timeout { place, waited_ms, others });
            }
        }
        Ok(())
    }
}
