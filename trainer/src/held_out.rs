//! The loss of a trained model on text that was never trained on.

use crate::data::fill;
use crate::error::Error;
use crate::tape::Tape;
use crate::train::Run;

/// Windows of held-out text that the final loss is taken over, and how many go through at once.
const HELD_OUT_WINDOWS: usize = 256;
const HELD_OUT_SAMPLES: usize = 8;

impl Run<'_> {
    /// Mean loss over windows that do not depend on how many ranks there are.
    pub(crate) fn held_out(&mut self, params: &[f32]) -> Result<f64, Error> {
        match self.held_out_on_device()? {
            Some(loss) => Ok(loss),
            None => self.held_out_on_host(params),
        }
    }

    fn held_out_on_host(&self, params: &[f32]) -> Result<f64, Error> {
        let (context, corpus) = (self.args.context, &self.corpus);
        let mut tape = Tape::new(self.model.layout().config(), HELD_OUT_SAMPLES, context);
        let mut tokens = vec![0; tape.tokens()];
        let mut targets = tokens.clone();
        let mut total = 0.0;
        for first in (0..HELD_OUT_WINDOWS).step_by(HELD_OUT_SAMPLES) {
            let windows = (first..first + HELD_OUT_SAMPLES)
                .map(|index| corpus.held_out(index, HELD_OUT_WINDOWS, context));
            fill(windows, &mut tokens, &mut targets, context);
            self.model.forward_all(params, &mut tape, &tokens);
            total += self.model.loss(&mut tape, &targets, 0.0)?;
        }
        Ok(total / (HELD_OUT_WINDOWS * context) as f64)
    }

    /// The same where the strategy's device computes it.
    fn held_out_on_device(&mut self) -> Result<Option<f64>, Error> {
        let Run { args, corpus, strategy, .. } = self;
        let Some(samples) = strategy.evaluates() else { return Ok(None) };
        let context = args.context;
        let mut total = 0.0;
        for first in (0..HELD_OUT_WINDOWS).step_by(samples) {
            let end = HELD_OUT_WINDOWS.min(first + samples);
            let mut text = [0, 1].map(|_| vec![0; (end - first) * context]);
            let windows =
                (first..end).map(|index| corpus.held_out(index, HELD_OUT_WINDOWS, context));
            let [tokens, targets] = &mut text;
            fill(windows, tokens, targets, context);
            let mut losses = vec![0.0; tokens.len()];
            strategy.evaluate(tokens, targets, &mut losses)?;
            total += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
        }
        Ok(Some(total / (HELD_OUT_WINDOWS * context) as f64))
    }
}
