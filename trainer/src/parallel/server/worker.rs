//! A rank that computes, on the processor or on a device.

use crate::data::fill;
use crate::device::DeviceUse;
use crate::error::Error;
use crate::model::Gpt;
use crate::parallel::device::{Crossing, crossing_on_device};
use crate::parallel::{Batch, Lanes, Memory, Spent, Thrift};
use crate::state::State;
use crate::tape::{Scratch, Tape};
use std::time::Instant;

pub(super) struct Worker<'a> {
    model: &'a Gpt,
    lanes: Lanes,
    /// [parameters] each.
    pub(super) params: Vec<f32>,
    pub(super) grads: Vec<f32>,
    /// A lane's gradient of a unit, where a rank adds several lanes up.
    lane: Vec<f32>,
    /// Of each slot, summed over its tokens.
    losses: Vec<f64>,
    machine: Machine<'a>,
}

enum Machine<'a> {
    Host(Box<Host>),
    /// With the units whose backward it was given so far, from the last one on.
    Device(Box<Crossing<'a>>, usize),
}

/// What the processor needs.
struct Host {
    tape: Tape,
    scratch: Scratch,
    /// [samples of a lane × context], and the byte after each.
    tokens: Vec<u32>,
    targets: Vec<u32>,
}

impl<'a> Worker<'a> {
    /// One that adds its lanes up, or not.
    ///
    /// Errors: those of a device, if there is one.
    pub(super) fn new(
        model: &'a Gpt,
        lanes: Lanes,
        (thrift, usage): (&Thrift, Option<DeviceUse>),
        adds_up: bool,
        state: &State,
    ) -> Result<Worker<'a>, Error> {
        let (layout, samples) = (model.layout(), lanes.samples());
        let (units, time) = (0..layout.units(), layout.config().context);
        let longest = units.clone().map(|unit| layout.unit(unit).len()).max().unwrap_or(0);
        let machine = match usage {
            Some(usage) => {
                Machine::Device(Box::new(crossing_on_device(usage, model, lanes, thrift)?), 0)
            }
            None => Machine::Host(Box::new(Host {
                tape: model.tape_that_keeps(thrift.keep, units, samples, time),
                scratch: model.scratch(samples, time),
                tokens: vec![0; samples * time],
                targets: vec![0; samples * time],
            })),
        };
        Ok(Worker {
            params: if state.is_absent() { vec![0.0; layout.len()] } else { state.params.clone() },
            grads: vec![0.0; layout.len()],
            lane: vec![0.0; if adds_up && lanes.slots() > 1 { longest } else { 0 }],
            losses: vec![0.0; lanes.slots()],
            machine,
            model,
            lanes,
        })
    }

    /// Lanes that it computes in each step.
    pub(super) fn slots(&self) -> usize {
        self.lanes.slots()
    }

    /// Forward of this rank's lane of `slot`.
    pub(super) fn forward(
        &mut self,
        slot: usize,
        batch: &Batch<'_>,
        spent: &mut Spent,
    ) -> Result<(), Error> {
        let Worker { model, lanes, params, losses, machine, .. } = self;
        let layout = model.layout();
        match machine {
            Machine::Host(host) => {
                let Host { tape, tokens, targets, .. } = &mut **host;
                let from = Instant::now();
                let sample =
                    |index| batch.corpus.sample(batch.seed, batch.step, index, batch.context);
                fill(lanes.range(slot).map(sample), tokens, targets, batch.context);
                for unit in 0..layout.units() {
                    model.forward(unit, &params[layout.unit(unit)], tape, tokens)?;
                }
                losses[slot] = model.loss(tape, targets, batch.scale())?;
                spent.forward += from.elapsed();
                Ok(())
            }
            Machine::Device(crossing, given) => {
                *given = 0;
                crossing.enter(slot, batch)?;
                for unit in 0..layout.units() {
                    crossing.forward(unit, || Ok(&params[layout.unit(unit)]))?;
                }
                crossing.turn(slot, batch.scale())
            }
        }
    }

    /// Backward of one unit of the same, of all in descending order. The gradient is added to those
    /// of the lanes before if there are any and `adds_up`.
    pub(super) fn backward(
        &mut self,
        unit: usize,
        adds_up: bool,
        spent: &mut Spent,
    ) -> Result<(), Error> {
        let from = Instant::now();
        let Worker { model, params, grads, lane, machine, .. } = self;
        let layout = model.layout();
        let range = layout.unit(unit);
        let grads = &mut grads[range.clone()];
        let to = if adds_up { &mut lane[..range.len()] } else { &mut *grads };
        match machine {
            Machine::Host(host) => {
                let Host { tape, scratch, tokens, .. } = &mut **host;
                if tape.has_lost(unit) {
                    model.forward(unit, &params[range.clone()], tape, tokens)?;
                }
                let params = &params[range.clone()];
                model.backward(unit, params, to, tape, scratch, tokens)?;
            }
            Machine::Device(crossing, given) => {
                // The next unit is computed while this one's gradient is here.
                while *given < layout.units().min(layout.units() - unit + 1) {
                    let next = layout.units() - 1 - *given;
                    crossing.backward(next, || Ok(&params[layout.unit(next)]))?;
                    *given += 1;
                }
                crossing.take(to)?;
            }
        }
        if adds_up {
            model.kernels().add(grads, &lane[..range.len()]);
        }
        if matches!(machine, Machine::Host(_)) {
            spent.backward += from.elapsed();
        }
        Ok(())
    }

    /// Behind all of that: the summed loss of each slot, and when the device did what.
    pub(super) fn losses(&mut self, spent: &mut Spent) -> Result<&[f64], Error> {
        if let Machine::Device(crossing, _) = &mut self.machine {
            crossing.losses(&mut self.losses, spent)?;
        }
        Ok(&self.losses)
    }

    /// The parameters are others from now on.
    pub(super) fn renew(&mut self) {
        if let Machine::Device(crossing, _) = &mut self.machine {
            crossing.renew();
        }
    }

    /// What computes, if it is not the host: one line.
    pub(super) fn device(&self) -> Option<String> {
        match &self.machine {
            Machine::Host(_) => None,
            Machine::Device(crossing, _) => Some(crossing.describe()),
        }
    }

    pub(super) fn memory(&self) -> Memory {
        let bytes = |numbers: usize| 4 * numbers as u64;
        let [activations, pinned, arena] = match &self.machine {
            Machine::Host(host) => {
                let Host { tape, scratch, tokens, targets, .. } = &**host;
                let text = bytes(tokens.len() + targets.len());
                [tape.bytes() + scratch.bytes() + self.model.gated_bytes() + text, 0, 0]
            }
            Machine::Device(crossing, _) => crossing.bytes(),
        };
        Memory {
            params: bytes(self.params.len()),
            grads: bytes(self.grads.len()),
            calls: bytes(self.lane.len()) + pinned,
            activations,
            arena,
            ..Memory::default()
        }
    }
}
