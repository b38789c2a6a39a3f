//! Ranks that divide the inside of a model's units, as a device's passes meet them: what they send
//! each other, in the order of what is computed, or beside it. The devices themselves do that, or,
//! where those do not reach each other, the hosts, for which each call is waited for.
//!
//! | way | what a rank has | what is sent |
//! |---|---|---|
//! | `tp` | heads and hidden numbers | sums of the stream |
//! | `sp` | these, and rows of the stream | rows, sums of them; gradients of norms and ends |
//! | `ring` | rows, of the inside too | keys and values to the next; all gradients |
//! | `ep` | samples, and some experts | all gradients but those of experts; rows: `mixture` |

use super::calls::{Calls, dtype};
use super::wire::Wire;
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::parallel::tensor::{Circle, Inside};
use crate::trace::{self, Lane};
use brigade_comm::{Buffers, Call, Communicator, Dtype, Op};
use brigade_cuda::Stream;
use brigade_schedule::Collective;
use std::time::{Duration, Instant};

/// Those who divide a model.
pub(crate) struct DeviceDivision<'a> {
    comm: &'a Communicator,
    way: Inside,
    by: By<'a>,
    /// Whether calls are left out, where passes are made for the sake of the code alone.
    is_silent: bool,
    /// How long the host waited for the others.
    waited: Duration,
}

enum By<'a> {
    Devices(Calls<'a>),
    Hosts(Hosts),
}

/// Calls of the hosts.
struct Hosts {
    wire: Wire,
    /// What is given, and what is got, where that is not in its place.
    rooms: [Vec<f32>; 2],
    /// What has begun to come down, for which call, and where what it gives goes.
    next: Option<(Call, [View; 2])>,
}

