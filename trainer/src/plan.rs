//! What a run will need, said before it starts: `--plan`, and the refusal of what `--budget` does
//! not allow.
//!
//! Memory and bytes are not estimated. The strategy is built on every rank of a world of threads,
//! from a state that is not there: its memory is asked for and never touched, so that the system
//! gives none, and the strategy is asked what it holds and sends as it is in a run. Only the times
//! are predictions, from a rate of arithmetic and one of the wires.

use crate::args::Args;
use crate::begin;
use crate::error::Error;
use crate::kernels::Cpu;
use crate::layout::Layout;
use crate::parallel::Memory;
use crate::report::{grouped, megabytes};
use crate::state::State;
use brigade_comm::{Communicator, Settings};
use std::io::Write;
use std::time::Duration;

/// More ranks than this are not planned: each is a thread here.
const RANKS_MAX: usize = 64;

/// What a run comes to, of the rank that holds most and of the one that sends most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) memory: Memory,
    pub(crate) sent_bytes: u64,
}

/// Print what a run of `ranks` ranks will need.
///
/// Errors: `Setting` for what cannot work, and for what does not fit in `--budget`.
pub fn plan(args: &Args, ranks: usize, out: &mut (dyn Write + Send)) -> Result<(), Error> {
    args.validate(ranks)?;
    let plan = make(args, ranks)?;
    for (name, value) in rows(args, ranks, &plan) {
        writeln!(out, "{name:16}  {value}").map_err(Error::Output)?;
    }
    fits(args, ranks, &plan)
}

/// Refuse what does not fit in `--budget`, if there is one.
pub(crate) fn check(args: &Args, ranks: usize) -> Result<(), Error> {
    match args.budget {
        Some(_) => fits(args, ranks, &make(args, ranks)?),
        None => Ok(()),
    }
}

fn make(args: &Args, ranks: usize) -> Result<Plan, Error> {
    if args.offload.is_some() {
        let problem = "does not know --offload; `brigade offload plan` does".to_string();
        return Err(Error::setting("plan", problem));
    }
    if ranks > RANKS_MAX {
        return Err(Error::setting("plan", format!("goes up to {RANKS_MAX} ranks, not {ranks}")));
    }
    if ranks == 1 {
        return of_rank(args, None);
    }
    let settings = Settings { transport: "loopback".to_string(), ..Settings::from_env()? };
    let comms = Communicator::local_world(ranks, &settings)?;
    let plans: Result<Vec<Plan>, Error> = std::thread::scope(|scope| {
        let start = |comm: Communicator| scope.spawn(move || of_rank(args, Some(&comm)));
        let threads: Vec<_> = comms.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no plan panics")).collect()
    });
    let plans = plans?;
    let memory = plans.iter().map(|plan| plan.memory).max_by_key(Memory::total);
    let sent_bytes = plans.iter().map(|plan| plan.sent_bytes).max();
    Ok(Plan { memory: memory.unwrap_or_default(), sent_bytes: sent_bytes.unwrap_or_default() })
}

/// What one rank holds and sends.
fn of_rank(args: &Args, world: Option<&Communicator>) -> Result<Plan, Error> {
    let mut groups = begin::groups(args, world)?;
    let model = begin::part(args, world, &mut groups)?;
    let strategy = begin::strategy(args, &model, world, &groups, &State::absent())?;
    let plan = Plan { memory: strategy.memory(), sent_bytes: strategy.formula_bytes() };
    if let Some(world) = world {
        // Nobody leaves while others still split the world.
        world.barrier()?;
    }
    Ok(plan)
}

/// Operations of a step over all ranks: 6 a parameter and token in products with weights, and
/// 12 · layers · width · context a token in attention (Chowdhery et al. 2022).
fn operations(args: &Args) -> f64 {
    let config = args.config();
    let tokens = (args.batch * args.context) as f64;
    // Embeddings are looked up, not multiplied with.
    let tables = (config.vocab + config.context) * config.width;
    let weights = (Layout::new(config).len() - tables) as f64;
    tokens * (6.0 * weights + 12.0 * (config.layers * config.width * config.context) as f64)
}

