//! DDP as Horovod does it (Sergeev and Del Balso 2018): tensors travel when every rank has them
//! ready, whatever the order in which each rank came by them, and many in one call.
//!
//! In a *cycle* every rank offers what it has ready, and what is ready everywhere is copied into
//! buffers of at most so many bytes, which are all-reduced. In the first step rank 0 is told what
//! is ready where, and answers with what is ready everywhere: the order of its answers is the
//! order of tensors from then on. Later a tensor is a bit, an all-reduce by AND takes the place of
//! the question and the answer, and is on its way while backward goes on.
//!
//! Horovod's cycle is a millisecond; here it is some units of backward, so that what is sent can be
//! told beforehand. After the last unit cycles follow one another until everything has travelled,
//! a millisecond apart where nothing is new. When nothing was new for too long, the tensor that is
//! missing is named with a rank that does not have it, on every rank.
//!
//! Cost, with n elements, T tensors, U units and c of them to a cycle: 2 (R − 1)/R · n elements, as
//! DDP, and an all-reduce of T bits in each of ⌈U/c⌉ cycles; in the first step a gather and a
//! broadcast of T names in place of each. Memory: every tensor has room in a buffer, too.

mod cycle;

use super::Travel;
use super::formula::call_bytes;
use super::lane_sums::LaneSums;
use crate::error::Error;
use crate::kernels::Kernels;
use crate::layout::Tensor;
use crate::trace::{self, Lane, Span};
use brigade_comm::{Call, Communicator, Dtype, Op, Owned};
use brigade_schedule::Collective;
use cycle::Cycles;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// What one call carries if nobody says otherwise.
const FUSION_BYTES: usize = 64 << 20;

/// Tensors in one call, which carries a copy of them.
struct Flight {
    tensors: Vec<usize>,
    call: Owned<f32>,
    _span: Span,
}

/// The gradients of some units, of which every rank gets the sums.
pub(super) struct Fusion<'a> {
    kernels: &'a dyn Kernels,
    group: &'a Communicator,
    slots: usize,
    /// Elements that one call carries.
    most: usize,
    /// Where each unit lies in `sums`, and which tensors it has.
    units: Vec<(Range<usize>, Range<usize>)>,
    /// Where each tensor lies in `sums`, and whether its sum is there.
    tensors: Vec<Range<usize>>,
    is_here: Vec<bool>,
    /// Whether everything of the last step has travelled.
    is_over: bool,
    /// Where lanes are added up, and then the sums.
    sums: Vec<f32>,
    /// A lane's gradient, where there are several.
    lane: Vec<f32>,
    cycles: Cycles<'a>,
    flights: VecDeque<Flight>,
    buffers: Vec<Vec<f32>>,
    waited: Duration,
}

impl<'a> Fusion<'a> {
    /// Room for the gradients of units with these tensors, of `slots` lanes a step.
    pub(super) fn new(
        kernels: &'a dyn Kernels,
        group: &'a Communicator,
        travel: &Travel,
        slots: usize,
        units: &[Vec<Tensor>],
    ) -> Fusion<'a> {
        let (mut tensors, mut names, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut end = 0;
        for unit in units {
            let (start, first) = (end, tensors.len());
            for Tensor { name, range, .. } in unit {
                tensors.push(start + range.start..start + range.end);
                names.push(name.clone());
                end = start + range.end;
            }
            places.push((start..end, first..tensors.len()));
        }
        let longest = places.iter().map(|(range, _)| range.len()).max().unwrap_or(0);
        Fusion {
            most: (travel.fusion.unwrap_or(FUSION_BYTES) / size_of::<f32>()).max(1),
            cycles: Cycles::new(group, names, travel.cycle.unwrap_or(1), units.len()),
            is_here: vec![false; tensors.len()],
            is_over: false,
            sums: vec![0.0; end],
            lane: vec![0.0; if slots > 1 { longest } else { 0 }],
            flights: VecDeque::new(),
            buffers: Vec::new(),
            waited: Duration::ZERO,
            units: places,
            tensors,
            kernels,
            group,
            slots,
        }
    }

