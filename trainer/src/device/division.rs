//! Ranks that divide the inside of a model's units, as a device's passes meet them: what they send
//! each other, in the order of what is computed, or beside it.
//!
//! | way | what a rank has | what is sent |
//! |---|---|---|
//! | `tp` | heads and hidden numbers | sums of the stream |
//! | `sp` | these, and rows of the stream | rows, sums of them; gradients of norms and ends |
//! | `ring` | rows, of the inside too | keys and values to the next; all gradients |
//! | `ep` | samples, and some experts | all gradients but those of experts; rows: `mixture` |
//! | `2d`, `2.5d`, `3d` | tiles of the inside and of weights | tiles, sums of them: `grid` |

use super::among::Among;
use super::calls::{Calls, dtype};
use super::grid::DeviceGrid;
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::parallel::tensor::{Circle, Group, Split};
use brigade_comm::{Call, Communicator, Dtype, Op};
use brigade_cuda::Stream;
use brigade_schedule::Collective;
use std::time::{Duration, Instant};

/// Those who divide a model.
pub(crate) struct DeviceDivision<'a> {
    all: Among<'a>,
    split: Split,
    /// Those of them along each axis, if they are in a grid.
    grid: Option<DeviceGrid<'a>>,
}

impl<'a> DeviceDivision<'a> {
    /// Of these ranks, and, in a grid, of those along its axes, beside what computes; calls of
    /// either give and get up to `most` numbers. By the devices if they can, and so many groups
    /// may: of all axes, or of none. Collective.
    pub(crate) fn open(
        groups: &'a [Group],
        split: Split,
        at_once: u32,
        compute: &Stream,
        most: [[usize; 2]; 2],
    ) -> Result<DeviceDivision<'a>, Error> {
        let comms = || groups.iter().map(Group::comm);
        let mut calls = Vec::new();
        for comm in comms() {
            let at_once = if comm.size() > 1 { at_once } else { 0 };
            calls.push(Calls::new(comm, at_once, compute, split == Split::Experts)?);
        }
        if groups.len() > 1 {
            let has_some = |(calls, comm): (&Option<Calls<'_>>, &Communicator)| {
                calls.is_some() || comm.size() == 1
            };
            let mut lacking = [u64::from(!calls.iter().zip(comms()).all(has_some))];
            groups[0].comm().all_reduce(&mut lacking, Op::Max)?;
            if lacking != [0] {
                Calls::close_all(calls.iter().flatten())?;
                calls.iter_mut().for_each(|calls| *calls = None);
            }
        }
        let most = std::iter::once(most[0]).chain(std::iter::repeat(most[1]));
        let among = |((comm, calls), most)| Among::new(comm, calls, compute, most);
        let all = comms().zip(calls).zip(most);
        let mut among = all.map(among).collect::<Result<Vec<_>, Error>>()?;
        let axes = among.split_off(1);
        let grid = <[Among<'_>; 3]>::try_from(axes).ok().map(|axes| DeviceGrid::new(split, axes));
        let all = among.pop().expect("those who divide a model");
        Ok(DeviceDivision { all, split, grid })
    }

    /// What they divide.
    pub(crate) fn split(&self) -> Split {
        self.split
    }

    /// Whether each has heads and hidden numbers of its own.
    pub(crate) fn divides_heads(&self) -> bool {
        matches!(self.split, Split::Heads | Split::Sequence)
    }

    /// Whether each has rows of the stream of its own.
    pub(crate) fn divides_rows(&self) -> bool {
        self.split.divides_rows()
    }

