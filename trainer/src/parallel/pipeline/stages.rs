//! The stages of one rank, computed by a model.

use super::action::{Action, Kind};
use super::needs::StageNeeds;
use super::run::Stages;
use super::wires::Wires;
use crate::data::fill;
use crate::error::Error;
use crate::model::{Gpt, Owed};
use crate::offload::{DiskUse, Inputs, Offload};
use crate::optim::Rule;
use crate::parallel::{Batch, Lanes, Shards, Sharing, Thrift};
use crate::state::State;
use crate::tape::{Scratch, Tape};
use brigade_comm::Communicator;
use std::ops::Range;
use std::time::Duration;

/// One stage: some units, and the micro-batches that are on their way through them.
pub(super) struct Chunk<'a> {
    pub(super) units: Range<usize>,
    pub(super) shards: Shards<'a>,
    /// What goes into its blocks, if that is kept in a file.
    inputs: Option<Inputs>,
    /// How long files had been waited for when this was asked last.
    files_waited: Duration,
    /// Whether all its parameters are here, where they are held in parts.
    is_whole: bool,
    /// Of micro-batches that are between forward and backward, or between the backward's parts.
    live: Vec<Option<Tape>>,
    owed: Vec<Option<Owed>>,
    /// Those that nothing is in.
    free_tapes: Vec<Tape>,
    free_owed: Vec<Owed>,
    /// Backwards of this step.
    done: usize,
    /// What a step sends and moves, by formula.
    pub(super) formula_bytes: u64,
    pub(super) disk_formula: DiskUse,
}

/// All that a rank computes with.
pub(super) struct Chunks<'a> {
    pub(super) model: &'a Gpt,
    pub(super) lanes: Lanes,
    /// By stage; none where another rank has it.
    pub(super) chunks: Vec<Option<Chunk<'a>>>,
    pub(super) scratch: Scratch,
    /// [samples of a micro-batch × context], and the byte after each.
    tokens: Vec<u32>,
    targets: Vec<u32>,
    /// Summed loss of each micro-batch, on the rank that has the last stage.
    pub(super) losses: Vec<f64>,
}

/// What all stages of a rank are made with.
pub(super) struct Site<'a, 's> {
    pub(super) model: &'a Gpt,
    pub(super) group: Option<&'a Communicator>,
    pub(super) lanes: Lanes,
    pub(super) sharing: Sharing,
    pub(super) rule: Rule,
    pub(super) thrift: &'s Thrift,
    /// Of the whole model, or of this rank's part of every tensor.
    pub(super) state: &'s State,
}

impl<'a> Site<'a, '_> {
    /// A stage that is one of so many parts of what the rank has.
    pub(super) fn chunk(
        &self,
        units: Range<usize>,
        needs: StageNeeds,
        (part, parts): (usize, usize),
    ) -> Result<Chunk<'a>, Error> {
        let Site { model, group, lanes, sharing, rule, thrift, state } = self;
        let (layout, slots, samples) = (model.layout(), lanes.slots(), lanes.samples());
        let (config, gathers) = (layout.config(), needs.gathers as u64);
        let file = |offload: &Option<Offload>| offload.as_ref().map(|it| it.part(part, parts));
        let mut shards =
            Shards::new(model.kernels(), *group, *sharing, layout, units.clone(), state);
        shards.begin(&thrift.source, layout, *group)?;
        let offload = file(&thrift.offload);
        shards.suit(*rule, offload.as_ref())?;
        offload.map_or(Ok(()), |offload| shards.offload(&offload))?;
        shards.widen();
        let tape = || model.tape_that_keeps(thrift.keep, units.clone(), samples, config.context);
        let free_tapes: Vec<Tape> = (0..needs.live).map(|_| tape()).collect();
        let rows = samples * config.context;
        let owed = || Owed::of_units(config, units.clone(), rows);
        let inputs = file(&thrift.inputs).map_or(Ok(None), |offload| {
            let len = free_tapes.iter().flat_map(|tape| &tape.stream).map(Vec::len).max();
            Inputs::new(&offload, config.layers, units.clone(), slots, len.unwrap_or(0))
        })?;
        let inside = slots as u64 * model.formula_bytes(thrift.keep, units.clone(), samples)?;
        let moved = inputs.as_ref().map_or(DiskUse::default(), Inputs::formula);
        Ok(Chunk {
            is_whole: false,
            live: (0..slots).map(|_| None).collect(),
            owed: (0..slots).map(|_| None).collect(),
            free_owed: (0..needs.owed).map(|_| owed()).collect(),
            done: 0,
            formula_bytes: shards.formula_bytes_with(|_| gathers)? + inside,
            disk_formula: shards.disk_formula_with(|_| gathers).plus(moved.times(slots as u32)),
            files_waited: Duration::ZERO,
            free_tapes,
            inputs,
            units,
            shards,
        })
    }
}

