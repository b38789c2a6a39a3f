//! DDP with gradients that are made smaller before they travel.
//!
//! Each unit of the model has a codec, which starts calls with what it made of the sum of this
//! rank's lanes, and later makes the sum over all ranks of what they brought. Compression is once
//! a step, however many lanes a rank adds up first.
//!
//! | codec | calls a unit | bytes sent of n elements among R ranks |
//! |---|---|---|
//! | `half` | an all-reduce of 16 bits, rounded at each of its steps | 4 (R − 1)/R · n |
//! | `picks` | an all-gather of k numbers and their places | 8 (R − 1) · k |
//! | `factors` | an all-reduce of P and all vectors, one of Q | see there |
//!
//! What `picks` and `factors` leave behind stays with its rank, and is added to its next gradient
//! (error feedback: Seide et al. 2014), so that nothing is lost, only late. It is not in
//! checkpoints: a resumed run begins with nothing left behind.

mod factors;
mod half;
mod picks;

use super::formula::call_bytes;
use super::lane_sums::LaneSums;
use super::travel::Compress;
use crate::error::Error;
use crate::kernels::Kernels;
use crate::layout::Tensor;
use crate::trace::{self, Lane, Span};
use ::half::{bf16, f16};
use brigade_comm::{Call, Communicator, Element, Owned};
use factors::Factors;
use half::Half;
use picks::Picks;
use std::time::{Duration, Instant};

/// How the gradient of one unit travels.
trait Codec {
    /// Start a call that carries what `sum`, of this rank's lanes, was made into. What is in `sum`
    /// afterwards is nobody's.
    fn start(&mut self, group: &Communicator, sum: &mut [f32]) -> Result<(), Error>;

    /// Start what must wait for the first call's end, if anything must.
    fn go_on(&mut self, _: &Communicator, _waited: &mut Duration) -> Result<(), Error> {
        Ok(())
    }

    /// Write the sum over all ranks, the same bits on each.
    fn finish(&mut self, sum: &mut [f32], waited: &mut Duration) -> Result<(), Error>;

    /// Its calls of a step.
    fn calls(&self) -> Vec<Call>;

    /// Bytes it holds between steps.
    fn bytes(&self) -> u64;
}

struct Unit<'a> {
    /// Where lanes are added up, and then the sum.
    whole: Vec<f32>,
    codec: Box<dyn Codec + 'a>,
    flight: Option<Span>,
}

/// The gradients of some units, of which every rank gets what came of all.
pub(super) struct Compressed<'a> {
    kernels: &'a dyn Kernels,
    group: &'a Communicator,
    slots: usize,
    units: Vec<Unit<'a>>,
    /// A lane's gradient, where there are several.
    lane: Vec<f32>,
    /// The unit whose first call was started last.
    last: Option<usize>,
    waited: Duration,
}

impl<'a> Compressed<'a> {
    /// Room for the gradients of units with these tensors, of `slots` lanes a step.
    pub(super) fn new(
        kernels: &'a dyn Kernels,
        group: &'a Communicator,
        way: Compress,
        slots: usize,
        units: &[Vec<Tensor>],
    ) -> Compressed<'a> {
        let len = |tensors: &Vec<Tensor>| tensors.last().map_or(0, |last| last.range.end);
        let longest = units.iter().map(len).max().unwrap_or(0);
        let unit = |tensors: &Vec<Tensor>| Unit {
            whole: vec![0.0; len(tensors)],
            codec: match way {
                Compress::Bf16 => Box::new(Half::<bf16>::new(len(tensors))),
                Compress::F16 => Box::new(Half::<f16>::new(len(tensors))),
                Compress::TopK(part) => Box::new(Picks::new(len(tensors), part, group.size())),
                Compress::PowerSgd(rank) => Box::new(Factors::new(tensors, rank)),
            },
            flight: None,
        };
        Compressed {
            units: units.iter().map(unit).collect(),
            lane: vec![0.0; if slots > 1 { longest } else { 0 }],
            last: None,
            waited: Duration::ZERO,
            kernels,
            group,
            slots,
        }
    }

    /// Have the unit whose first call is on its way start its second.
    fn go_on(&mut self) -> Result<(), Error> {
        let Some(last) = self.last.take() else { return Ok(()) };
        self.units[last].codec.go_on(self.group, &mut self.waited)
    }
}

impl LaneSums for Compressed<'_> {
    fn open(&mut self, unit: usize, slot: usize) -> Result<&mut [f32], Error> {
        let Unit { whole, .. } = &mut self.units[unit];
        let len = whole.len();
        Ok(if slot == 0 { whole } else { &mut self.lane[..len] })
    }

    fn close(&mut self, unit: usize, slot: usize) -> Result<(), Error> {
        let Unit { whole, .. } = &mut self.units[unit];
        if slot > 0 {
            let len = whole.len();
            self.kernels.add(whole, &self.lane[..len]);
        }
        if slot + 1 < self.slots {
            return Ok(());
        }
        let Unit { whole, codec, flight } = &mut self.units[unit];
        *flight = Some(trace::span(Lane::Calls, "sum gradients", unit));
        codec.start(self.group, whole)?;
        // The first call of this unit is on its way while the second of the last one is prepared;
        // units are closed in the same order everywhere, and so are calls.
        self.go_on()?;
        self.last = Some(unit);
        Ok(())
    }

    fn complete(&mut self, _unit: usize) -> Result<(), Error> {
        self.go_on()
    }

    fn sum(&mut self, unit: usize) -> Result<&mut [f32], Error> {
        let Unit { whole, codec, flight } = &mut self.units[unit];
        if let Some(_span) = flight.take() {
            let _waiting = trace::span(Lane::Waiting, "for gradients", unit);
            codec.finish(whole, &mut self.waited)?;
        }
        Ok(whole)
    }

    fn formula_bytes(&self) -> Result<u64, Error> {
        let calls = self.units.iter().flat_map(|unit| unit.codec.calls());
        calls.map(|call| call_bytes(self.group, &call)).sum()
    }

    fn bytes(&self) -> (u64, u64) {
        let sums: usize = self.units.iter().map(|unit| unit.whole.len()).sum();
        let codecs: u64 = self.units.iter().map(|unit| unit.codec.bytes()).sum();
        (4 * sums as u64, codecs + 4 * self.lane.len() as u64)
    }

    fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }
}

/// Wait for a call: its input and its output.
fn wait<T: Element>(
    call: Option<Owned<T>>,
    waited: &mut Duration,
) -> Result<(Vec<T>, Vec<T>), Error> {
    let from = Instant::now();
    let buffers = call.expect("it was started").wait()?;
    *waited += from.elapsed();
    Ok(buffers)
}
