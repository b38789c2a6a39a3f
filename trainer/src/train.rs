//! The training loop: samples in, one update per step, a line per step out.

use crate::args::Args;
use crate::begin;
use crate::checkpoint::{self, Course};
use crate::data::{Corpus, fill};
use crate::error::Error;
use crate::kernels::Cpu;
use crate::model::Gpt;
use crate::optim::{AdamW, learning_rate};
use crate::parallel::{Lanes, Strategy};
use crate::report::{Report, printable};
use crate::runlog::{RunLog, StepRecord};
use crate::sample::{Draw, sample};
use crate::tape::Tape;
use brigade_comm::Communicator;
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Loss of each step of this run, before its update; the run log has them by step.
    #[serde(skip)]
    pub losses: Vec<f64>,
    /// Mean loss on text that was never trained on.
    pub held_out: f64,
    /// Payload bytes this rank sent in steps.
    pub sent_bytes: u64,
    /// What the strategy's formula predicts for them.
    pub formula_bytes: u64,
    /// Wall time of the steps.
    pub seconds: f64,
}

/// Windows of held-out text that the final loss is taken over, and how many go through at once.
const HELD_OUT_WINDOWS: usize = 256;
const HELD_OUT_SAMPLES: usize = 8;

/// Train as `args` say, printing to `out`. Only rank 0 prints and writes files.
///
/// Errors: `Setting` for what cannot work, before anything is allocated; `File` and `Checkpoint`
/// for files; `Output` if `out` does not take what is printed; `Diverged` if the loss is no number
/// any more. Whatever ends this rank ends the others too, with its reason.
pub fn train(
    args: &Args,
    world: Option<Communicator>,
    out: &mut (dyn Write + Send),
) -> Result<Outcome, Error> {
    // A world of one has nobody to talk to.
    let world = world.as_ref().filter(|comm| comm.size() > 1);
    let (rank, ranks) = world.map_or((0, 1), |comm| (comm.rank(), comm.size()));
    args.validate(ranks)?;
    let lanes = args.share_of(rank, ranks)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads(ranks)).build();
    let pool = pool.map_err(|problem| Error::setting("threads", problem.to_string()))?;
    let outcome = pool.install(|| run(args, lanes, world, out));
    if let (Err(error), Some(comm)) = (&outcome, world)
        && !matches!(error, Error::Comm(_))
    {
        comm.abort(&error.to_string());
    }
    outcome
}

fn run(
    args: &Args,
    lanes: Lanes,
    world: Option<&Communicator>,
    out: &mut (dyn Write + Send),
) -> Result<Outcome, Error> {
    let model = Gpt::new(args.config(), Cpu)?;
    let mut strategy = begin::strategy(args, &model, lanes, world)?;
    let mut run = Run::new(args, &model, lanes, world, out)?;
    run.announce(&*strategy)?;
    let mut outcome = run.steps(&mut *strategy)?;
    run.finish(&mut outcome)?;
    if let Some(comm) = world {
        // Nobody leaves while rank 0 still writes: a rank that ends early would look lost.
        comm.barrier()?;
    }
    Ok(outcome)
}

/// Everything one rank holds while it trains.
pub(crate) struct Run<'a> {
    pub(crate) args: &'a Args,
    pub(crate) model: &'a Gpt,
    pub(crate) world: Option<&'a Communicator>,
    pub(crate) lanes: Lanes,
    pub(crate) corpus: Corpus,
    /// [parameters], in the order of the model's layout.
    pub(crate) params: Vec<f32>,
    pub(crate) adam: AdamW,
    pub(crate) tape: Tape,
    /// [samples of a lane × context], and the byte after each.
    pub(crate) tokens: Vec<u32>,
    pub(crate) targets: Vec<u32>,
    /// Summed loss of each of this rank's lanes: `[slots]`.
    pub(crate) losses: Vec<f64>,
    /// Settings of the run that wrote the checkpoint this one goes on from.
    pub(crate) resumed: Option<Course>,
    pub(crate) report: Report<'a>,
    pub(crate) log: RunLog,
}

