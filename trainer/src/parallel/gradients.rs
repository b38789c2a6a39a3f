//! How the gradients of all lanes become one, unit by unit, while backward goes on below.
//!
//! Fast: a rank adds up its own lanes, and the ranks' sums are all-reduced, or reduced and
//! scattered so that each rank gets a part. Ordered: ranks exchange parts of every lane, and
//! whoever a part belongs to adds the lanes one by one, so that the bits depend on the lanes alone:
//! ((lane 0 + lane 1) + lane 2) + ... Lane `slot · R + r` belongs to rank r, so after each slot the
//! next R lanes in order are at hand and a running sum of the part is all that is kept.
//!
//! Cost, with n elements, R ranks and s slots, in elements sent per rank and step: 2 (R − 1)/R · n
//! fast and whole, (R − 1)/R · n fast and in parts (s times that if parts are taken each slot),
//! s (R − 1)/R · n ordered, and (R − 1)/R · n more to make the sums whole.
//!
//! If D copies of the state are held by S ranks each: fast, S in place of R, and 2 (D − 1)/D · n/S
//! more, by which owners of the same part add theirs up; ordered, s (D − 1/S) · n.

use super::Peers;
use super::cut::Cut;
use super::formula::call_bytes;
use super::lane_sums::LaneSums;
use crate::error::Error;
use crate::kernels::Kernels;
use crate::trace::{self, Lane, Span};
use brigade_comm::{Call, Communicator, Dtype, Op, Owned};
use brigade_schedule::Collective;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What becomes of a unit's gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduction {
    /// Every rank gets the sum, after the last slot.
    Whole,
    /// Every rank gets its part of the sum, after the last slot.
    Parts,
    /// Every rank gets its part, after each slot: no rank ever holds more than a few units whole.
    PartsEachSlot,
    /// As `PartsEachSlot`, added in lane order.
    Ordered,
    /// Added in lane order, and made whole after the last slot.
    OrderedWhole,
}

struct Unit {
    cut: Cut,
    /// The whole unit: where lanes are added up, or the sum; else empty.
    whole: Vec<f32>,
    /// This rank's part of the sum, where parts are taken.
    own: Vec<f32>,
    call: Option<Flight>,
}

/// A call on its way, and what is to be done with what it brings.
struct Flight {
    call: Owned<f32>,
    /// The slot whose lanes it carries, or none if it makes a sum whole.
    slot: Option<usize>,
    span: Span,
}

/// The gradients of some units on one of the ranks that share them.
pub(super) struct GradientSums<'a> {
    kernels: &'a dyn Kernels,
    group: Option<&'a Communicator>,
    /// Owners of the same part, who add up what each has.
    replicas: Option<&'a Communicator>,
    /// How often a lane's parts go out.
    copies: usize,
    reduction: Reduction,
    slots: usize,
    units: Vec<Unit>,
    /// Memory for calls of each slot, (a lane's gradient, what comes in): two units' worth.
    rooms: Vec<(Vec<f32>, Vec<f32>)>,
    /// A lane's gradient, where lanes are added up.
    lane: Vec<f32>,
    /// Units whose calls are on their way, oldest first.
    flying: VecDeque<usize>,
    /// How long anybody had to wait for calls.
    waited: Duration,
}

