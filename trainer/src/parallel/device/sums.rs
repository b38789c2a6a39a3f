//! How gradients that several ranks' devices have become one: summed by the devices themselves, or
//! through pinned memory by the hosts, as without devices, where devices do not reach each other,
//! or only hosts know how less of the gradients is to be sent.

use crate::device::{Calls, Wire, dtype};
use crate::error::Error;
use crate::kernels::Kernels;
use crate::kernels::cuda::View;
use crate::layout::Layout;
use crate::parallel::cut::Cut;
use crate::parallel::gradients::{GradientSums, Reduction};
use crate::parallel::lane_sums::LaneSums;
use crate::parallel::sums::lane_sums;
use crate::parallel::{Peers, Sharing};
use brigade_comm::{Call, Communicator, Op};
use brigade_cuda::Stream;
use brigade_schedule::Collective;
use std::collections::VecDeque;
use std::time::Duration;

/// Sums over ranks that have the same units and other samples.
pub(super) enum Sums<'a> {
    /// There is no other rank.
    None,
    /// By the devices.
    Devices(Calls<'a>),
    /// By the hosts.
    Hosts(Hosts<'a>),
}

/// Gradients on their way through the hosts' memory, in the order in which they were asked for.
pub(super) struct Hosts<'a> {
    /// One slot: devices add up what is before it.
    sums: Box<dyn LaneSums + 'a>,
    /// Which units of the model it counts from 0, in ascending order.
    units: Vec<usize>,
    /// Coming down from the device.
    coming: VecDeque<(usize, View)>,
}

impl<'a> Sums<'a> {
    /// Over this group, beside what computes, of gradients that are each summed once a step. By the
    /// devices if they can, and so many groups may, for which it matters whether gates decide what
    /// is computed; else by these hosts. Collective.
    pub(super) fn open(
        group: Option<&'a Communicator>,
        (groups, has_gates): (u32, bool),
        compute: &Stream,
        hosts: impl FnOnce(&'a Communicator) -> Hosts<'a>,
    ) -> Result<Sums<'a>, Error> {
        let Some(group) = group else { return Ok(Sums::None) };
        let calls = Calls::new(group, groups, compute, has_gates)?;
        Ok(calls.map_or_else(|| Sums::Hosts(hosts(group)), Sums::Devices))
    }

    /// Calls of the devices, if they sum.
    pub(super) fn calls(&self) -> Option<&Calls<'a>> {
        match self {
            Sums::Devices(calls) => Some(calls),
            _ => None,
        }
    }

    /// One clause: that the devices sum.
    pub(super) fn describe(&self) -> String {
        let by = |calls: &Calls<'_>| format!(", gradients summed {}", calls.describe());
        self.calls().map_or(String::new(), by)
    }

    /// Whether passes must be rehearsed before ranks `meet`: see `Calls::shares_process`.
    pub(super) fn shares_process(&self) -> bool {
        self.calls().is_some_and(Calls::shares_process)
    }

    /// Behind that.
    pub(super) fn meet(&mut self) -> Result<(), Error> {
        if let Sums::Devices(calls) = self { calls.meet() } else { Ok(()) }
    }

    /// Payload bytes that a step's sums make the host send.
    pub(super) fn formula_bytes(&self) -> Result<u64, Error> {
        if let Sums::Hosts(hosts) = self { hosts.sums.formula_bytes() } else { Ok(0) }
    }

    /// Whether a step sends something else than was told last.
    pub(super) fn has_changed(&mut self) -> bool {
        if let Sums::Hosts(hosts) = self { hosts.sums.has_changed() } else { false }
    }

    /// Bytes of the host's memory. Call it when nothing is on its way.
    pub(super) fn bytes(&self) -> u64 {
        let Sums::Hosts(hosts) = self else { return 0 };
        let (sums, beside) = hosts.sums.bytes();
        sums + beside
    }

    /// Have a unit's gradient summed over all ranks, in place, once all is computed that was asked
    /// for so far. Every rank asks in the same order.
    pub(super) fn sum(&mut self, unit: usize, grads: View, wire: &mut Wire) -> Result<(), Error> {
        match self {
            Sums::None => Ok(()),
            Sums::Devices(calls) => calls.sum(all_reduce(grads), grads),
            Sums::Hosts(hosts) => {
                if wire.is_full() {
                    hosts.share(wire)?;
                }
                wire.fetch(grads)?;
                hosts.coming.push_back((unit, grads));
                Ok(())
            }
        }
    }

    /// After the last gradient: all are on their way to the other ranks.
    pub(super) fn flush(&mut self, wire: &mut Wire) -> Result<(), Error> {
        match self {
            Sums::None => Ok(()),
            Sums::Devices(calls) => calls.deliver(),
            Sums::Hosts(hosts) => {
                while !hosts.coming.is_empty() {
                    hosts.share(wire)?;
                }
                // What hosts waited for so far was behind what the device computed.
                let _ = hosts.sums.take_waited();
                (0..hosts.units.len()).rev().try_for_each(|at| hosts.sums.complete(at))
            }
        }
    }

    /// Behind that: what is computed next sees the sum of this unit's gradient. How long this
    /// waited for other ranks.
    pub(super) fn take(
        &mut self,
        unit: usize,
        grads: View,
        wire: &mut Wire,
    ) -> Result<Duration, Error> {
        let Sums::Hosts(hosts) = self else { return Ok(Duration::ZERO) };
        let at = hosts.place(unit);
        wire.put(grads, hosts.sums.sum(at)?)?;
        Ok(hosts.sums.take_waited())
    }
}

impl<'a> Hosts<'a> {
    /// Of units with these numbers, in ascending order, that have gradients so long: as they are.
    pub(super) fn plain(
        kernels: &'a dyn Kernels,
        group: &'a Communicator,
        units: impl Iterator<Item = (usize, usize)>,
    ) -> Hosts<'a> {
        let cut = |(unit, len)| (unit, Cut::new(len, group.rank(), group.size()));
        let (units, cuts): (Vec<_>, Vec<_>) = units.map(cut).unzip();
        let peers = Peers::from(Some(group));
        let sums = Box::new(GradientSums::new(kernels, peers, Reduction::Whole, 1, &cuts));
        Hosts { sums, units, coming: VecDeque::new() }
    }

    /// Of all units, as these gradients travel.
    pub(super) fn travelling(
        kernels: &'a dyn Kernels,
        group: &'a Communicator,
        sharing: Sharing,
        layout: &Layout,
    ) -> Hosts<'a> {
        let units = 0..layout.units();
        let cut = |unit| Cut::new(layout.unit(unit).len(), group.rank(), group.size());
        let cuts: Vec<Cut> = units.clone().map(cut).collect();
        let sharing = Sharing { slots: 1, ..sharing };
        let sums = lane_sums(kernels, Some(group).into(), sharing, layout, units.clone(), &cuts);
        Hosts { sums, units: units.collect(), coming: VecDeque::new() }
    }

    /// The gradient that has come down first goes to the other ranks.
    fn share(&mut self, wire: &mut Wire) -> Result<(), Error> {
        let (unit, grads) = self.coming.pop_front().expect("a gradient is coming down");
        let at = self.place(unit);
        wire.take(self.sums.open(at, 0)?, grads.size())?;
        self.sums.close(at, 0)
    }

    fn place(&self, unit: usize) -> usize {
        self.units.binary_search(&unit).expect("one of its units")
    }
}

fn all_reduce(grads: View) -> Call {
    Call::new(Collective::AllReduce, dtype(grads), Op::Sum, grads.len())
}
