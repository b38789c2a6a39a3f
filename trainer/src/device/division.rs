//! Ranks that divide the inside of a model's units, as a device's passes meet them: Megatron's sums
//! over heads and hidden numbers, in the order of what is computed. The devices themselves add up,
//! or, where those do not reach each other, the hosts, for which each sum is waited for.

use super::calls::Calls;
use super::wire::Wire;
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::trace::{self, Lane};
use brigade_comm::{Call, Communicator, Dtype, Op};
use brigade_cuda::Stream;
use brigade_schedule::Collective;
use std::time::{Duration, Instant};

/// Those who divide a model.
pub(crate) struct DeviceDivision<'a> {
    comm: &'a Communicator,
    by: By<'a>,
    /// Whether sums are left out, where passes are made for the sake of the code alone.
    is_silent: bool,
    /// How long the host waited for the others.
    waited: Duration,
}

enum By<'a> {
    Devices(Calls<'a>),
    /// With room for what is summed.
    Hosts(Wire, Vec<f32>),
}

impl<'a> DeviceDivision<'a> {
    /// Of these ranks, beside what computes, for sums of up to `most` numbers. By the devices if
    /// they may, and can. Collective.
    pub(crate) fn open(
        comm: &'a Communicator,
        may_devices: bool,
        compute: &Stream,
        most: usize,
    ) -> Result<DeviceDivision<'a>, Error> {
        let calls = match may_devices {
            true => Calls::new(comm, compute)?,
            false => None,
        };
        let by = match calls {
            Some(calls) => By::Devices(calls),
            None => By::Hosts(Wire::new(compute, 4 * most)?, vec![0.0; most]),
        };
        Ok(DeviceDivision { comm, by, is_silent: false, waited: Duration::ZERO })
    }

    /// Whether this rank has what is there once: biases, and the stream that is gone on from.
    pub(crate) fn is_first(&self) -> bool {
        self.comm.rank() == 0
    }

    /// One clause: how many they are, and who sums.
    pub(crate) fn describe(&self) -> String {
        let how = self.calls().map_or("by the hosts", Calls::describe);
        format!(", heads and hidden numbers divided by {} and summed {how}", self.comm.size())
    }

    /// Calls of the devices, if they sum.
    pub(crate) fn calls(&self) -> Option<&Calls<'a>> {
        if let By::Devices(calls) = &self.by { Some(calls) } else { None }
    }

    /// Whether passes must be rehearsed before ranks `meet`: see `Calls::shares_process`.
    pub(crate) fn shares_process(&self) -> bool {
        self.calls().is_some_and(Calls::shares_process)
    }

    /// Behind that.
    pub(crate) fn meet(&mut self) -> Result<(), Error> {
        if let By::Devices(calls) = &mut self.by { calls.meet() } else { Ok(()) }
    }

    /// Leave sums out, or no more.
    pub(crate) fn hush(&mut self, is_silent: bool) {
        self.is_silent = is_silent;
    }

    /// Sum over all of them, in place, before what is computed next.
    pub(crate) fn all_reduce(&mut self, view: View) -> Result<(), Error> {
        if self.is_silent {
            return Ok(());
        }
        match &mut self.by {
            By::Devices(calls) => {
                let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, view.len());
                calls.in_order(&call, view)
            }
            By::Hosts(wire, room) => {
                let room = &mut room[..view.len()];
                wire.read(view, room)?;
                let span =
                    trace::span(Lane::Waiting, "for the other parts of the model", view.len());
                let begun = Instant::now();
                self.comm.all_reduce(room, Op::Sum)?;
                self.waited += begun.elapsed();
                drop(span);
                wire.put(view, room)
            }
        }
    }

    /// How long the host waited for the others since this was asked last.
    pub(crate) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Whether the host waits for the others within a pass: such a sum is no matter of the device.
    pub(crate) fn holds_up_host(&self) -> bool {
        self.calls().is_none_or(Calls::meets)
    }

    /// Whether the hosts add up, whose formulas tell what they send.
    pub(crate) fn is_by_hosts(&self) -> bool {
        matches!(self.by, By::Hosts(..))
    }

    /// Bytes of the host's memory.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.by {
            By::Devices(_) => 0,
            By::Hosts(wire, room) => wire.bytes() + 4 * room.len() as u64,
        }
    }

    /// Wait for all that is on its way between host and device.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        if let By::Hosts(wire, _) = &self.by { wire.settle() } else { Ok(()) }
    }
}
