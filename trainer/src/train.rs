//! The training loop: samples in, one update per step, a line per step out.

use crate::args::{Args, StrategyName};
use crate::checkpoint;
use crate::data::{Corpus, fill};
use crate::error::Error;
use crate::kernels::Cpu;
use crate::model::Gpt;
use crate::optim::{AdamW, Hyper, learning_rate};
use crate::parallel::{Ddp, Lanes, Ordered, Single, Strategy};
use crate::report::{Report, grouped, megabytes};
use crate::runlog::{RunLog, StepRecord};
use crate::sample::{Draw, sample};
use crate::tape::Tape;
use brigade_comm::Communicator;
use serde::Serialize;
use std::time::{Duration, Instant};

/// What a run came to.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Loss of each step of this run, before its update.
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

/// Windows of held-out text that the final loss is taken over.
const HELD_OUT_WINDOWS: usize = 64;

/// Train as `args` say. Only rank 0 prints and writes files.
///
/// Errors: `Setting` for what cannot work, before anything is allocated; `File` and `Checkpoint`
/// for files; `Diverged` if the loss is no number any more.
pub fn train(args: &Args, world: Option<Communicator>) -> Result<Outcome, Error> {
    // A world of one has nobody to talk to.
    let world = world.as_ref().filter(|comm| comm.size() > 1);
    let (rank, ranks) = world.map_or((0, 1), |comm| (comm.rank(), comm.size()));
    args.validate(ranks)?;
    let lanes = if args.ordered { args.lanes } else { ranks };
    let lanes = Lanes::new(args.batch, lanes, rank, ranks)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads(ranks)).build();
    let pool = pool.map_err(|problem| Error::setting("threads", problem.to_string()))?;
    pool.install(|| run(args, lanes, world))
}

fn run(args: &Args, lanes: Lanes, world: Option<&Communicator>) -> Result<Outcome, Error> {
    let model = Gpt::new(args.config(), Cpu)?;
    let mut strategy = strategy(args, &model, lanes, world);
    let mut run = Run::new(args, &model, lanes, world)?;
    run.announce(world, &*strategy);
    let mut outcome = run.steps(&mut *strategy)?;
    run.finish(&mut outcome)?;
    if let Some(comm) = world {
        // Nobody leaves while rank 0 still writes: a rank that ends early would look lost.
        comm.barrier()?;
    }
    Ok(outcome)
}

fn strategy<'a>(
    args: &Args,
    model: &'a Gpt,
    lanes: Lanes,
    world: Option<&'a Communicator>,
) -> Box<dyn Strategy + 'a> {
    let params = model.layout().len();
    let bucket = (args.bucket_mb * (1 << 18) as f64) as usize;
    match (args.strategy, world) {
        (StrategyName::Ddp, world) if args.ordered => {
            Box::new(Ordered::new(model.kernels(), world, params, bucket, lanes.slots()))
        }
        (StrategyName::Ddp, Some(comm)) => Box::new(Ddp::new(comm, params, bucket)),
        (StrategyName::Ddp, None) => Box::new(Single::new(params)),
    }
}

/// Everything one rank holds while it trains.
struct Run<'a> {
    args: &'a Args,
    model: &'a Gpt,
    lanes: Lanes,
    corpus: Corpus,
    params: Vec<f32>,
    adam: AdamW,
    tape: Tape,
    /// [samples of a lane × context], and the byte after each.
    tokens: Vec<u32>,
    targets: Vec<u32>,
    /// Summed loss of each of this rank's lanes: [slots].
    losses: Vec<f64>,
    report: Report,
    log: RunLog,
}