impl Chunk<'_> {
    /// What files have cost so far.
    pub(super) fn disk_use(&self) -> DiskUse {
        let inputs = self.inputs.as_ref().map_or(DiskUse::default(), Inputs::used);
        self.shards.disk_use().plus(inputs)
    }

    /// How long they were waited for since this was asked last.
    pub(super) fn take_files_waited(&mut self) -> Duration {
        let waited = self.disk_use().waited;
        waited - std::mem::replace(&mut self.files_waited, waited)
    }

    /// Memory with a budget. \[bytes\]
    pub(super) fn inputs_bytes(&self) -> u64 {
        self.inputs.as_ref().map_or(0, Inputs::arena_bytes)
    }

    /// Bytes of what is kept from forward to backward. Ask when nothing is on its way.
    pub(super) fn bytes(&self) -> u64 {
        let tapes: u64 = self.free_tapes.iter().map(Tape::bytes).sum();
        tapes + self.free_owed.iter().map(Owed::bytes).sum::<u64>()
    }

    /// Before the update, which may want parameters in parts.
    pub(super) fn finish(&mut self) {
        self.reshard();
        self.done = 0;
    }

    fn unshard(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.is_whole, true) { Ok(()) } else { self.shards.summon() }
    }

    fn reshard(&mut self) {
        if std::mem::take(&mut self.is_whole) {
            for unit in self.units.clone() {
                self.shards.release(unit);
            }
        }
    }
}

impl<'a> Chunks<'a> {
    pub(super) fn new(model: &'a Gpt, lanes: Lanes, chunks: Vec<Option<Chunk<'a>>>) -> Chunks<'a> {
        let (samples, time) = (lanes.samples(), model.layout().config().context);
        let tokens = vec![0; samples * time];
        Chunks {
            scratch: model.scratch(samples, time),
            targets: tokens.clone(),
            losses: vec![0.0; lanes.slots()],
            tokens,
            model,
            lanes,
            chunks,
        }
    }

    /// What files have cost so far.
    pub(super) fn disk_use(&self) -> DiskUse {
        let chunks = self.chunks.iter().flatten();
        chunks.fold(DiskUse::default(), |sum, chunk| sum.plus(chunk.disk_use()))
    }

    /// Bytes of what all stages of this rank share.
    pub(super) fn bytes(&self) -> u64 {
        let text = 4 * (self.tokens.len() + self.targets.len()) as u64;
        self.scratch.bytes() + self.model.gated_bytes() + text
    }

    /// This rank's stages.
    pub(super) fn mine(&mut self) -> impl DoubleEndedIterator<Item = &mut Chunk<'a>> {
        self.chunks.iter_mut().flatten()
    }
}

/// One step of them.
pub(super) struct Pass<'s, 'a> {
    pub(super) chunks: &'s mut Chunks<'a>,
    pub(super) batch: &'s Batch<'s>,
}

impl Stages for Pass<'_, '_> {
    fn act(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        match action.kind {
            Kind::Forward => self.forward(action, wires),
            Kind::Backward => self.backward(action, wires),
            Kind::Input => self.backward_input(action, wires),
            Kind::Weight => self.backward_weight(action),
            Kind::Unshard => self.chunk(action).unshard(),
            Kind::Reshard => {
                // What is let go of has arrived, or else nobody can be sure that it was asked for.
                let chunk = self.chunk(action);
                for unit in chunk.units.clone() {
                    chunk.shards.fetch(unit)?;
                }
                chunk.reshard();
                Ok(())
            }
            // A gradient is on its way as soon as the last micro-batch has been added to it.
            _ => Ok(()),
        }
    }

