//! The training loop: samples in, one update per step, a line per step out.

use crate::agree;
use crate::args::Args;
use crate::begin;
use crate::data::Corpus;
use crate::ending::Ending;
use crate::error::Error;
use crate::keep::{self, Former};
use crate::kernels::{Cpu, packed_bytes};
use crate::layout::Config;
use crate::model::Gpt;
use crate::offload::DiskUse;
use crate::optim::learning_rate;
use crate::outcome::Outcome;
use crate::parallel::{Batch, Groups, Ways};
use crate::report::{grouped, sent_and_held};
use crate::run::Run;
use crate::runlog::{RankEnd, StepRecord};
use crate::sys;
use crate::trace::{self, Lane};
use brigade_comm::{Communicator, Op};
use brigade_offload::storage::write_whole;
use std::io::Write;
use std::time::{Duration, Instant};

/// Train as `args` say, printing to `out`. Only rank 0 prints and writes files. What ends this rank
/// is given to `say`, once and before what the rank has goes, which may take long.
///
/// Errors: `Setting` for what cannot work, before anything is allocated; `File` and `Checkpoint`
/// for files; `Output` if `out` does not take what is printed; `Diverged` or `DivergedBefore` if
/// the loss is no number any more, `Overflown` if gradients are none of f16 any more; `OnTheWay`
/// around what would be a refusal before the first step. Whatever ends this rank ends the others
/// too, with its reason; of those that find the same all but the first have `Told`.
pub fn train(
    args: &Args,
    world: Option<Communicator>,
    out: &mut (dyn Write + Send),
    say: &mut (dyn FnMut(&Error) + Send),
) -> Result<Outcome, Error> {
    // A world of one has nobody to talk to.
    let world = world.as_ref().filter(|comm| comm.size() > 1);
    let mut ending = Ending::new(world, say);
    run_in_pool(args, world, out, &mut ending).map_err(|error| ending.tell(error))
}

fn run_in_pool(
    args: &Args,
    world: Option<&Communicator>,
    out: &mut (dyn Write + Send),
    ending: &mut Ending<'_>,
) -> Result<Outcome, Error> {
    let ranks = world.map_or(1, Communicator::size);
    args.validate(ranks)?;
    let mut threads = Vec::new();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads(ranks));
    let pool = pool.spawn_handler(|thread| {
        threads.push(std::thread::Builder::new().spawn(|| thread.run())?);
        Ok(())
    });
    let pool = pool.build().map_err(|problem| Error::setting("threads", problem.to_string()))?;
    let outcome = pool.install(|| run(args, world, out, ending));
    drop(pool);
    // Until its threads are gone they hold memory, which a run after this one would see go.
    threads.into_iter().for_each(|thread| drop(thread.join()));
    outcome
}

fn run(
    args: &Args,
    world: Option<&Communicator>,
    out: &mut (dyn Write + Send),
    ending: &mut Ending<'_>,
) -> Result<Outcome, Error> {
    let corpus = begin::text(args)?;
    agree::require(args, &corpus, world)?;
    let former = keep::kept(args, world)?;
    let mut groups = begin::groups(args, world)?;
    let outcome = run_among(args, corpus, world, former, &mut groups, out, ending);
    outcome.map_err(|error| ending.tell_early(error))
}

/// The run of a rank that has its `groups`.
fn run_among(
    args: &Args,
    corpus: Corpus,
    world: Option<&Communicator>,
    former: Option<Former>,
    groups: &mut Groups,
    out: &mut (dyn Write + Send),
    ending: &mut Ending<'_>,
) -> Result<Outcome, Error> {
    let model = &Gpt::new(args.config(), Cpu)?;
    // What every thread's products pack into is the same whatever the strategy: it is taken now.
    Cpu.prepare();
    let beside_bytes = together(world, || {
        sys::take_peak();
        sys::held()
    })?;
    let origin = former.as_ref().map(|former| &former.origin);
    let (state, source, resumed) = begin::state(args, model, world, origin)?;
    let held_bytes = sys::held();
    let part = begin::part(args, world, groups)?;
    let strategy = begin::strategy(args, &part, world, groups, &state, source)?;
    let strategy_bytes = sys::held().saturating_sub(held_bytes);
    let start_bytes = together(world, sys::take_peak)?.saturating_sub(beside_bytes);
    let scale = state.scale;
    drop(state);
    let opened = begin::open(args, world).map_err(|error| ending.tell_early(error))?;
    let files = (corpus, opened);
    let mut run = Run::new(args, model, world, strategy, resumed, out, files);
    (run.scale, run.peak_bytes, run.start_bytes) = (scale, strategy_bytes, start_bytes);
    let outcome = run.all(former);
    outcome.map_err(|error| {
        run.report.clear();
        ending.tell_early(error)
    })
}

/// What `read` counts once every rank has come so far and before any goes on: ranks may be threads,
/// which share what is counted.
fn together(world: Option<&Communicator>, read: impl FnOnce() -> u64) -> Result<u64, Error> {
    world.map_or(Ok(()), Communicator::barrier)?;
    let count = read();
    world.map_or(Ok(()), Communicator::barrier)?;
    Ok(count)
}

