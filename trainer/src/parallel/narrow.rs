//! Gradients that travel narrower than they are added: each rank sends everyone their part of its
//! lane, packed, and whoever a part belongs to adds the lanes one by one, in 32 bits.
//!
//! Every number is rounded once, on its way to its owner, and never again: a ring that reduces in
//! 16 bits sends as much and rounds at each of its steps. The lane of the owner goes through the
//! same packing as the others. So with packings that have no blocks the sum depends on the lanes
//! alone, and `--ordered` has the same bits for any number of ranks.
//!
//! Cost, with n elements of b bytes packed, S ranks to a state, D states and s slots, in bytes sent
//! per rank and step: s (D − 1/S) · b · n; that is s (R − 1)/R · b · n among R ranks with one
//! state. Where a rank adds its own lanes up first, s is 1.

use super::Peers;
use super::cut::Cut;
use super::formula::call_bytes;
use super::lane_sums::LaneSums;
use super::packing::Packing;
use crate::error::Error;
use crate::kernels::Kernels;
use crate::trace::{self, Lane, Span};
use brigade_comm::{Call, Communicator, Counts, Dtype, Op, Owned};
use brigade_schedule::Collective;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

struct Unit {
    cut: Cut,
    /// The sum of this rank's lanes, where it adds them up first.
    whole: Vec<f32>,
    /// This rank's part of the sum.
    own: Vec<f32>,
    flight: Option<Flight>,
}

struct Flight {
    call: Owned<u8>,
    is_first: bool,
    span: Span,
}

/// The gradients of some units, of which every rank gets its part.
pub(super) struct NarrowSums<'a> {
    kernels: &'a dyn Kernels,
    group: &'a Communicator,
    /// How often the state is held.
    copies: usize,
    packing: Packing,
    adds_up: bool,
    slots: usize,
    units: Vec<Unit>,
    /// A lane's gradient.
    lane: Vec<f32>,
    /// Memory for calls, (what goes out, what comes in): two units' worth.
    rooms: Vec<(Vec<u8>, Vec<u8>)>,
    /// Units whose calls are on their way, oldest first.
    flying: VecDeque<usize>,
    waited: Duration,
}

impl<'a> NarrowSums<'a> {
    /// Room for the gradients of units cut like `cuts`, of `slots` lanes a step, which each rank
    /// adds up before they travel or not.
    ///
    /// Panics: if there are no peers.
    pub(super) fn new(
        kernels: &'a dyn Kernels,
        peers: Peers<'a>,
        packing: Packing,
        adds_up: bool,
        slots: usize,
        cuts: &[Cut],
    ) -> NarrowSums<'a> {
        let group = peers.data.expect("what travels has somewhere to go");
        let unit = |cut: &Cut| Unit {
            whole: vec![0.0; if adds_up { cut.len() } else { 0 }],
            own: vec![0.0; cut.part.len()],
            cut: cut.clone(),
            flight: None,
        };
        let needs_lane = !adds_up || slots > 1;
        let longest = cuts.iter().map(Cut::len).max().unwrap_or(0);
        let mut sums = NarrowSums {
            units: cuts.iter().map(unit).collect(),
            lane: vec![0.0; if needs_lane { longest } else { 0 }],
            rooms: Vec::new(),
            flying: VecDeque::new(),
            waited: Duration::ZERO,
            copies: peers.copies(),
            kernels,
            group,
            packing,
            adds_up,
            slots,
        };
        let most = |of: fn(&(usize, usize)) -> usize| {
            let lens = sums.units.iter().map(|unit| of(&sums.lens(&unit.cut)));
            lens.max().unwrap_or(0)
        };
        let (out, incoming) = (most(|lens| lens.0), most(|lens| lens.1));
        let room = || (Vec::with_capacity(out), Vec::with_capacity(incoming));
        sums.rooms = vec![room(), room()];
        sums
    }

    /// Bytes that go out of a unit and come in for it, this rank's own among them.
    fn lens(&self, cut: &Cut) -> (usize, usize) {
        let out: usize = cut.counts.iter().map(|count| self.packing.bytes(*count)).sum();
        (self.copies * out, self.group.size() * self.packing.bytes(cut.part.len()))
    }

    /// Each rank sends everyone their part of its lane.
    fn call(&self, cut: &Cut) -> Call {
        let packed = cut.counts.iter().map(|count| self.packing.bytes(*count));
        let to: Vec<usize> = packed.cycle().take(self.group.size()).collect();
        let from = vec![self.packing.bytes(cut.part.len()); self.group.size()];
        let counts = Counts::PerPair { to: to.into(), from: from.into() };
        Call { counts, ..Call::new(Collective::AllToAll, Dtype::U8, Op::Sum, 0) }
    }

    /// Wait for the unit's call, if there is one, and add what it brought.
    fn settle(&mut self, at: usize) -> Result<(), Error> {
        let Some(Flight { call, is_first, span }) = self.units[at].flight.take() else {
            return Ok(());
        };
        self.flying.retain(|flying| *flying != at);
        let from = Instant::now();
        let waiting = trace::span(Lane::Waiting, "for gradients", at);
        let (out, incoming) = call.wait()?;
        drop((waiting, span));
        self.waited += from.elapsed();
        let Unit { cut, own, .. } = &mut self.units[at];
        let lanes = incoming.chunks_exact(self.packing.bytes(cut.part.len()).max(1));
        for (rank, lane) in lanes.enumerate() {
            match is_first && rank == 0 {
                true => self.packing.unpack(lane, own, |sum, number| *sum = number),
                false => self.packing.unpack(lane, own, |sum, number| *sum += number),
            }
        }
        self.rooms.push((out, incoming));
        Ok(())
    }
}