    fn take_waited(&mut self) -> [Duration; 2] {
        let ranks: Duration = self.chunks.mine().map(|chunk| chunk.shards.take_waited()).sum();
        let files = self.chunks.mine().map(Chunk::take_files_waited).sum();
        [ranks + self.chunks.model.take_waited(), files]
    }
}

impl<'a> Pass<'_, 'a> {
    fn forward(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        let (stage, last) = (action.stage, self.chunks.chunks.len() - 1);
        self.fill(action);
        let batch = self.batch;
        let Chunks { model, chunks, tokens, targets, losses, .. } = &mut *self.chunks;
        let chunk = chunks[stage].as_mut().expect("a checked schedule");
        let mut tape = chunk.free_tapes.pop().expect("as many as the schedule needs");
        wires.take(action, &mut tape.stream[0]);
        chunk.unshard()?;
        for unit in chunk.units.clone() {
            model.forward(unit, chunk.shards.fetch(unit)?, &mut tape, tokens)?;
            let inputs = chunk.inputs.as_mut();
            inputs.map_or(Ok(()), |inputs| inputs.leave(action.micro, unit, &mut tape))?;
        }
        if stage == last {
            losses[action.micro] = model.loss(&mut tape, targets, batch.scale())?;
        }
        wires.put(action, tape.stream.last_mut().expect("every tape has a stream"));
        chunk.live[action.micro] = Some(tape);
        Ok(())
    }

    fn backward(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        self.fill(action);
        let Chunks { model, chunks, scratch, tokens, .. } = &mut *self.chunks;
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let mut tape = chunk.live[action.micro].take().expect("forward came before");
        wires.take(action, &mut scratch.residual);
        chunk.unshard()?;
        for unit in chunk.units.clone().rev() {
            let inputs = chunk.inputs.as_mut();
            inputs.map_or(Ok(()), |inputs| inputs.come_back(action.micro, unit, &mut tape))?;
            let (params, grads) = chunk.shards.open(unit, chunk.done)?;
            if tape.has_lost(unit) {
                model.forward(unit, params, &mut tape, tokens)?;
            }
            model.backward(unit, params, grads, &tape, scratch, tokens)?;
            chunk.shards.close(unit, chunk.done)?;
        }
        wires.put(action, &mut scratch.residual);
        chunk.done += 1;
        chunk.free_tapes.push(tape);
        Ok(())
    }

    fn backward_input(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        let Chunks { model, chunks, scratch, .. } = &mut *self.chunks;
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        chunk.unshard()?;
        let tape = chunk.live[action.micro].as_mut().expect("forward came before");
        let mut owed = chunk.free_owed.pop().expect("as many as the schedule needs");
        wires.take(action, &mut scratch.residual);
        for unit in chunk.units.clone().rev() {
            model.backward_input(unit, chunk.shards.fetch(unit)?, tape, scratch, &mut owed);
        }
        wires.put(action, &mut scratch.residual);
        chunk.owed[action.micro] = Some(owed);
        Ok(())
    }

    fn backward_weight(&mut self, action: Action) -> Result<(), Error> {
        self.fill(action);
        let Chunks { model, chunks, tokens, .. } = &mut *self.chunks;
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let tape = chunk.live[action.micro].take().expect("forward came before");
        let owed = chunk.owed[action.micro].take().expect("the other part came before");
        chunk.unshard()?;
        for unit in chunk.units.clone().rev() {
            let grads = chunk.shards.open_gradient(unit, chunk.done)?;
            model.backward_weight(unit, grads, &tape, &owed, tokens);
            chunk.shards.close(unit, chunk.done)?;
        }
        chunk.done += 1;
        chunk.free_tapes.push(tape);
        chunk.free_owed.push(owed);
        Ok(())
    }

    fn chunk(&mut self, action: Action) -> &mut Chunk<'a> {
        self.chunks.chunks[action.stage].as_mut().expect("a checked schedule")
    }

    /// Have the micro-batch's text here, which the first and the last stage look at.
    fn fill(&mut self, action: Action) {
        let Chunks { lanes, chunks, tokens, targets, .. } = &mut *self.chunks;
        if action.stage == 0 || action.stage + 1 == chunks.len() {
            let Batch { corpus, seed, step, context, .. } = *self.batch;
            let windows = lanes.range(action.micro);
            let windows = windows.map(|index| corpus.sample(seed, step, index, context));
            fill(windows, tokens, targets, context);
        }
    }
}