    /// The grid that they are in, if they are.
    pub(super) fn grid(&mut self) -> Option<&mut DeviceGrid<'a>> {
        self.grid.as_mut()
    }

    /// Whether they are in one.
    pub(super) fn is_grid(&self) -> bool {
        self.grid.is_some()
    }

    /// Which of them this is.
    pub(super) fn rank(&self) -> usize {
        self.all.rank()
    }

    /// Whether this rank has what is there once: biases, and the stream that is gone on from.
    pub(crate) fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Where this rank stands, if keys and values go round.
    pub(crate) fn circle(&self) -> Option<Circle> {
        let circle = Circle { rank: self.rank(), ranks: self.all.size() };
        (self.split == Split::Ring).then_some(circle)
    }

    /// One clause: how many they are, and who does what they do together.
    pub(crate) fn describe(&self) -> String {
        let how = self.all.calls().map_or("by the hosts", Calls::describe);
        let ranks = self.all.size();
        match self.split {
            Split::Ring => {
                format!(", tokens divided by {ranks}, keys and values passed on {how}")
            }
            Split::Experts => {
                let rows = match self.all.calls().is_some_and(Calls::has_messages) {
                    true => ", rows from device to device",
                    false => "",
                };
                format!(", experts and samples divided by {ranks}{rows}, gradients summed {how}")
            }
            Split::Sequence => {
                format!(", heads, hidden numbers and rows divided by {ranks} and summed {how}")
            }
            Split::Heads => {
                format!(", heads and hidden numbers divided by {ranks} and summed {how}")
            }
            Split::Square | Split::Squares | Split::Cube => {
                format!(", matrices divided by a grid of {ranks}, tiles sent {how}")
            }
        }
    }

    /// Calls of the devices, if they make them.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Calls<'a>> {
        self.each().filter_map(Among::calls)
    }

    /// Whether passes must be rehearsed before ranks `meet`: see `Calls::shares_process`.
    pub(crate) fn shares_process(&self) -> bool {
        self.calls().any(Calls::shares_process)
    }

    /// Behind that.
    pub(crate) fn meet(&mut self) -> Result<(), Error> {
        self.each_mut().filter_map(Among::calls_mut).try_for_each(Calls::meet)
    }

    /// Leave calls out, or no more.
    pub(crate) fn hush(&mut self, is_silent: bool) {
        self.each_mut().for_each(|among| among.hush(is_silent));
    }

    fn each(&self) -> impl Iterator<Item = &Among<'a>> {
        std::iter::once(&self.all).chain(self.grid.iter().flat_map(DeviceGrid::axes))
    }

    fn each_mut(&mut self) -> impl Iterator<Item = &mut Among<'a>> {
        std::iter::once(&mut self.all).chain(self.grid.iter_mut().flat_map(DeviceGrid::axes_mut))
    }

    /// Sum over all of them, in place, before what is computed next.
    pub(crate) fn all_reduce(&mut self, view: View) -> Result<(), Error> {
        self.all.in_order(sum(view), view)
    }

    /// The same beside what is computed next, which keeps away from it until they `arrive`.
    pub(crate) fn reduce_beside(&mut self, view: View) -> Result<(), Error> {
        self.all.beside(sum(view), [view, view])
    }

    /// Everybody's rows, in their order, are in `to` when they `arrive`; what is computed meanwhile
    /// does not write `from`.
    pub(crate) fn gather_beside(&mut self, from: View, to: View) -> Result<(), Error> {
        self.all.beside(Call::moving(Collective::AllGather, dtype(from), from.len()), [from, to])
    }

    /// So are this rank's rows of the sum.
    pub(crate) fn scatter_beside(&mut self, from: View, to: View) -> Result<(), Error> {
        let call = Call::new(Collective::ReduceScatter, Dtype::F32, Op::Sum, to.len());
        self.all.beside(call, [from, to])
    }

    /// So is what the last of a ring had there, when `from` has gone to the next.
    pub(crate) fn pass_on(&mut self, from: View, to: View) -> Result<(), Error> {
        let circle = self.circle().expect("they are a ring");
        self.all.beside(circle.step(from.len(), dtype(from)), [from, to])
    }

    /// Calls of the devices, if they pass on as many rows as gates say.
    pub(super) fn messages(&mut self) -> Option<&mut Calls<'a>> {
        self.all.calls_mut().filter(|calls| calls.has_messages())
    }

    /// What is computed after this sees what came of that.
    pub(crate) fn arrive(&mut self) -> Result<(), Error> {
        self.all.arrive()
    }

    /// What each slot's rows came to becomes what all rows did.
    pub(crate) fn sum_losses(&mut self, losses: &mut [f64]) -> Result<(), Error> {
        let begun = Instant::now();
        if self.divides_rows() {
            let comm = self.all.comm();
            losses.chunks_mut(1).try_for_each(|loss| comm.all_reduce(loss, Op::Sum))?;
        }
        self.all.add_waited(begun.elapsed());
        Ok(())
    }

    /// The call of that, for each slot.
    pub(crate) fn loss_call(&self) -> Option<(&'a Communicator, Call)> {
        let call = Call::new(Collective::AllReduce, Dtype::F64, Op::Sum, 1);
        self.divides_rows().then_some((self.all.comm(), call))
    }

    /// What each has of some numbers, and nothing where it has none, becomes all of them.
    pub(crate) fn unite(&self, numbers: &mut [f32]) -> Result<(), Error> {
        Ok(self.all.comm().all_reduce(numbers, Op::Sum)?)
    }

    /// How long the host waited for the others since this was asked last.
    pub(crate) fn take_waited(&mut self) -> Duration {
        self.each_mut().map(Among::take_waited).sum()
    }

    /// Whether the hosts make all calls, whose formulas tell what they send.
    pub(crate) fn is_by_hosts(&self) -> bool {
        self.all.calls().is_none()
    }

    /// Bytes of the host's memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.each().map(Among::bytes).sum()
    }

    /// Wait for all that is on its way between host and device.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        self.each().try_for_each(Among::settle)
    }
}

fn sum(view: View) -> Call {
    Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, view.len())
}