impl LaneSums for NarrowSums<'_> {
    fn open(&mut self, unit: usize, slot: usize) -> Result<&mut [f32], Error> {
        let Unit { cut, whole, .. } = &mut self.units[unit];
        Ok(match self.adds_up && slot == 0 {
            true => whole,
            false => &mut self.lane[..cut.len()],
        })
    }

    fn close(&mut self, unit: usize, slot: usize) -> Result<(), Error> {
        if self.adds_up {
            let Unit { cut, whole, .. } = &mut self.units[unit];
            if slot > 0 {
                self.kernels.add(whole, &self.lane[..cut.len()]);
            }
            if slot + 1 < self.slots {
                return Ok(());
            }
        }
        // The unit's last call must be done with before the next, and some room must be free.
        self.settle(unit)?;
        while self.rooms.is_empty() {
            let oldest = *self.flying.front().expect("what is not here is on its way");
            self.settle(oldest)?;
        }
        let (mut out, mut incoming) = self.rooms.pop().expect("there is room");
        let Unit { cut, whole, .. } = &self.units[unit];
        let (out_bytes, incoming_bytes) = self.lens(cut);
        out.resize(out_bytes, 0);
        incoming.resize(incoming_bytes, 0);
        let lane = if self.adds_up { whole } else { &self.lane[..cut.len()] };
        let (mut from, mut to) = (0, 0);
        for count in cut.counts.iter() {
            let end = to + self.packing.bytes(*count);
            self.packing.pack(&lane[from..from + count], &mut out[to..end]);
            (from, to) = (from + count, end);
        }
        for copy in 1..self.copies {
            out.copy_within(..to, copy * to);
        }
        let call = self.group.start_owned(self.call(cut), out, incoming)?;
        let span = trace::span(Lane::Calls, "sum gradients", unit);
        let is_first = slot == 0 || self.adds_up;
        self.units[unit].flight = Some(Flight { call, is_first, span });
        self.flying.push_back(unit);
        Ok(())
    }

    fn complete(&mut self, _unit: usize) -> Result<(), Error> {
        Ok(())
    }

    fn sum(&mut self, unit: usize) -> Result<&mut [f32], Error> {
        self.settle(unit)?;
        Ok(&mut self.units[unit].own)
    }

    fn formula_bytes(&self) -> Result<u64, Error> {
        let times = if self.adds_up { 1 } else { self.slots as u64 };
        let calls = self.units.iter().map(|unit| call_bytes(self.group, &self.call(&unit.cut)));
        calls.sum::<Result<u64, Error>>().map(|bytes| times * bytes)
    }

    fn bytes(&self) -> (u64, u64) {
        let sums: usize = self.units.iter().map(|unit| unit.whole.len() + unit.own.len()).sum();
        let rooms = self.rooms.iter().map(|(out, incoming)| out.capacity() + incoming.capacity());
        (4 * sums as u64, (rooms.sum::<usize>() + 4 * self.lane.len()) as u64)
    }

    fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}
