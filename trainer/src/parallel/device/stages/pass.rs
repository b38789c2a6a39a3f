//! One step of a rank's stages on its device: what a schedule says, given to the device.

use super::DeviceStages;
use super::rooms::{Chunk, Place};
use crate::data::fill;
use crate::error::Error;
use crate::parallel::Batch;
use crate::parallel::pipeline::{Action, Kind, Stages, Wires};

/// One step of them.
pub(super) struct Pass<'s, 'a> {
    pub(super) stages: &'s mut DeviceStages<'a>,
    pub(super) batch: &'s Batch<'s>,
}

impl Stages for Pass<'_, '_> {
    fn act(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        match action.kind {
            Kind::Forward => self.forward(action, wires),
            Kind::Backward => self.backward(action, wires),
            Kind::Input => self.backward_input(action, wires),
            Kind::Weight => self.backward_weight(action, wires),
            // Parameters are always here, and a gradient is on its way as soon as the last
            // micro-batch has been added to it.
            _ => Ok(()),
        }
    }

    fn send(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        self.stages.mail.send(action, wires)
    }

    fn flush(&mut self, wires: &mut Wires) -> Result<(), Error> {
        self.stages.mail.flush(wires)
    }
}

impl Pass<'_, '_> {
    fn forward(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        self.fill(action);
        let DeviceStages {
            layout, gpt, wire, mail, clock, results, chunks, tokens, targets, ..
        } = &mut *self.stages;
        let is_last = action.stage + 1 == chunks.len();
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let mut place = chunk.free.pop().expect("as many as the schedule needs");
        let Place { tape, used } = &mut place;
        if !tape.text.is_empty() {
            wire.send_text(tape.text, tokens, targets, used)?;
        }
        let units = chunk.held.units.clone();
        mail.take(action, tape.input(units.start), &gpt.device, wires)?;
        clock.begin()?;
        for unit in units.clone() {
            gpt.forward(tape, unit, chunk.held.params(layout, unit))?;
        }
        if is_last {
            gpt.loss(tape, self.batch.scale())?;
            results.fetch(gpt.device.stream(), action.micro, gpt.scratch.loss)?;
        }
        clock.end()?;
        mail.flush(wires)?;
        mail.put(action, tape.output(units.end - 1), &gpt.device, wires)?;
        chunk.live[action.micro] = Some(place);
        Ok(())
    }

    fn backward(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        let DeviceStages { layout, gpt, wire, mail, clock, chunks, sums, .. } = &mut *self.stages;
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let Chunk { held, live, done, free, .. } = chunk;
        let mut place = live[action.micro].take().expect("forward came before");
        mail.take(action, gpt.scratch.residual, &gpt.device, wires)?;
        clock.begin()?;
        let is_last = *done + 1 == live.len();
        for unit in held.units.clone().rev() {
            let (sum, lane) = (held.grads(layout, unit), held.lane(layout, unit, *done));
            gpt.backward(&mut place.tape, unit, held.params(layout, unit), lane)?;
            if *done > 0 {
                gpt.device.add(sum, lane)?;
            }
            if is_last {
                sums.sum(sum, wire)?;
            }
        }
        clock.end()?;
        gpt.device.stream().record(&place.used)?;
        mail.flush(wires)?;
        mail.put(action, gpt.scratch.residual, &gpt.device, wires)?;
        *done += 1;
        free.push(place);
        Ok(())
    }

    fn backward_input(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        let DeviceStages { layout, gpt, mail, clock, chunks, .. } = &mut *self.stages;
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let tape = &mut chunk.live[action.micro].as_mut().expect("forward came before").tape;
        let owed = chunk.free_owed.pop().expect("as many as the schedule needs");
        mail.take(action, gpt.scratch.residual, &gpt.device, wires)?;
        clock.begin()?;
        for unit in chunk.held.units.clone().rev() {
            gpt.backward_input(tape, unit, chunk.held.params(layout, unit), &owed)?;
        }
        clock.end()?;
        mail.flush(wires)?;
        mail.put(action, gpt.scratch.residual, &gpt.device, wires)?;
        chunk.owed[action.micro] = Some(owed);
        Ok(())
    }

    fn backward_weight(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        let DeviceStages { layout, gpt, wire, mail, clock, chunks, sums, .. } = &mut *self.stages;
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let Chunk { held, live, owed, done, free, free_owed } = chunk;
        let place = live[action.micro].take().expect("forward came before");
        let rest = owed[action.micro].take().expect("the other part came before");
        clock.begin()?;
        let is_last = *done + 1 == live.len();
        for unit in held.units.clone().rev() {
            let (sum, lane) = (held.grads(layout, unit), held.lane(layout, unit, *done));
            gpt.backward_weight(&place.tape, unit, lane, &rest)?;
            if *done > 0 {
                gpt.device.add(sum, lane)?;
            }
            if is_last {
                sums.sum(sum, wire)?;
            }
        }
        clock.end()?;
        gpt.device.stream().record(&place.used)?;
        mail.flush(wires)?;
        *done += 1;
        free.push(place);
        free_owed.push(rest);
        Ok(())
    }

    /// Have the micro-batch's text at hand, which the first and the last stage look at.
    fn fill(&mut self, action: Action) {
        let DeviceStages { lanes, chunks, tokens, targets, .. } = &mut *self.stages;
        if action.stage == 0 || action.stage + 1 == chunks.len() {
            let Batch { corpus, seed, step, context, .. } = *self.batch;
            let windows = lanes.range(action.micro);
            let windows = windows.map(|index| corpus.sample(seed, step, index, context));
            fill(windows, tokens, targets, context);
        }
    }
}