impl<'a> Run<'a> {
    fn new(
        args: &'a Args,
        model: &'a Gpt,
        lanes: Lanes,
        world: Option<&Communicator>,
    ) -> Result<Run<'a>, Error> {
        let corpus = Corpus::open(args.text.as_deref())?;
        corpus.require(args.context)?;
        let mut params = model.initial(args.seed);
        let mut adam = AdamW::new(Hyper::default(), model.layout());
        if let Some(path) = args.resume.as_ref().filter(|_| lanes.is_first()) {
            checkpoint::load(path, model.layout(), &mut params, &mut adam)?;
        }
        if let Some(comm) = world {
            share_start(comm, args.resume.is_some(), &mut params, &mut adam)?;
        }
        let tokens = vec![0; lanes.samples() * args.context];
        Ok(Run {
            corpus,
            params,
            adam,
            tape: Tape::new(model.layout().config(), lanes.samples(), args.context),
            targets: tokens.clone(),
            tokens,
            losses: vec![0.0; lanes.slots()],
            report: Report::new(lanes.is_first(), args.quiet, args.steps),
            log: RunLog::open(args.log.as_deref().filter(|_| lanes.is_first()))?,
            args,
            model,
            lanes,
        })
    }

    /// Settings, before the first step.
    fn announce(&self, world: Option<&Communicator>, strategy: &dyn Strategy) {
        let args = self.args;
        let count = self.model.layout().len() as u64;
        let Args { layers, width, heads, context, batch, lr, seed, .. } = args;
        let shape = format!("{layers} layers, width {width}, {heads} heads, context {context}");
        let threads = self.model.kernels().threads();
        let ranks = world.map_or(1, Communicator::size);
        let mode = match args.ordered {
            true => format!(", ordered in {} lanes", args.lanes),
            false => String::new(),
        };
        let transports = world.map_or("none".to_string(), |comm| {
            let names = comm.transports().into_iter();
            names.map(|(name, peers)| format!("{name} ({peers})")).collect::<Vec<_>>().join(", ")
        });
        self.report.table(&[
            (
                "text",
                format!("{}, {} bytes", self.corpus.name(), grouped(self.corpus.len() as u64)),
            ),
            ("model", format!("{shape}, {} parameters", grouped(count))),
            ("state", format!("{} a rank, activations apart", megabytes(16 * count))),
            ("batch", format!("{batch} samples of {context} bytes, {} a rank", batch / ranks)),
            ("ranks", format!("{ranks} x {threads} threads, {:?}{mode}", args.strategy)),
            ("peers by transport", transports),
            ("sent per step", format!("{} a rank", megabytes(strategy.formula_bytes()))),
            ("steps", format!("{} to {}", self.adam.steps + 1, args.steps)),
            ("learning rate", format!("{lr}, seed {seed}")),
        ]);
    }

    fn steps(&mut self, strategy: &mut dyn Strategy) -> Result<Outcome, Error> {
        let (start, sent) = (Instant::now(), strategy.sent_bytes());
        let mut losses = Vec::new();
        for step in self.adam.steps..self.args.steps {
            let record = self.step(step, strategy)?;
            self.report.step(&record);
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
            ));
        }
        if self.args.sample > 0 && self.lanes.is_first() {
            let draw = Draw { temperature: 0.8, top_k: 40, seed: self.args.seed };
            let prompt = self.args.prompt.as_bytes();
            let text = sample(self.model, &self.params, prompt, self.args.sample, draw);
            self.report.say(&format!("{}{}", self.args.prompt, String::from_utf8_lossy(&text)));
        }
        Ok(())
    }

    fn held_out(&mut self) -> f64 {
        let (context, samples) = (self.args.context, self.lanes.samples());
        let passes = HELD_OUT_WINDOWS.div_ceil(samples);
        let mut total = 0.0;
        for pass in 0..passes {
            let indices = pass * samples..(pass + 1) * samples;
            let corpus = &self.corpus;
            let windows = indices.map(|index| corpus.held_out(index, passes * samples, context));
            fill(windows, &mut self.tokens, &mut self.targets, context);
            self.model.forward(&self.params, &mut self.tape, &self.tokens);
            total += self.model.loss(&mut self.tape, &self.targets, 0.0);
        }
        total / (passes * samples * context) as f64
    }

    fn save(&self) -> Result<(), Error> {
        match &self.args.checkpoint {
            Some(path) if self.lanes.is_first() => {
                checkpoint::save(path, self.model.layout(), &self.params, &self.adam)
            }
            _ => Ok(()),
        }
    }
}

/// Everyone starts from rank 0's state: its weights and, when resuming, its moments and step.
fn share_start(
    comm: &Communicator,
    resumed: bool,
    params: &mut [f32],
    adam: &mut AdamW,
) -> Result<(), Error> {
    comm.broadcast(params, 0)?;
    if resumed {
        comm.broadcast(&mut adam.mean, 0)?;
        comm.broadcast(&mut adam.square, 0)?;
        let mut steps = [adam.steps as u64];
        comm.broadcast(&mut steps, 0)?;
        adam.steps = steps[0] as usize;
    }
    Ok(())
}
