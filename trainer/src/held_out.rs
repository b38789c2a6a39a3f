//! The loss of a trained model on text that was never trained on.

use crate::data::fill;
use crate::error::Error;
use crate::run::Run;
use crate::tape::Tape;

/// Windows that go through the model at once where the host computes.
const WINDOWS_AT_ONCE: usize = 8;

impl Run<'_> {
    /// Windows whose loss is told: as many as were asked for, or all that there are.
    pub(crate) fn windows(&self) -> usize {
        self.args.held_out.min(self.corpus.windows(self.args.context))
    }

    /// Mean loss over these windows, which do not depend on how many ranks there are.
    pub(crate) fn held_out(&mut self, params: &[f32]) -> Result<Option<f64>, Error> {
        if self.args.held_out == 0 {
            return Ok(None);
        }
        let total = match self.held_out_on_device()? {
            Some(total) => total,
            None => self.held_out_on_host(params)?,
        };
        Ok(Some(total / (self.windows() * self.args.context) as f64))
    }

    /// The sum of all losses.
    fn held_out_on_host(&self, params: &[f32]) -> Result<f64, Error> {
        let (context, all, corpus) = (self.args.context, self.windows(), &self.corpus);
        let config = self.model.layout().config();
        let mut total = 0.0;
        let mut tape = Tape::new(config, WINDOWS_AT_ONCE.min(all), context);
        for first in (0..all).step_by(WINDOWS_AT_ONCE) {
            let count = WINDOWS_AT_ONCE.min(all - first);
            if tape.tokens() != count * context {
                tape = Tape::new(config, count, context);
            }
            let mut text = [0, 1].map(|_| vec![0; tape.tokens()]);
            let [tokens, targets] = &mut text;
            let windows = (first..first + count).map(|index| corpus.held_out(index, all, context));
            fill(windows, tokens, targets, context);
            self.model.forward_all(params, &mut tape, tokens);
            total += self.model.loss(&mut tape, targets, 0.0)?;
        }
        Ok(total)
    }

    /// The same where the strategy's device computes it.
    fn held_out_on_device(&mut self) -> Result<Option<f64>, Error> {
        let (context, all) = (self.args.context, self.windows());
        let Run { corpus, strategy, .. } = self;
        let Some(samples) = strategy.evaluates() else { return Ok(None) };
        let mut total = 0.0;
        for first in (0..all).step_by(samples) {
            let end = all.min(first + samples);
            let mut text = [0, 1].map(|_| vec![0; (end - first) * context]);
            let windows = (first..end).map(|index| corpus.held_out(index, all, context));
            let [tokens, targets] = &mut text;
            fill(windows, tokens, targets, context);
            let mut losses = vec![0.0; tokens.len()];
            strategy.evaluate(tokens, targets, &mut losses)?;
            total += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
        }
        Ok(Some(total))
    }
}