impl<'a> GradientSums<'a> {
    /// Room for the gradients of units cut like `cuts`, of `slots` lanes a step. Without a group
    /// all lanes are this process's own.
    pub(super) fn new(
        kernels: &'a dyn Kernels,
        peers: Peers<'a>,
        reduction: Reduction,
        slots: usize,
        cuts: &[Cut],
    ) -> GradientSums<'a> {
        let is_ordered = matches!(reduction, Reduction::Ordered | Reduction::OrderedWhole);
        let (group, replicas, copies) = match is_ordered {
            true => (peers.data, None, peers.copies()),
            false => (peers.parts, peers.replicas, 1),
        };
        // One rank adds its lanes in order anyway.
        let reduction = if group.is_some() { reduction } else { Reduction::Whole };
        let ranks = group.map_or(1, Communicator::size);
        let longest = cuts.iter().map(Cut::len).max().unwrap_or(0);
        let part = cuts.iter().map(|cut| cut.part.len()).max().unwrap_or(0);
        let adds_up = matches!(reduction, Reduction::Whole | Reduction::Parts);
        let has_whole = adds_up || reduction == Reduction::OrderedWhole;
        let incoming = if reduction == Reduction::PartsEachSlot { part } else { ranks * part };
        let room = || (vec![0.0; copies * longest], vec![0.0; incoming]);
        let units = cuts.iter().map(|cut| Unit {
            whole: vec![0.0; if has_whole { cut.len() } else { 0 }],
            own: vec![0.0; if reduction == Reduction::Whole { 0 } else { cut.part.len() }],
            cut: cut.clone(),
            call: None,
        });
        GradientSums {
            units: units.collect(),
            rooms: if adds_up { Vec::new() } else { vec![room(), room()] },
            lane: vec![0.0; if adds_up && slots > 1 { longest } else { 0 }],
            flying: VecDeque::new(),
            waited: Duration::ZERO,
            kernels,
            group,
            replicas,
            copies,
            reduction,
            slots,
        }
    }

    fn adds_up(&self) -> bool {
        matches!(self.reduction, Reduction::Whole | Reduction::Parts)
    }

    /// Wait for the unit's call, if there is one, and take in what it brought.
    fn settle(&mut self, unit: usize) -> Result<(), Error> {
        let Some(Flight { call, slot, span }) = self.units[unit].call.take() else {
            return Ok(());
        };
        self.flying.retain(|flying| *flying != unit);
        let from = Instant::now();
        let waiting = trace::span(Lane::Waiting, "for gradients", unit);
        let (input, output) = call.wait()?;
        drop((waiting, span));
        self.waited += from.elapsed();
        let Unit { cut, whole, own, .. } = &mut self.units[unit];
        match (self.reduction, slot) {
            (Reduction::Whole, _) => *whole = output,
            (Reduction::OrderedWhole, None) => (*own, *whole) = (input, output),
            // Of replicas, in place.
            (_, None) => *own = output,
            (Reduction::Parts, _) => (*whole, *own) = (input, output),
            (_, Some(slot)) => {
                let lanes = output.chunks_exact(cut.part.len().max(1)).enumerate();
                for (rank, lane) in lanes {
                    match slot == 0 && rank == 0 {
                        true => own.copy_from_slice(lane),
                        false => self.kernels.add(own, lane),
                    }
                }
                self.rooms.push((input, output));
            }
        }
        Ok(())
    }
}

