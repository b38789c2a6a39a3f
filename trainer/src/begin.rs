//! From settings to a run that may take its first step: text, model, state, strategy, a table.

use crate::args::{Args, StrategyName};
use crate::checkpoint::{self, Course};
use crate::data::Corpus;
use crate::error::Error;
use crate::model::Gpt;
use crate::optim::{AdamW, Hyper};
use crate::parallel::{Ddp, Lanes, Ordered, Single, Strategy};
use crate::report::{Report, grouped, megabytes};
use crate::runlog::RunLog;
use crate::tape::Tape;
use crate::train::Run;
use brigade_comm::Communicator;
use serde::Serialize;
use std::io::Write;

/// Refuse what cannot work before any rank is started: settings and text.
///
/// Errors: `Setting` for what cannot work, `File` for a text that cannot be read.
pub fn check(args: &Args, ranks: usize) -> Result<(), Error> {
    args.validate(ranks)?;
    Corpus::open(args.text.as_deref())?.require(args.context)
}

/// How the gradients of all lanes become one in this run.
pub(crate) fn strategy<'a>(
    args: &Args,
    model: &'a Gpt,
    lanes: Lanes,
    world: Option<&'a Communicator>,
) -> Result<Box<dyn Strategy + 'a>, Error> {
    let params = model.layout().len();
    let bucket = (args.bucket_mb * (1 << 18) as f64) as usize;
    Ok(match (args.strategy, world) {
        (StrategyName::Ddp, world) if args.ordered => {
            Box::new(Ordered::new(model.kernels(), world, params, bucket, lanes.slots())?)
        }
        (StrategyName::Ddp, Some(comm)) => Box::new(Ddp::new(comm, params, bucket)?),
        (StrategyName::Ddp, None) => Box::new(Single::new(params)),
    })
}

impl<'a> Run<'a> {
    /// Everything but the strategy. Collective: every rank of the world calls it.
    pub(crate) fn new(
        args: &'a Args,
        model: &'a Gpt,
        lanes: Lanes,
        world: Option<&'a Communicator>,
        out: &'a mut (dyn Write + Send),
    ) -> Result<Run<'a>, Error> {
        let corpus = Corpus::open(args.text.as_deref())?;
        corpus.require(args.context)?;
        let is_first = lanes.is_first();
        if let Some(path) = args.checkpoint.as_ref().filter(|_| is_first) {
            checkpoint::probe(path)?;
        }
        let log = RunLog::open(args.log.as_deref().filter(|_| is_first))?;
        let mut params = model.initial(args.seed);
        let mut adam = AdamW::new(Hyper::default(), model.layout());
        let resumed = match args.resume.as_ref().filter(|_| is_first) {
            Some(path) => Some(checkpoint::load(path, model.layout(), &mut params, &mut adam)?),
            None => None,
        };
        if let Some(comm) = world {
            share_start(comm, args.resume.is_some(), &mut params, &mut adam)?;
        }
        if args.last_step() <= adam.steps {
            let problem = format!("the checkpoint has {} behind it: ask for more", adam.steps);
            return Err(Error::setting("steps", problem));
        }
        let tokens = vec![0; lanes.samples() * args.context];
        Ok(Run {
            report: Report::new(out, is_first, args.quiet, adam.steps + 1, args.last_step()),
            corpus,
            params,
            adam,
            tape: Tape::new(model.layout().config(), lanes.samples(), args.context),
            targets: tokens.clone(),
            tokens,
            losses: vec![0.0; lanes.slots()],
            log,
            args,
            model,
            lanes,
            world,
            resumed,
        })
    }

    /// Settings, before the first step.
    pub(crate) fn announce(&mut self, strategy: &dyn Strategy) -> Result<(), Error> {
        #[derive(Serialize)]
        struct Start<'a> {
            world: usize,
            parameters: usize,
            settings: &'a Args,
        }
        let rows = self.rows(strategy);
        self.report.table(&rows)?;
        let world = self.world.map_or(1, Communicator::size);
        let parameters = self.params.len();
        self.log.write("start", &Start { world, parameters, settings: self.args })
    }

    /// The table of settings.
    fn rows(&self, strategy: &dyn Strategy) -> Vec<(&'static str, String)> {
        let Args { batch, context, lr, seed, steps, .. } = *self.args;
        let ranks = self.world.map_or(1, Communicator::size);
        let parameters = grouped(self.params.len() as u64);
        // Parameters and two moments.
        let state_bytes = 12 * self.params.len() as u64 + strategy.held_bytes();
        let threads = match self.model.kernels().threads() {
            1 => "1 thread".to_string(),
            threads => format!("{threads} threads"),
        };
        let (first, last) = (self.adam.steps + 1, self.args.last_step());
        let text_bytes = grouped(self.corpus.len() as u64);
        let mut rows = vec![
            ("text", format!("{}, {text_bytes} bytes", self.corpus.name())),
            ("model", format!("{parameters} parameters, {}", self.model.layout().config())),
            ("memory", format!("{} a rank, and activations", megabytes(state_bytes))),
            ("batch", format!("{batch} samples of {context} bytes, {} a rank", batch / ranks)),
            ("ranks", format!("{ranks}, each with {threads}")),
            ("learning rate", format!("up to {lr}, seed {seed}")),
            ("steps", format!("{first} to {last} of {steps}")),
        ];
        if let Some(comm) = self.world {
            let wires: Vec<String> = comm.transports().into_iter().map(|(name, _)| name).collect();
            let mode = match self.args.ordered {
                true => format!(" --ordered --lanes {}", self.args.lanes),
                false => String::new(),
            };
            let strategy_name = self.args.strategy;
            rows.push(("strategy", format!("{strategy_name}{mode} over {}", wires.join(" and "))));
            let sent = grouped(strategy.formula_bytes());
            rows.push(("formula", format!("rank 0 sends {sent} bytes a step")));
        }
        if let Some(written) = &self.resumed {
            rows.push(("resumed", departure(self.adam.steps, written, &self.args.course())));
        }
        rows
    }
}

/// Which step a checkpoint brought, and in what this run departs from the one that wrote it.
fn departure(step: usize, written: &Course, now: &Course) -> String {
    let mut note = format!("after step {step}");
    for (flag, now) in now {
        if let Some(then) = written.get(flag).filter(|then| *then != now) {
            let unlike = if note.contains(';') { ", " } else { "; unlike before, " };
            note += &format!("{unlike}{flag} {now} (was {then})");
        }
    }
    note
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resume_names_the_settings_that_changed_and_no_others() {
        let course = |pairs: [(&str, &str); 3]| {
            Course::from(pairs.map(|(flag, value)| (flag.to_string(), value.to_string())))
        };
        let written = course([("--batch", "8"), ("--lr", "0.001"), ("--seed", "1")]);
        assert_eq!(departure(5, &written, &written), "after step 5");
        let now = course([("--batch", "8"), ("--lr", "0.002"), ("--seed", "7")]);
        let note = departure(5, &written, &now);
        assert_eq!(note, "after step 5; unlike before, --lr 0.002 (was 0.001), --seed 7 (was 1)");
    }
}
