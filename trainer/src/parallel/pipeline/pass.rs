//! One step of a rank's stages on the host: what a schedule says, computed by a model.

use super::action::{Action, Kind};
use super::run::Stages;
use super::stages::{Chunk, Chunks};
use super::wires::Wires;
use crate::data::fill;
use crate::error::Error;
use crate::parallel::Batch;
use std::time::Duration;

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
            Kind::Reshard => self.chunk(action).reshard(),
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