impl LaneSums for GradientSums<'_> {
    fn open(&mut self, unit: usize, slot: usize) -> Result<&mut [f32], Error> {
        let len = self.units[unit].cut.len();
        if self.adds_up() {
            let Unit { whole, .. } = &mut self.units[unit];
            return Ok(if slot == 0 { whole } else { &mut self.lane[..len] });
        }
        // The unit's last call must be done with before the next, and some room must be free.
        self.settle(unit)?;
        while self.rooms.is_empty() {
            let oldest = *self.flying.front().expect("what is not here is on its way");
            self.settle(oldest)?;
        }
        let (room, _) = self.rooms.last_mut().expect("there is room");
        room.resize(self.copies * len, 0.0);
        Ok(&mut room[..len])
    }

    fn close(&mut self, unit: usize, slot: usize) -> Result<(), Error> {
        let Unit { cut, whole, own, .. } = &mut self.units[unit];
        let call = if matches!(self.reduction, Reduction::Whole | Reduction::Parts) {
            if slot > 0 {
                self.kernels.add(whole, &self.lane[..cut.len()]);
            }
            let Some(group) = self.group.filter(|_| slot + 1 == self.slots) else { return Ok(()) };
            let whole = std::mem::take(whole);
            match self.reduction {
                Reduction::Whole => group.start_owned_in_place(cut.all_reduce(), whole)?,
                _ => {
                    let call = cut.call(Collective::ReduceScatter);
                    group.start_owned(call, whole, std::mem::take(own))?
                }
            }
        } else {
            let group = self.group.expect("a process alone adds its lanes up");
            let (mut lane, mut incoming) = self.rooms.pop().expect("it was opened");
            let (call, len) = match self.reduction {
                Reduction::PartsEachSlot => (cut.call(Collective::ReduceScatter), cut.part.len()),
                _ => (cut.exchange(self.copies), group.size() * cut.part.len()),
            };
            for copy in 1..self.copies {
                lane.copy_within(..cut.len(), copy * cut.len());
            }
            incoming.resize(len, 0.0);
            group.start_owned(call, lane, incoming)?
        };
        let span = trace::span(Lane::Calls, "sum gradients", unit);
        self.units[unit].call = Some(Flight { call, slot: Some(slot), span });
        self.flying.push_back(unit);
        Ok(())
    }

    fn complete(&mut self, unit: usize) -> Result<(), Error> {
        if let Some(replicas) = self.replicas {
            self.settle(unit)?;
            let Unit { own, call, .. } = &mut self.units[unit];
            let sum = replicas.all_reduce_owned(std::mem::take(own), Op::Sum)?;
            let span = trace::span(Lane::Calls, "sum of replicas", unit);
            *call = Some(Flight { call: sum, slot: None, span });
            self.flying.push_back(unit);
        }
        if self.reduction != Reduction::OrderedWhole {
            return Ok(());
        }
        self.settle(unit)?;
        let Unit { cut, whole, own, call } = &mut self.units[unit];
        let group = self.group.expect("a process alone has whole sums");
        let gather = cut.call(Collective::AllGather);
        let gather = group.start_owned(gather, std::mem::take(own), std::mem::take(whole))?;
        let span = trace::span(Lane::Calls, "gather sums", unit);
        *call = Some(Flight { call: gather, slot: None, span });
        self.flying.push_back(unit);
        Ok(())
    }

    fn sum(&mut self, unit: usize) -> Result<&mut [f32], Error> {
        self.settle(unit)?;
        let Unit { whole, own, .. } = &mut self.units[unit];
        Ok(match self.reduction {
            Reduction::Whole | Reduction::OrderedWhole => whole,
            _ => own,
        })
    }

    fn formula_bytes(&self) -> Result<u64, Error> {
        let Some(group) = self.group else { return Ok(0) };
        let slots = self.slots as u64;
        let mut bytes = 0;
        for Unit { cut, .. } in &self.units {
            let scatter = || call_bytes(group, &cut.call(Collective::ReduceScatter));
            let exchange = || call_bytes(group, &cut.exchange(self.copies));
            if let Some(replicas) = self.replicas {
                let own = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, cut.part.len());
                bytes += call_bytes(replicas, &own)?;
            }
            bytes += match self.reduction {
                Reduction::Whole => call_bytes(group, &cut.all_reduce())?,
                Reduction::Parts => scatter()?,
                Reduction::PartsEachSlot => slots * scatter()?,
                Reduction::Ordered => slots * exchange()?,
                Reduction::OrderedWhole => {
                    let gather = call_bytes(group, &cut.call(Collective::AllGather))?;
                    slots * exchange()? + gather
                }
            };
        }
        Ok(bytes)
    }

    fn bytes(&self) -> (u64, u64) {
        let sums: usize = self.units.iter().map(|unit| unit.whole.len() + unit.own.len()).sum();
        let rooms = self.rooms.iter().map(|(lane, incoming)| lane.capacity() + incoming.capacity());
        (4 * sums as u64, 4 * (rooms.sum::<usize>() + self.lane.len()) as u64)
    }

    fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}