fn rows(args: &Args, ranks: usize, plan: &Plan) -> Vec<(String, String)> {
    let row = |name: &str, value: String| (name.to_string(), value);
    let parameters = grouped(Layout::new(args.config()).len() as u64);
    let mut rows = vec![
        row("model", format!("{parameters} parameters, {}", args.config())),
        row("ranks", format!("{ranks}, {} samples a step in all", args.batch)),
        row("memory a rank", megabytes(plan.memory.total())),
    ];
    let kinds = plan.memory.kinds().into_iter().filter(|(_, bytes)| *bytes > 0);
    rows.extend(kinds.map(|(kind, bytes)| row(&format!("  {kind}"), megabytes(bytes))));
    let sent = grouped(plan.sent_bytes);
    rows.push(row("sent a step", format!("{sent} bytes by the rank that sends most")));
    let (rate, how) = match args.rate {
        Some(rate) => (rate, "as given"),
        None => (Cpu.rate(args.threads(ranks), args.width), "measured just now on one rank"),
    };
    let link = args.link;
    let work = Duration::from_secs_f64(operations(args) / ranks as f64 / (rate * 1e9));
    let wire = Duration::from_secs_f64(plan.sent_bytes as f64 / (link * 1e9));
    let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
    rows.push(row("arithmetic", format!("{} at {rate:.1} GF/s a rank, {how}", ms(work))));
    rows.push(row("sending", format!("{} at {link} GB/s (--link)", ms(wire))));
    let speed = |time: Duration| {
        let tokens = (args.batch * args.context) as f64;
        grouped((tokens / time.as_secs_f64().max(1e-9)) as u64)
    };
    let (least, most) = (work.max(wire), work + wire);
    let times = format!("{} to {}", ms(least), ms(most));
    let speeds = format!("{} to {} tokens/s", speed(most), speed(least));
    rows.push(row("a step", format!("{times}, if all or nothing of it overlaps; {speeds}")));
    rows
}

/// Refuse what does not fit, with the arithmetic, and name what would.
fn fits(args: &Args, ranks: usize, plan: &Plan) -> Result<(), Error> {
    let Some(budget) = args.budget.map(|bytes| bytes as u64) else { return Ok(()) };
    let need = plan.memory.total();
    if need <= budget {
        return Ok(());
    }
    let kinds = plan.memory.kinds().into_iter().filter(|(_, bytes)| *bytes > 0);
    let sum: Vec<_> = kinds.map(|(kind, bytes)| format!("{kind} {}", megabytes(bytes))).collect();
    let mut problem = format!(
        "{} allowed, but a rank needs {} ({}): {} too much",
        megabytes(budget),
        megabytes(need),
        sum.join(" + "),
        megabytes(need - budget)
    );
    let fitting = alternatives(args).into_iter().find_map(|(flags, args)| {
        args.validate(ranks).ok()?;
        let need = make(&args, ranks).ok()?.memory.total();
        (need <= budget).then(|| format!("; with {flags} it would be {}", megabytes(need)))
    });
    problem += &fitting.unwrap_or_else(|| "; more ranks, or a smaller --batch, need less".into());
    Err(Error::setting("budget", problem))
}

/// The same run in less memory: what is held in parts, in smaller parts of a batch.
fn alternatives(args: &Args) -> Vec<(String, Args)> {
    use crate::parallel::Way;
    let mut found = Vec::new();
    for accumulate in [1, 2, 4, 8, 16] {
        for way in [Way::Zero1, Way::Zero2, Way::Fsdp] {
            let mut less = Args { strategy: vec![way], budget: None, ..args.clone() };
            let mut flags = format!("--strategy {}", way.name());
            if accumulate > 1 {
                if args.ordered {
                    continue;
                }
                let parts = args.accumulate.unwrap_or(1) * accumulate;
                less.accumulate = Some(parts);
                flags += &format!(" --accumulate {parts}");
            }
            found.push((flags, less));
        }
    }
    found
}