impl<'a> DeviceDivision<'a> {
    /// Of these ranks, beside what computes; calls give and get up to `most` numbers. By the
    /// devices if they can, and so many groups may. Collective.
    pub(crate) fn open(
        comm: &'a Communicator,
        way: Inside,
        groups: u32,
        compute: &Stream,
        most: [usize; 2],
    ) -> Result<DeviceDivision<'a>, Error> {
        let by = match Calls::new(comm, groups, compute, way == Inside::Experts)? {
            Some(calls) => By::Devices(calls),
            None => By::Hosts(Hosts {
                wire: Wire::new(compute, 4 * most[0])?,
                rooms: most.map(|len| vec![0.0; len]),
                next: None,
            }),
        };
        Ok(DeviceDivision { comm, way, by, is_silent: false, waited: Duration::ZERO })
    }

    /// What they divide.
    pub(crate) fn way(&self) -> Inside {
        self.way
    }

    /// Whether each has heads and hidden numbers of its own.
    pub(crate) fn divides_heads(&self) -> bool {
        matches!(self.way, Inside::Heads | Inside::Sequence)
    }

    /// Whether each has rows of the stream of its own.
    pub(crate) fn divides_rows(&self) -> bool {
        self.way != Inside::Heads
    }

    /// Whether this rank has what is there once: biases, and the stream that is gone on from.
    pub(crate) fn is_first(&self) -> bool {
        self.comm.rank() == 0
    }

    /// Where this rank stands, if keys and values go round.
    pub(crate) fn circle(&self) -> Option<Circle> {
        let circle = Circle { rank: self.comm.rank(), ranks: self.comm.size() };
        (self.way == Inside::Ring).then_some(circle)
    }

    /// One clause: how many they are, and who does what they do together.
    pub(crate) fn describe(&self) -> String {
        let how = self.calls().map_or("by the hosts", Calls::describe);
        let ranks = self.comm.size();
        match self.way {
            Inside::Ring => {
                format!(", tokens divided by {ranks}, keys and values passed on {how}")
            }
            Inside::Experts => {
                let rows = match self.calls().is_some_and(Calls::has_messages) {
                    true => ", rows from device to device",
                    false => "",
                };
                format!(", experts and samples divided by {ranks}{rows}, gradients summed {how}")
            }
            Inside::Sequence => {
                format!(", heads, hidden numbers and rows divided by {ranks} and summed {how}")
            }
            _ => format!(", heads and hidden numbers divided by {ranks} and summed {how}"),
        }
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

    /// Leave calls out, or no more.
    pub(crate) fn hush(&mut self, is_silent: bool) {
        self.is_silent = is_silent;
    }

    /// Sum over all of them, in place, before what is computed next.
    pub(crate) fn all_reduce(&mut self, view: View) -> Result<(), Error> {
        let By::Devices(calls) = &mut self.by else {
            self.reduce_beside(view)?;
            return self.arrive();
        };
        if self.is_silent { Ok(()) } else { calls.in_order(&sum(view), view) }
    }

    /// The same beside what is computed next, which keeps away from it until they `arrive`.
    pub(crate) fn reduce_beside(&mut self, view: View) -> Result<(), Error> {
        self.beside(sum(view), [view, view])
    }

    /// Everybody's rows, in their order, are in `to` when they `arrive`; what is computed meanwhile
    /// does not write `from`.
    pub(crate) fn gather_beside(&mut self, from: View, to: View) -> Result<(), Error> {
        self.beside(Call::moving(Collective::AllGather, dtype(from), from.len()), [from, to])
    }

    /// So are this rank's rows of the sum.
    pub(crate) fn scatter_beside(&mut self, from: View, to: View) -> Result<(), Error> {
        let call = Call::new(Collective::ReduceScatter, Dtype::F32, Op::Sum, to.len());
        self.beside(call, [from, to])
    }

    /// So is what the last of a ring had there, when `from` has gone to the next.
    pub(crate) fn pass_on(&mut self, from: View, to: View) -> Result<(), Error> {
        let circle = self.circle().expect("they are a ring");
        self.beside(circle.step(from.len(), dtype(from)), [from, to])
    }

    /// Calls of the devices, if they pass on as many rows as gates say.
    pub(super) fn messages(&mut self) -> Option<&mut Calls<'a>> {
        match &mut self.by {
            By::Devices(calls) if calls.has_messages() => Some(calls),
            _ => None,
        }
    }

    /// What is computed after this sees what came of that.
    pub(crate) fn arrive(&mut self) -> Result<(), Error> {
        match &mut self.by {
            _ if self.is_silent => Ok(()),
            By::Devices(calls) => calls.deliver(),
            By::Hosts(hosts) => {
                self.waited += hosts.arrive(self.comm)?;
                Ok(())
            }
        }
    }

    fn beside(&mut self, call: Call, views: [View; 2]) -> Result<(), Error> {
        match &mut self.by {
            _ if self.is_silent => Ok(()),
            By::Devices(calls) => calls.later(call, views),
            By::Hosts(hosts) => {
                hosts.wire.fetch(views[0])?;
                hosts.next = Some((call, views));
                Ok(())
            }
        }
    }

    /// What each slot's rows came to becomes what all rows did.
    pub(crate) fn sum_losses(&mut self, losses: &mut [f64]) -> Result<(), Error> {
        let begun = Instant::now();
        if self.divides_rows() {
            losses.chunks_mut(1).try_for_each(|loss| self.comm.all_reduce(loss, Op::Sum))?;
        }
        self.waited += begun.elapsed();
        Ok(())
    }

    /// The call of that, for each slot.
    pub(crate) fn loss_call(&self) -> Option<(&'a Communicator, Call)> {
        let call = Call::new(Collective::AllReduce, Dtype::F64, Op::Sum, 1);
        self.divides_rows().then_some((self.comm, call))
    }

    /// What each has of some numbers, and nothing where it has none, becomes all of them.
    pub(crate) fn unite(&self, numbers: &mut [f32]) -> Result<(), Error> {
        Ok(self.comm.all_reduce(numbers, Op::Sum)?)
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
            By::Hosts(Hosts { wire, rooms, .. }) => {
                wire.bytes() + 4 * rooms.iter().map(|room| room.len() as u64).sum::<u64>()
            }
        }
    }

    /// Wait for all that is on its way between host and device.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        if let By::Hosts(hosts) = &self.by { hosts.wire.settle() } else { Ok(()) }
    }
}

impl Hosts {
    /// Make the call, in f32. How long it took.
    fn arrive(&mut self, comm: &Communicator) -> Result<Duration, Error> {
        let Hosts { wire, rooms: [given, got], next } = self;
        let (call, [from, to]) = next.take().expect("something is coming down");
        let given = &mut given[..from.len()];
        wire.take(given, from.size())?;
        let call = Call { dtype: Dtype::F32, ..call };
        let _waiting = trace::span(Lane::Waiting, "for the other parts of the model", to.len());
        let begun = Instant::now();
        let got = match from == to {
            true => {
                comm.run(&call, Buffers::InPlace(bytemuck::cast_slice_mut(given)))?;
                given
            }
            false => {
                let got = &mut got[..to.len()];
                let output = bytemuck::cast_slice_mut(got);
                let input = bytemuck::cast_slice(given);
                comm.run(&call, Buffers::OutOfPlace { input, output })?;
                got
            }
        };
        let waited = begun.elapsed();
        wire.put(to, got)?;
        Ok(waited)
    }
}

fn sum(view: View) -> Call {
    Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, view.len())
}