    /// Have these tensors, which are ready everywhere, on their way.
    fn launch(&mut self, agreed: &[usize]) -> Result<(), Error> {
        for tensors in in_calls(agreed, &self.tensors, self.most) {
            let len = tensors.iter().map(|tensor| self.tensors[*tensor].len()).sum();
            // The smallest that is large enough: the same ones in every step.
            let fits =
                self.buffers.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= len);
            let fit = fits.min_by_key(|(_, buffer)| buffer.capacity()).map(|(at, _)| at);
            let mut buffer =
                fit.map_or_else(|| Vec::with_capacity(len), |at| self.buffers.swap_remove(at));
            buffer.clear();
            for tensor in &tensors {
                buffer.extend_from_slice(&self.sums[self.tensors[*tensor].clone()]);
            }
            let _span = trace::span(Lane::Calls, "sum gradients", tensors[0]);
            let call = self.group.all_reduce_owned(buffer, Op::Sum)?;
            self.flights.push_back(Flight { tensors, call, _span });
        }
        Ok(())
    }

    /// Wait for the call that was started first, and copy what it brought.
    fn land(&mut self) -> Result<(), Error> {
        let Flight { tensors, call, .. } = self.flights.pop_front().expect("it has travelled");
        let from = Instant::now();
        let (_, buffer) = call.wait()?;
        self.waited += from.elapsed();
        let mut rest = &buffer[..];
        for tensor in tensors {
            let (sum, others) = rest.split_at(self.tensors[tensor].len());
            self.sums[self.tensors[tensor].clone()].copy_from_slice(sum);
            self.is_here[tensor] = true;
            rest = others;
        }
        self.buffers.push(buffer);
        Ok(())
    }
}

/// Tensors in this order as calls of at most so many elements; a longer one goes alone.
fn in_calls(agreed: &[usize], tensors: &[Range<usize>], most: usize) -> Vec<Vec<usize>> {
    let (mut calls, mut len) = (Vec::<Vec<usize>>::new(), 0);
    for &tensor in agreed {
        let more = tensors[tensor].len();
        match calls.last_mut().filter(|_| len + more <= most) {
            Some(call) => call.push(tensor),
            None => {
                calls.push(vec![tensor]);
                len = 0;
            }
        }
        len += more;
    }
    calls
}

impl LaneSums for Fusion<'_> {
    fn open(&mut self, unit: usize, slot: usize) -> Result<&mut [f32], Error> {
        let (range, _) = self.units[unit].clone();
        if std::mem::take(&mut self.is_over) {
            self.is_here.fill(false);
            self.cycles.begin();
        }
        Ok(match slot {
            0 => &mut self.sums[range],
            _ => &mut self.lane[..range.len()],
        })
    }

    fn close(&mut self, unit: usize, slot: usize) -> Result<(), Error> {
        let (range, tensors) = self.units[unit].clone();
        if slot > 0 {
            let lane = &self.lane[..range.len()];
            self.kernels.add(&mut self.sums[range], lane);
        }
        if slot + 1 < self.slots {
            return Ok(());
        }
        let agreed = self.cycles.give(tensors)?;
        self.launch(&agreed)
    }

    fn complete(&mut self, _unit: usize) -> Result<(), Error> {
        while let Some(agreed) = self.cycles.finish()? {
            self.launch(&agreed)?;
        }
        self.is_over = true;
        Ok(())
    }

    fn sum(&mut self, unit: usize) -> Result<&mut [f32], Error> {
        let (range, tensors) = self.units[unit].clone();
        while !self.is_here[tensors.clone()].iter().all(|is_here| *is_here) {
            self.land()?;
        }
        Ok(&mut self.sums[range])
    }

    fn formula_bytes(&self) -> Result<u64, Error> {
        let calls = self.cycles.in_order(self.units.iter().map(|(_, tensors)| tensors.clone()));
        let calls = calls.iter().flat_map(|agreed| in_calls(agreed, &self.tensors, self.most));
        let lens = calls.map(|call| call.iter().map(|tensor| self.tensors[*tensor].len()).sum());
        let calls = lens.map(|len| Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, len));
        let sums: u64 = calls.map(|call| call_bytes(self.group, &call)).sum::<Result<_, _>>()?;
        Ok(sums + self.cycles.formula_bytes()?)
    }

    fn has_changed(&mut self) -> bool {
        self.cycles.has_changed()
    }

    fn bytes(&self) -> (u64, u64) {
        let sums = 4 * self.sums.len() as u64;
        (sums, sums + 4 * self.lane.len() as u64)
    }

    fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited) + self.cycles.take_waited()
    }
}
