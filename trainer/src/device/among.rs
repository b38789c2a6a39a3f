//! Calls among some of those who divide a model, in the order of what a device computes, or beside
//! it. The devices themselves make them, or, where those do not reach each other, the hosts, for
//! which each call is waited for.

use super::calls::Calls;
use super::wire::Wire;
use crate::error::Error;
use crate::kernels::cuda::View;
use crate::trace::{self, Lane};
use brigade_comm::{Buffers, Call, Communicator, Dtype};
use brigade_cuda::Stream;
use brigade_schedule::Collective;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// These ranks.
pub(super) struct Among<'a> {
    comm: &'a Communicator,
    by: By<'a>,
    /// Whether calls are left out, where passes are made for the sake of the code alone.
    is_silent: bool,
    /// How long the host waited for the others.
    waited: Duration,
}

enum By<'a> {
    /// There is nobody else: what is in place is there.
    Alone,
    Devices(Calls<'a>),
    Hosts(Hosts),
}

/// Calls of the hosts.
struct Hosts {
    wire: Wire,
    /// What is given, and what is got, where that is not in its place.
    rooms: [Vec<f32>; 2],
    /// What has begun to come down, for which call, and where what it gives goes: two at most.
    next: VecDeque<(Call, [View; 2])>,
}

impl<'a> Among<'a> {
    /// By these calls of the devices, or, without any, by the hosts beside this stream. They give
    /// and get up to `most` numbers.
    pub(super) fn new(
        comm: &'a Communicator,
        calls: Option<Calls<'a>>,
        compute: &Stream,
        most: [usize; 2],
    ) -> Result<Among<'a>, Error> {
        let by = match calls {
            _ if comm.size() == 1 => By::Alone,
            Some(calls) => By::Devices(calls),
            None => By::Hosts(Hosts {
                wire: Wire::new(compute, 4 * most[0])?,
                rooms: most.map(|len| vec![0.0; len]),
                next: VecDeque::new(),
            }),
        };
        Ok(Among { comm, by, is_silent: false, waited: Duration::ZERO })
    }

    pub(super) fn comm(&self) -> &'a Communicator {
        self.comm
    }

    /// Which of them this rank is.
    pub(super) fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// How many they are.
    pub(super) fn size(&self) -> usize {
        self.comm.size()
    }

    /// Calls of the devices, if they make them.
    pub(super) fn calls(&self) -> Option<&Calls<'a>> {
        if let By::Devices(calls) = &self.by { Some(calls) } else { None }
    }

    pub(super) fn calls_mut(&mut self) -> Option<&mut Calls<'a>> {
        if let By::Devices(calls) = &mut self.by { Some(calls) } else { None }
    }

    /// Leave calls out, or no more.
    pub(super) fn hush(&mut self, is_silent: bool) {
        self.is_silent = is_silent;
    }

    /// Make a call in place, before what is computed next.
    pub(super) fn in_order(&mut self, call: Call, view: View) -> Result<(), Error> {
        let By::Devices(calls) = &mut self.by else {
            self.beside(call, [view, view])?;
            return self.arrive();
        };
        if self.is_silent { Ok(()) } else { calls.in_order(&call, view) }
    }

    /// Make a call beside what is computed next, which writes neither view and does not read the
    /// second until they `arrive`.
    pub(super) fn beside(&mut self, call: Call, views: [View; 2]) -> Result<(), Error> {
        match &mut self.by {
            _ if self.is_silent => Ok(()),
            By::Alone => {
                assert_eq!(views[0], views[1], "{call} of one rank");
                Ok(())
            }
            By::Devices(calls) => calls.later(call, views),
            By::Hosts(hosts) => {
                if !views[0].is_empty() {
                    hosts.wire.fetch(views[0])?;
                }
                hosts.next.push_back((call, views));
                Ok(())
            }
        }
    }

    /// What is computed after this sees what came of those.
    pub(super) fn arrive(&mut self) -> Result<(), Error> {
        match &mut self.by {
            _ if self.is_silent => Ok(()),
            By::Alone => Ok(()),
            By::Devices(calls) => calls.deliver(),
            By::Hosts(hosts) => {
                while let Some((call, views)) = hosts.next.pop_front() {
                    self.waited += hosts.make(self.comm, call, views)?;
                }
                Ok(())
            }
        }
    }

    /// The host has waited for the others, so long.
    pub(super) fn add_waited(&mut self, waited: Duration) {
        self.waited += waited;
    }

    /// How long the host waited for the others since this was asked last.
    pub(super) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Bytes of the host's memory.
    pub(super) fn bytes(&self) -> u64 {
        match &self.by {
            By::Alone | By::Devices(_) => 0,
            By::Hosts(Hosts { wire, rooms, .. }) => {
                wire.bytes() + 4 * rooms.iter().map(|room| room.len() as u64).sum::<u64>()
            }
        }
    }

    /// Wait for all that is on its way between host and device.
    pub(super) fn settle(&self) -> Result<(), Error> {
        if let By::Hosts(hosts) = &self.by { hosts.wire.settle() } else { Ok(()) }
    }
}

impl Hosts {
    /// Make the call, in f32. How long it took.
    fn make(
        &mut self,
        comm: &Communicator,
        call: Call,
        [from, to]: [View; 2],
    ) -> Result<Duration, Error> {
        let Hosts { wire, rooms: [given, got], .. } = self;
        let given = &mut given[..from.len()];
        if !from.is_empty() {
            wire.take(given, from.size())?;
        }
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
        // Who spreads something has it already.
        let spreads = from == to && matches!(call.collective, Collective::Broadcast { .. });
        if !spreads && !to.is_empty() {
            wire.put(to, got)?;
        }
        Ok(waited)
    }
}
