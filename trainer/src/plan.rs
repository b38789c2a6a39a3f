//! What a run will need, said before it starts: `--plan`, and the refusal of what `--budget` does
//! not allow.
//!
//! Memory and bytes are not estimated. The strategy is built on every rank of a world of threads,
//! from a state that is not there: its memory is asked for and never touched, so that the system
//! gives none, and the strategy is asked what it holds and sends as it is in a run. Only the times
//! are predictions, from a rate of arithmetic and one of the wires.

mod remedy;

use crate::args::Args;
use crate::begin;
use crate::error::Error;
use crate::kernels::Cpu;
use crate::layout::{Config, Layout};
use crate::parallel::pipeline::{Action, Kind, Timeline};
use crate::parallel::{Memory, Source, Ways};
use crate::report::{duration, grouped, size, two_sizes};
use crate::state::State;
use brigade_comm::{Communicator, Settings};
use std::io::{self, Write};
use std::thread::ScopedJoinHandle;
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
    let resumed = begin::resumed(args)?.map(|how| (String::from("resumed"), how));
    let plan = make(args, ranks)?;
    for (name, value) in rows(args, ranks, &plan)?.into_iter().chain(resumed) {
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
    let name = if args.plan { "plan" } else { "budget" };
    if args.offload.is_some() || args.offload_activations.is_some() {
        let problem = "does not know what is kept elsewhere; `brigade offload plan` does";
        return Err(Error::setting(name, problem.to_string()));
    }
    if ranks > RANKS_MAX {
        let problem = format!("is counted for up to {RANKS_MAX} ranks, not {ranks}");
        return Err(Error::setting(name, problem));
    }
    args.check_promise(name, ranks)?;
    if ranks == 1 {
        return of_rank(args, None);
    }
    let settings = Settings { transport: "loopback".to_string(), ..Settings::from_env()? };
    let comms = Communicator::local_world(ranks, &settings)?;
    let plans: Result<Vec<Plan>, Error> = std::thread::scope(|scope| {
        let start = |comm: Communicator| {
            let plan = move || of_rank(args, Some(&comm));
            std::thread::Builder::new().spawn_scoped(scope, plan)
        };
        // One that is not there has dropped its communicator: the others do not wait for it.
        let threads: Vec<_> = comms.into_iter().map(start).collect();
        let plan = |thread: io::Result<ScopedJoinHandle<'_, _>>| match thread {
            Ok(thread) => thread.join().expect("no plan panics"),
            Err(problem) => {
                let problem =
                    format!("each rank is a thread here, and no more can be had: {problem}");
                Err(Error::setting(name, problem))
            }
        };
        let plans: Vec<Result<Plan, Error>> = threads.into_iter().map(plan).collect();
        // What the others say follows from what this one does.
        let (refused, others): (Vec<_>, Vec<_>) =
            plans.into_iter().partition(|plan| matches!(plan, Err(Error::Setting { .. })));
        refused.into_iter().chain(others).collect()
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
    let strategy = begin::strategy(args, &model, world, &groups, &State::absent(), Source::Given)?;
    let plan = Plan { memory: strategy.memory(), sent_bytes: strategy.formula_bytes() };
    if let Some(world) = world {
        // Nobody leaves while others still split the world.
        world.barrier()?;
    }
    Ok(plan)
}

/// Operations of a step over all ranks: 6 a parameter and token in products with weights, and
/// 12 · layers · width · context a token in attention (Chowdhery et al. 2022); of experts those
/// that a token goes to. With `--recompute` forward, a third of it, is done twice in all blocks but
/// one.
fn operations(args: &Args) -> f64 {
    let config = args.config();
    let Config { layers, width, context, vocab, experts, top, .. } = config;
    let seen = if experts > 0 { Config { experts: top, ..config } } else { config };
    // Of a gate, which every expert has a row in, all of it.
    let gates = if experts > 0 { layers * width * (experts - top) } else { 0 };
    // Embeddings are looked up, not multiplied with.
    let tables = (vocab + context) * width;
    let head = vocab * width;
    let blocks = Layout::new(seen).len() + gates - tables - head;
    let tokens = (args.batch * context) as f64;
    let of_blocks = 6.0 * blocks as f64 + 12.0 * (layers * width * context) as f64;
    let is_twice = args.recompute || args.offload_activations.is_some();
    let again = if is_twice { (layers - 1) as f64 / (3 * layers) as f64 } else { 0.0 };
    tokens * ((1.0 + again) * of_blocks + 6.0 * head as f64)
}

/// The part of all ranks' time in which a pipeline of equal stages computes nothing.
fn bubble(args: &Args, ranks: usize) -> Result<Option<f64>, Error> {
    let seconds = |action: Action| match action.kind {
        Kind::Backward => 2.0,
        kind if kind.computes() => 1.0,
        _ => 0.0,
    };
    let Some(plan) = args.pipeline(ranks)? else { return Ok(None) };
    let line = Timeline::predict(&plan.schedule, &plan.shape, seconds);
    let line = line.map_err(|fault| Error::setting("schedule", fault.to_string()))?;
    Ok(Some(line.bubble()))
}

/// How many of the ranks have cores of their own on this machine, if they all run here.
fn at_once(args: &Args, ranks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    (cores / args.threads(ranks)).clamp(1, ranks)
}

fn rows(args: &Args, ranks: usize, plan: &Plan) -> Result<Vec<(String, String)>, Error> {
    let row = |name: &str, value: String| (name.to_string(), value);
    let parameters = grouped(Layout::new(args.config()).len() as u64);
    let mut rows = vec![
        row("model", format!("{parameters} parameters, {}", args.config())),
        row("ranks", format!("{ranks}, {} samples a step in all", args.batch)),
        row("memory a rank", size(plan.memory.total())),
    ];
    let kinds = plan.memory.kinds().into_iter().filter(|(_, bytes)| *bytes > 0);
    rows.extend(kinds.map(|(kind, bytes)| row(&format!("  {kind}"), size(bytes))));
    if args.experts > 0 {
        let text = "not counted: what gates hold depends on the text, and comes on top";
        rows.push(row("  gates", text.to_string()));
    }
    let sent = grouped(plan.sent_bytes);
    rows.push(row("sent a step", format!("{sent} bytes by the rank that sends most")));
    // What is measured is of this machine, and so is how many ranks its cores carry at a time.
    let at_once = at_once(args, ranks);
    let (rate, how, at_once) = match args.rate {
        Some(rate) => (rate, "as given".to_string(), ranks),
        None => {
            let rate = Cpu.rate(args.threads(ranks), args.width);
            let how = match at_once < ranks {
                true => format!("measured just now on one rank; cores for {at_once} at a time"),
                false => "measured just now on one rank".to_string(),
            };
            (rate, how, at_once)
        }
    };
    let link = args.link;
    let bubble = bubble(args, ranks)?;
    // Servers multiply nothing.
    let workers =
        Ways::of(&args.strategy)?.pace.map_or(ranks, |pace| pace.share(args, (0, ranks)).1);
    let busy = (workers as f64 * (1.0 - bubble.unwrap_or(0.0))).min(at_once as f64);
    if let Some(bubble) = bubble {
        let text = format!("{:.1} % of the time, if all stages take as long", 100.0 * bubble);
        rows.push(row("bubble", text));
    }
    let work = Duration::from_secs_f64(operations(args) / busy / (rate * 1e9));
    let wire = Duration::from_secs_f64(plan.sent_bytes as f64 / (link * 1e9));
    rows.push(row("arithmetic", format!("{} at {rate:.1} GF/s a rank, {how}", duration(work))));
    rows.push(row("sending", format!("{} at {link} GB/s (--link)", duration(wire))));
    let speed = |time: Duration| {
        let tokens = (args.batch * args.context) as f64;
        grouped((tokens / time.as_secs_f64().max(1e-9)) as u64)
    };
    let (least, most) = (work.max(wire), work + wire);
    let times = format!("{} to {}", duration(least), duration(most));
    let speeds = format!("{} to {} tokens/s", speed(most), speed(least));
    rows.push(row("a step", format!("{times}, if all or nothing of it overlaps; {speeds}")));
    Ok(rows)
}

/// Refuse what does not fit, with the arithmetic, and name what would.
fn fits(args: &Args, ranks: usize, plan: &Plan) -> Result<(), Error> {
    let Some(budget) = args.budget.map(|bytes| bytes as u64) else { return Ok(()) };
    let need = plan.memory.total();
    if need <= budget {
        return Ok(());
    }
    let kinds = plan.memory.kinds().into_iter().filter(|(_, bytes)| *bytes > 0);
    let sum: Vec<_> = kinds.map(|(kind, bytes)| format!("{kind} {}", size(bytes))).collect();
    let ([allowed, needed], too_much) = (two_sizes([budget, need]), need - budget);
    let too_much = match too_much {
        100_000.. => size(too_much),
        _ => format!("{} bytes", grouped(too_much)),
    };
    let mut problem = format!(
        "{allowed} allowed, but a rank needs {needed} ({}): {too_much} too much",
        sum.join(" + ")
    );
    problem += &remedy::told(args, ranks, budget);
    Err(Error::setting("budget", problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn args(more: &str) -> Args {
        let flags = format!(
            "--batch 12 --context 24 --layers 2 --width 20 --heads 2 --quiet --sample 0 \
             --threads 1 --steps 1 {more}"
        );
        Args { lanes: 12, ..Args::of(&flags) }
    }

    #[test]
    fn a_plan_is_what_the_run_holds_and_sends() {
        for (flags, ranks) in [
            ("--accumulate 3", 1),
            ("--strategy ddp", 2),
            ("--strategy zero2 --ordered", 3),
            ("--strategy fsdp --recompute", 2),
            ("--strategy fsdp,tp --mesh dp=2,tp=2", 4),
            ("--strategy 1f1b --ordered", 2),
        ] {
            let args = args(flags);
            let plan = make(&args, ranks).unwrap();
            let settings = Settings { transport: "loopback".to_string(), ..Settings::default() };
            let train =
                |comm| crate::train(&args, comm, &mut std::io::sink(), &mut |_| {}).unwrap().ranks;
            let ends = std::thread::scope(|scope| {
                let comms = Communicator::local_world(ranks, &settings).unwrap();
                let train = &train;
                let train = |comm| scope.spawn(move || train(Some(comm)));
                let threads: Vec<_> = comms.into_iter().map(train).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).next_back().unwrap()
            });
            let most = ends.iter().map(|rank| rank.memory_bytes).max();
            assert_eq!(Some(plan.memory.total()), most, "{flags}");
            let most = ends.iter().map(|rank| rank.formula_bytes).max();
            assert_eq!(Some(plan.sent_bytes), most, "{flags}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        let need = make(&args(""), 2).unwrap().memory.total();
        let with = |budget: u64| Args { budget: Some(budget as usize), ..args("") };
        check(&with(need), 2).unwrap();
        let problem = check(&with(need - 1), 2).unwrap_err().to_string();
        assert!(problem.starts_with("--budget: "), "{problem}");
        assert!(problem.contains("activations"), "{problem}");
        // What changes least comes first.
        assert!(problem.contains("; with --accumulate 2 it would be "), "{problem}");
    }

    #[test]
    fn operations_are_of_what_a_token_meets() {
        let of = |flags: &str| operations(&args(flags));
        // A gate for each block is all that comes on top of one expert.
        let gates = |experts: f64| 6.0 * 2.0 * 20.0 * experts;
        let tokens = (args("").batch * args("").context) as f64;
        let of_one = of("") / tokens + gates(64.0);
        let of_experts = of("--experts 64 --top 1") / tokens;
        assert!((of_experts - of_one).abs() < 1.0, "{of_experts}, {of_one}");
        let twice = of("--recompute") / of("");
        // Of two blocks one is computed once more: a third of half of what is theirs.
        assert!((1.0..1.0 + 1.0 / 6.0).contains(&twice) && twice > 1.05, "{twice}");
    }

    #[test]
    fn a_budget_names_itself_where_nothing_is_planned() {
        let refused = make(&args("--budget 4G"), 100).unwrap_err().to_string();
        assert!(refused.starts_with("--budget: is counted for up to 64 ranks"), "{refused}");
        let refused = make(&args("--plan --budget 4G"), 100).unwrap_err().to_string();
        assert!(refused.starts_with("--plan: "), "{refused}");
    }

    #[test]
    fn ranks_that_share_cores_take_turns() {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let of = |threads: usize, ranks: usize| {
            at_once(&Args { threads: Some(threads), ..args("") }, ranks)
        };
        assert_eq!((of(1, 1), of(1, 8 * cores), of(8 * cores, 4)), (1, cores, 1));
        let told = |ranks| {
            let mut out = Vec::new();
            let args = Args { batch: 96, ..args("--plan --experts 4") };
            plan(&args, ranks, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let many = told((2 * cores).next_power_of_two().min(32));
        let wanted = format!("cores for {cores} at a time");
        assert!(cores >= 32 || many.contains(&wanted), "{many}");
        assert!(many.contains("gates") && !told(1).contains("at a time"), "{many}");
    }
}
