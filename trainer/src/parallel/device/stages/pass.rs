//! One step of a rank's stages on its device: what a schedule says, given to the device.

use super::DeviceStages;
use super::rooms::{Chunk, Place};
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
        if self.stages.waits_inside {
            self.stages.mail.flush(wires)?;
        }
        match action.kind {
            Kind::Forward => self.forward(action, wires),
            Kind::Backward => self.backward(action, wires),
            Kind::Input => self.backward_input(action, wires),
            Kind::Weight => self.backward_weight(action, wires),
            Kind::Unshard => self.make_whole(action, true),
            Kind::Reshard => self.make_whole(action, false),
            // A gradient is on its way as soon as it is whole.
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
    fn make_whole(&mut self, action: Action, is_wanted: bool) -> Result<(), Error> {
        let DeviceStages { common, chunks, .. } = &mut *self.stages;
        let chunk = chunks[action.stage].as_ref().expect("a checked schedule");
        chunk.kept.make_whole(is_wanted, common)
    }

    fn forward(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        self.fill(action);
        let DeviceStages { common, gpt, mail, clock, results, chunks, text, .. } =
            &mut *self.stages;
        let is_last = action.stage + 1 == chunks.len();
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let mut place = chunk.free.pop().expect("as many as the schedule needs");
        let Place { at, tape, used } = &mut place;
        if !tape.text.is_empty() {
            common.wire.send_text(tape.text, text, used)?;
        }
        let units = chunk.kept.units();
        mail.take(action, tape.input(units.start), &gpt.device, wires)?;
        clock.begin()?;
        let Chunk { kept, inputs, .. } = chunk;
        for unit in units.clone() {
            let Some(inputs) = inputs else {
                gpt.forward(tape, unit, kept.params(unit, common)?)?;
                continue;
            };
            inputs.leave(*at, unit, tape)?;
            gpt.forward(tape, unit, kept.params(unit, common)?)?;
            mail.flush(wires)?;
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
        let DeviceStages { common, gpt, mail, clock, chunks, .. } = &mut *self.stages;
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let Chunk { kept, inputs, live, done, free, .. } = chunk;
        let mut place = live[action.micro].take().expect("forward came before");
        mail.take(action, gpt.scratch.residual, &gpt.device, wires)?;
        clock.begin()?;
        let slot = (*done, *done + 1 == live.len());
        for unit in kept.units().rev() {
            let params = kept.params(unit, common)?;
            let lane = kept.lane(unit, slot, common, &gpt.device)?;
            if let Some(inputs) = inputs {
                inputs.come_back(place.at, unit)?;
                gpt.backward(&mut place.tape, unit, params, lane)?;
                mail.flush(wires)?;
                inputs.come_next(place.at, unit, &place.tape)?;
            } else {
                gpt.backward(&mut place.tape, unit, params, lane)?;
            }
            kept.close(unit, slot, common, &gpt.device)?;
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
        let DeviceStages { common, gpt, mail, clock, chunks, .. } = &mut *self.stages;
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let tape = &mut chunk.live[action.micro].as_mut().expect("forward came before").tape;
        let owed = chunk.free_owed.pop().expect("as many as the schedule needs");
        mail.take(action, gpt.scratch.residual, &gpt.device, wires)?;
        clock.begin()?;
        for unit in chunk.kept.units().rev() {
            let params = chunk.kept.params(unit, common)?;
            gpt.backward_input(tape, unit, params, &owed)?;
        }
        clock.end()?;
        mail.flush(wires)?;
        mail.put(action, gpt.scratch.residual, &gpt.device, wires)?;
        chunk.owed[action.micro] = Some(owed);
        Ok(())
    }

    fn backward_weight(&mut self, action: Action, wires: &mut Wires) -> Result<(), Error> {
        let DeviceStages { common, gpt, mail, clock, chunks, .. } = &mut *self.stages;
        let chunk = chunks[action.stage].as_mut().expect("a checked schedule");
        let Chunk { kept, live, owed, done, free, free_owed, .. } = chunk;
        let place = live[action.micro].take().expect("forward came before");
        let rest = owed[action.micro].take().expect("the other part came before");
        clock.begin()?;
        let slot = (*done, *done + 1 == live.len());
        for unit in kept.units().rev() {
            let lane = kept.lane(unit, slot, common, &gpt.device)?;
            gpt.backward_weight(&place.tape, unit, lane, &rest)?;
            kept.close(unit, slot, common, &gpt.device)?;
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
        let DeviceStages { lanes, chunks, text, .. } = &mut *self.stages;
        if action.stage == 0 || action.stage + 1 == chunks.len() {
            let Batch { corpus, seed, step, context, .. } = *self.batch;
            let windows = lanes.range(action.micro);
            let windows = windows.map(|index| corpus.sample(seed, step, index, context));
            text.fill(windows);
        }
    }
}
