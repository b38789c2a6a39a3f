//! How gradients that several ranks' devices have become one: summed by the devices themselves,
//! or, where those do not reach each other, through pinned memory by the hosts.

use crate::device::{Calls, Wire};
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::parallel::formula::call_bytes;
use crate::trace::{self, Lane};
use brigade_comm::{Call, Communicator, Dtype, Op, Owned};
use brigade_cuda::Stream;
use brigade_schedule::Collective;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

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
    group: &'a Communicator,
    /// Buffers that nothing is in, and bytes of all.
    free: Vec<Vec<f32>>,
    bytes: u64,
    /// Coming down from the device.
    coming: VecDeque<View>,
    /// Being summed.
    calls: VecDeque<(View, Owned<f32>)>,
}

impl<'a> Sums<'a> {
    /// Over this group, beside what computes, of gradients this long: each once a step. By the
    /// devices if they can, and so many groups may, for which it matters whether gates decide what
    /// is computed. Collective.
    pub(super) fn open(
        group: Option<&'a Communicator>,
        (groups, has_gates): (u32, bool),
        compute: &Stream,
        lens: impl Iterator<Item = usize>,
    ) -> Result<Sums<'a>, Error> {
        let Some(group) = group else { return Ok(Sums::None) };
        if let Some(calls) = Calls::new(group, groups, compute, has_gates)? {
            return Ok(Sums::Devices(calls));
        }
        let free: Vec<Vec<f32>> = lens.map(|len| vec![0.0; len]).collect();
        let bytes = 4 * free.iter().map(Vec::len).sum::<usize>() as u64;
        let (coming, calls) = (VecDeque::new(), VecDeque::new());
        Ok(Sums::Hosts(Hosts { group, free, bytes, coming, calls }))
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

    /// Payload bytes that summing gradients this long makes the host send.
    pub(super) fn formula_bytes(&self, lens: impl Iterator<Item = usize>) -> Result<u64, Error> {
        let Sums::Hosts(Hosts { group, .. }) = self else { return Ok(0) };
        lens.map(|len| call_bytes(group, &sum_of(Dtype::F32, len))).sum()
    }

    /// Bytes of the host's memory.
    pub(super) fn bytes(&self) -> u64 {
        if let Sums::Hosts(hosts) = self { hosts.bytes } else { 0 }
    }

    /// Have a gradient summed over all ranks, in place, once all is computed that was asked for so
    /// far. Every rank asks in the same order.
    pub(super) fn sum(&mut self, grads: View, wire: &mut Wire) -> Result<(), Error> {
        match self {
            Sums::None => Ok(()),
            Sums::Devices(calls) => calls.sum(all_reduce(grads), grads),
            Sums::Hosts(hosts) => {
                if wire.is_full() {
                    hosts.share(wire)?;
                }
                wire.fetch(grads)?;
                hosts.coming.push_back(grads);
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
                Ok(())
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
        let at = hosts.calls.iter().position(|(of, _)| *of == grads);
        let (_, call) = hosts.calls.remove(at.expect("a sum was asked for")).expect("it is there");
        let (waiting, begun) = (trace::span(Lane::Waiting, "for gradients", unit), Instant::now());
        let (_, sum) = call.wait()?;
        drop(waiting);
        let waited = begun.elapsed();
        wire.put(grads, &sum)?;
        hosts.free.push(sum);
        Ok(waited)
    }
}

impl Hosts<'_> {
    /// The gradient that has come down first goes to the other ranks.
    fn share(&mut self, wire: &mut Wire) -> Result<(), Error> {
        let grads = self.coming.pop_front().expect("a gradient is coming down");
        let at = self.free.iter().position(|room| room.len() == grads.len());
        let mut sum = self.free.swap_remove(at.expect("each gradient has its room"));
        wire.take(&mut sum, 4)?;
        let call = self.group.start_owned_in_place(all_reduce(grads), sum)?;
        self.calls.push_back((grads, call));
        Ok(())
    }
}

fn all_reduce(grads: View) -> Call {
    sum_of(if grads.size() == 4 { Dtype::F32 } else { Dtype::Bf16 }, grads.len())
}

fn sum_of(dtype: Dtype, len: usize) -> Call {
    Call::new(Collective::AllReduce, dtype, Op::Sum, len)
}