impl Run<'_> {
    fn steps(&mut self, strategy: &mut dyn Strategy) -> Result<Outcome, Error> {
        let (start, sent) = (Instant::now(), strategy.sent_bytes());
        let mut losses = Vec::new();
        for step in self.adam.steps..self.args.last_step() {
            let record = self.step(step, strategy)?;
            self.report.step(&record)?;
            self.log.write("step", &record)?;
            losses.push(record.loss);
            if !record.loss.is_finite() {
                return Err(Error::Diverged { step: record.step, loss: record.loss });
            }
            if self.args.checkpoint_every.is_some_and(|every| (step + 1) % every == 0) {
                self.save()?;
            }
        }
        let formula_bytes = strategy.formula_bytes() * losses.len() as u64;
        let sent_bytes = strategy.sent_bytes() - sent;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Outcome { losses, held_out: f64::NAN, sent_bytes, formula_bytes, seconds })
    }

    /// One update from one global batch. `step` counts from 0.
    fn step(&mut self, step: usize, strategy: &mut dyn Strategy) -> Result<StepRecord, Error> {
        let Run { args, model, lanes, corpus, params, adam, tape, tokens, targets, .. } = self;
        let (context, begun, sent) = (args.context, Instant::now(), strategy.sent_bytes());
        let scale = 1.0 / (args.batch * context) as f32;
        let (mut forward, mut backward, mut exposed) =
            (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for slot in 0..lanes.slots() {
            let from = Instant::now();
            let windows =
                lanes.range(slot).map(|index| corpus.sample(args.seed, step, index, context));
            fill(windows, tokens, targets, context);
            model.forward(params, tape, tokens);
            self.losses[slot] = model.loss(tape, targets, scale);
            forward += from.elapsed();

            let from = Instant::now();
            let late =
                strategy.reduce(slot, &mut |sync| model.backward(params, tape, tokens, sync))?;
            backward += from.elapsed() - late;
            exposed += late;
        }
        let from = Instant::now();
        let loss = strategy.loss(&self.losses)? * f64::from(scale);
        exposed += from.elapsed();

        let from = Instant::now();
        let lr = learning_rate(args.lr, step, args.steps);
        adam.step(model.kernels(), params, strategy.gradients(), lr);
        let (optimizer, whole) = (from.elapsed(), begun.elapsed());
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(StepRecord {
            step: step + 1,
            loss,
            lr,
            forward_ms: ms(forward),
            backward_ms: ms(backward),
            exposed_ms: ms(exposed),
            optimizer_ms: ms(optimizer),
            step_ms: ms(whole),
            tokens_per_second: (args.batch * context) as f64 / whole.as_secs_f64(),
            sent_bytes: strategy.sent_bytes() - sent,
            formula_bytes: strategy.formula_bytes(),
        })
    }

    /// Held-out loss, a sample of text and the last checkpoint.
    fn finish(&mut self, outcome: &mut Outcome) -> Result<(), Error> {
        if self.args.checkpoint.is_some() {
            self.save()?;
        }
        outcome.held_out = self.held_out();
        self.log.write("end", outcome)?;
        let Outcome { losses, held_out, seconds, .. } = outcome;
        if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
            let bits = *held_out / std::f64::consts::LN_2;
            self.report.say(&format!(
                "loss {first:.3} -> {last:.3} in {seconds:.1} s; on unseen text {held_out:.3}, \
                 {bits:.2} bits per byte"
            ))?;
        }
        if self.args.sample > 0 && self.lanes.is_first() {
            let draw = Draw { temperature: 0.8, top_k: 40, seed: self.args.seed };
            let prompt = self.args.prompt.as_bytes();
            let text = sample(self.model, &self.params, prompt, self.args.sample, draw);
            self.report.say(&printable(&[prompt, &text].concat()))?;
        }
        Ok(())
    }

    /// Mean loss over windows that do not depend on how many ranks there are.
    fn held_out(&self) -> f64 {
        let (context, corpus) = (self.args.context, &self.corpus);
        let mut tape = Tape::new(self.model.layout().config(), HELD_OUT_SAMPLES, context);
        let mut tokens = vec![0; tape.tokens()];
        let mut targets = tokens.clone();
        let mut total = 0.0;
        for first in (0..HELD_OUT_WINDOWS).step_by(HELD_OUT_SAMPLES) {
            let windows = (first..first + HELD_OUT_SAMPLES)
                .map(|index| corpus.held_out(index, HELD_OUT_WINDOWS, context));
            fill(windows, &mut tokens, &mut targets, context);
            self.model.forward(&self.params, &mut tape, &tokens);
            total += self.model.loss(&mut tape, &targets, 0.0);
        }
        total / (HELD_OUT_WINDOWS * context) as f64
    }

    fn save(&self) -> Result<(), Error> {
        match &self.args.checkpoint {
            Some(path) if self.lanes.is_first() => {
                let course = self.args.course();
                checkpoint::save(path, self.model.layout(), &course, &self.params, &self.adam)
            }
            _ => Ok(()),
        }
    }
}