impl Run<'_> {
    /// Everything once there is a strategy.
    fn all(&mut self, former: Option<Former>) -> Result<Outcome, Error> {
        let Run { args, world, .. } = *self;
        self.keep()?;
        if let Some(comm) = world.filter(|_| args.keep) {
            comm.barrier()?;
        }
        former.map_or(Ok(()), Former::outlive)?;
        self.announce()?;
        self.go().map_err(Error::on_the_way)
    }

    /// Everything from the first step on.
    fn go(&mut self) -> Result<Outcome, Error> {
        let Run { args, world, .. } = *self;
        if args.trace.is_some() {
            trace::begin(world)?;
        }
        let mut outcome = self.steps()?;
        if let Some(path) = &args.trace {
            trace::end(world, path)?;
        }
        let params = self.finish(&mut outcome)?;
        self.strategy.close()?;
        // Nobody leaves while rank 0 still writes, as a rank that ends early would look lost; and
        // ranks hear of each other's ends through rank 0, so none leaves before all have closed.
        world.map_or(Ok(()), Communicator::barrier)?;
        // A long text may take longer than others would wait for.
        self.sample(&params)?;
        Ok(outcome)
    }

    fn steps(&mut self) -> Result<Outcome, Error> {
        let (start, sent) = (Instant::now(), self.strategy.sent_bytes());
        let (mut losses, mut saved_bytes, mut formula_bytes) = (Vec::new(), 0, 0);
        let packed_bytes = self.packed_bytes()?;
        // Everything beside the strategy: whatever comes on top of it from now on is a step's.
        let (beside_bytes, mut most_bytes) = (sys::held().saturating_sub(self.peak_bytes), 0);
        let (mut waited_ms, mut was_over) = (Vec::new(), false);
        for step in self.strategy.steps()..self.args.last_step() {
            sys::take_peak();
            let record = self.step(step)?;
            most_bytes = sys::take_peak().saturating_sub(beside_bytes).max(most_bytes);
            self.report.step(&record)?;
            self.records.step(&record)?;
            losses.push(record.loss);
            waited_ms.push(record.exposed_ms);
            formula_bytes += record.formula_bytes;
            if !record.loss.is_finite() {
                return Err(self.diverged(&record, losses.len() == 1));
            }
            // One batch may be odd; where two of them are, hardly another one will be different.
            let is_over = record.is_skipped && record.loss_scale <= 1.0;
            if std::mem::replace(&mut was_over, is_over) && is_over {
                return Err(Error::Overflown { step: record.step });
            }
            if self.args.checkpoint_every.is_some_and(|every| (step + 1) % every == 0) {
                let before = self.strategy.sent_bytes();
                self.save()?;
                saved_bytes += self.strategy.sent_bytes() - before;
                self.keep()?;
            }
        }
        let sent_bytes = self.strategy.sent_bytes() - sent - saved_bytes;
        let seconds = start.elapsed().as_secs_f64();
        // What is mapped is on no heap.
        let memory = self.strategy.memory();
        self.peak_bytes = if most_bytes > 0 { most_bytes + memory.arena } else { 0 };
        let mine = RankEnd {
            sent_bytes,
            formula_bytes,
            peak_bytes: self.peak_bytes,
            memory_bytes: memory.total() + packed_bytes,
            start_bytes: self.start_bytes,
        };
        let ranks = self.all_ranks(mine)?;
        let mut exposed_ms = waited_ms;
        if let Some(comm) = self.world {
            comm.all_reduce(&mut exposed_ms, Op::Min)?;
        }
        let (held_out, disk, disk_formula) = (None, self.disk, self.disk_formula);
        Ok(Outcome {
            losses,
            held_out,
            sent_bytes,
            formula_bytes,
            seconds,
            disk,
            disk_formula,
            ranks,
            exposed_ms,
        })
    }

    /// The end of a run whose loss is none; that of the `first` step is one of what it began with.
    fn diverged(&self, record: &StepRecord, first: bool) -> Error {
        let StepRecord { step, loss, .. } = *record;
        match first && self.args.resume.is_some() {
            true => Error::DivergedBefore { step, loss },
            false => Error::Diverged { step, loss },
        }
    }

    /// What this rank's threads pack matrices into, where the host computes.
    fn packed_bytes(&self) -> Result<u64, Error> {
        if sys::held() == 0 || self.strategy.device().is_some() {
            return Ok(0);
        }
        let (rank, ranks) = self.world.map_or((0, 1), |world| (world.rank(), world.size()));
        // Servers multiply no matrices.
        let pace = Ways::of(&self.args.strategy)?.pace;
        if pace.is_some_and(|pace| !pace.computes(self.args, (rank, ranks))) {
            return Ok(0);
        }
        let Config { width, vocab, .. } = *self.model.layout().config();
        let rows = self.args.share_of(rank, ranks)?.samples() * self.args.context;
        let layers = [[width, 4 * width], [4 * width, width], [width, vocab]];
        let most = layers.map(|layer| packed_bytes(rows, layer)).into_iter().max();
        Ok(self.args.threads(ranks) as u64 * most.unwrap_or(0))
    }

    /// What every rank has to say of itself.
    fn all_ranks(&self, mine: RankEnd) -> Result<Vec<RankEnd>, Error> {
        let Some(comm) = self.world else { return Ok(vec![mine]) };
        let RankEnd { sent_bytes, formula_bytes, peak_bytes, memory_bytes, start_bytes } = mine;
        let mine = [sent_bytes, formula_bytes, peak_bytes, memory_bytes, start_bytes];
        let mut all = vec![0; mine.len() * comm.size()];
        comm.all_gather(&mine, &mut all)?;
        let (ranks, _) = all.as_chunks::<5>();
        let of_rank = |numbers: &[u64; 5]| {
            let [sent_bytes, formula_bytes, peak_bytes, memory_bytes, start_bytes] = *numbers;
            RankEnd { sent_bytes, formula_bytes, peak_bytes, memory_bytes, start_bytes }
        };
        Ok(ranks.iter().map(of_rank).collect())
    }

    /// One update from one global batch. `step` counts from 0.
    fn step(&mut self, step: usize) -> Result<StepRecord, Error> {
        let Run { args, corpus, strategy, disk, disk_formula: predicted, .. } = self;
        let _span = trace::span(Lane::Compute, "step", step + 1);
        let (begun, sent) = (Instant::now(), strategy.sent_bytes());
        let Args { seed, batch: samples, context, .. } = **args;
        let batch = Batch { corpus, seed, step, samples, context };
        let lr = learning_rate(args.lr, step, args.steps);
        let spent = strategy.step(&batch, lr)?;
        let whole = begun.elapsed();
        let sent_bytes = strategy.sent_bytes() - sent;
        // Formulas are of steps that update; of a skipped one only what it did is told.
        let formula_bytes = if spent.is_skipped { sent_bytes } else { strategy.formula_bytes() };
        let disk_formula =
            if spent.is_skipped { spent.disk.bytes() } else { strategy.disk_formula() };
        *predicted = predicted.plus(disk_formula);
        *disk = disk.plus(spent.disk);
        let bytes = |disk: DiskUse| [disk.read_bytes, disk.written_bytes];
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(StepRecord {
            step: step + 1,
            loss: spent.loss,
            lr,
            grad_norm: spent.norm,
            forward_ms: ms(spent.forward),
            backward_ms: ms(spent.backward),
            exposed_ms: ms(spent.exposed),
            optimizer_ms: ms(spent.optimizer),
            disk_ms: ms(spent.disk.waited),
            step_ms: ms(whole),
            tokens_per_second: (samples * context) as f64 / whole.as_secs_f64(),
            sent_bytes,
            formula_bytes,
            disk_bytes: bytes(spent.disk),
            disk_formula_bytes: bytes(disk_formula),
            loss_scale: spent.loss_scale,
            is_skipped: spent.is_skipped,
        })
    }

    /// The last checkpoint, and the held-out loss of these parameters.
    fn finish(&mut self, outcome: &mut Outcome) -> Result<Vec<f32>, Error> {
        self.keep()?;
        self.save()?;
        let params = self.params()?;
        if let Some(path) = &self.args.draw
            && let Some(picture) = self.strategy.draw()?
            && self.is_first
        {
            write_whole(path, picture).map_err(Error::file("write", path))?;
        }
        outcome.held_out = self.held_out(&params)?;
        let ways: Vec<_> = self.args.strategy.iter().map(|way| way.name()).collect();
        let (ways, config) = (ways.join(","), self.model.layout().config());
        let title = format!("--strategy {ways} --ranks {} {config}", outcome.ranks.len());
        self.records.end(outcome, &title, self.strategy.memory())?;
        let Outcome { losses, held_out, seconds, ranks, exposed_ms, .. } = outcome;
        if let (Some(first), Some(last)) = (losses.first(), losses.last()) {
            let exposed = match ranks.len() {
                1 => String::new(),
                _ => format!(
                    ", {:.1} % of it waiting for others, on the rank that waited least",
                    exposed_ms.iter().sum::<f64>() / *seconds / 10.0
                ),
            };
            self.report.say(&format!("loss {first:.3} -> {last:.3} in {seconds:.1} s{exposed}"))?;
        }
        if let Some(loss) = held_out {
            let bits = *loss / std::f64::consts::LN_2;
            let of = match self.windows() {
                all if all < self.args.held_out => {
                    format!(", in all {} windows", grouped(all as u64))
                }
                _ => String::new(),
            };
            let text = format!("loss on unseen text {loss:.3}, {bits:.2} bits per byte{of}");
            self.report.say(&text)?;
        }
        self.report.say(&sent_and_held(ranks, self.strategy.device().is_some()))?;
        Ok(params)
    }
}
