//! The stages of one rank, computed by a model.

use super::action::{Action, Kind};
use super::needs::StageNeeds;
use super::run::Stages;
use super::wires::Wires;
use crate::data::fill;
use crate::error::Error;
use crate::model::{Gpt, Owed};
use crate::parallel::{Batch, Lanes, Shards};
use crate::tape::{Keep, Scratch, Tape};
use std::ops::Range;
use std::time::Duration;

/// One stage: some units, and the micro-batches that are on their way through them.
pub(super) struct Chunk<'a> {
    pub(super) units: Range<usize>,
    pub(super) shards: Shards<'a>,
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

impl<'a> Chunk<'a> {
    pub(super) fn new(
        model: &Gpt,
        lanes: &Lanes,
        units: Range<usize>,
        mut shards: Shards<'a>,
        keep: Keep,
        needs: StageNeeds,
    ) -> Chunk<'a> {
        let (config, samples) = (model.layout().config(), lanes.samples());
        let rows = samples * config.context;
        let tape = || model.tape_that_keeps(keep, units.clone(), samples, config.context);
        shards.widen();
        Chunk {
            is_whole: false,
            live: (0..lanes.slots()).map(|_| None).collect(),
            owed: (0..lanes.slots()).map(|_| None).collect(),
            free_tapes: (0..needs.live).map(|_| tape()).collect(),
            free_owed: (0..needs.owed)
                .map(|_| Owed::of_units(config, units.clone(), rows))
                .collect(),
            done: 0,
            units,
            shards,
        }
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
        self.is_whole = true;
        self.units.clone().try_for_each(|unit| self.shards.prefetch(unit))
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

    fn take_waited(&mut self) -> Duration {
        let shards = self.chunks.mine().map(|chunk| chunk.shards.take_waited()).sum::<Duration>();
        shards + self.chunks.model.take_waited()
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
        chunk.is_whole = true;
        for unit in chunk.units.clone() {
            model.forward(unit, chunk.shards.fetch(unit)?, &mut tape, tokens)?;
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
        chunk.is_whole = true;
        for unit in chunk.units.clone().rev() {
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
        let tape = chunk.live[action.micro].as_mut().expect("forward came before");
        let mut owed = chunk.free_owed.pop().expect("as many as the schedule needs");
        wires.take(action, &mut scratch.residual);
        chunk.is_whole = true;
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
