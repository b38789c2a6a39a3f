//! Parameter servers (Li et al. 2014): some ranks hold the state in parts and update it, the others
//! compute gradients, push them to the servers and pull parameters from them.
//!
//! Workers come first, in the order of their lanes; servers are the last ranks. Every unit is cut
//! evenly among the servers, so that none of them is hotter than the others.
//!
//! | rank | memory | sent per step, of n elements, with k servers and N workers |
//! |---|---|---|
//! | worker | parameters, a gradient, activations | n: what it pushes |
//! | server | parameters and moments of n/k, a gradient | N n/k: what N workers pull |
//!
//! A server's wires carry 2 N n/k in all, and that is why rings have won: they carry 2n wherever
//! they go, however many ranks there are. `ps` waits for all workers in each step, and its sums are
//! those of DDP; with `--ordered`, which has every lane pushed by itself, bit for bit. `ps-async`
//! waits for nobody who is not too far behind: `eventual` tells.

mod eventual;
mod together;

pub use eventual::Eventual;
pub use together::Together;

use super::cut::Cut;
use super::{Batch, Lanes, Memory, Strategy, Travel};
use crate::args::Args;
use crate::data::fill;
use crate::error::Error;
use crate::layout::Layout;
use crate::model::Gpt;
use crate::optim::{Moments, Optimizer, Rule};
use crate::precision::Precision;
use crate::state::State;
use crate::tape::{Keep, Scratch, Tape};
use brigade_comm::Communicator;
use std::ops::Range;
use std::sync::Arc;

/// How far workers may be apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Not at all.
    Together,
    /// Each for itself, within a bound.
    Eventual,
}

impl Pace {
    /// How many of so many ranks are servers.
    pub(crate) fn servers(self, args: &Args, ranks: usize) -> usize {
        args.travel.servers.unwrap_or(ranks / 2)
    }

    /// Which of how many shares of the samples a rank has, of so many: servers have none, and are
    /// given the last.
    pub(crate) fn share(self, args: &Args, (rank, ranks): (usize, usize)) -> (usize, usize) {
        let servers = if ranks > 1 { self.servers(args, ranks) } else { 0 };
        let workers = ranks.saturating_sub(servers).max(1);
        (rank.min(workers - 1), workers)
    }

    /// Refuse what does not go with servers at this pace, or with none.
    ///
    /// Errors: `Setting`.
    pub(crate) fn suit(pace: Option<Pace>, args: &Args, ranks: usize) -> Result<(), Error> {
        let refuse = |name, problem: &str| Err(Error::setting(name, problem.to_string()));
        let Some(pace) = pace else {
            return match (args.travel.servers, args.travel.staleness) {
                (Some(_), _) => refuse("servers", "go with --strategy ps or ps-async"),
                (_, Some(_)) => refuse("staleness", "goes with --strategy ps-async"),
                (None, None) => Ok(()),
            };
        };
        let servers = pace.servers(args, ranks);
        if ranks > 1 && !(1..ranks).contains(&servers) {
            return refuse("servers", "must leave a worker: fewer than --ranks, and at least 1");
        }
        let travel = Travel { servers: None, staleness: None, ..args.travel };
        match pace {
            _ if travel != Travel::default() => refuse("strategy", "servers get what is as it is"),
            _ if args.mesh.is_some() => refuse("mesh", "is not for servers: say --servers"),
            _ if args.optimizer.has_norms() => refuse("optimizer", "has norms of whole tensors"),
            _ if args.precision != Precision::F32 => refuse("precision", "of servers is f32"),
            _ if args.tile.is_some() => refuse("tile", "does not go with servers"),
            _ if args.offload.is_some() => refuse("offload", "does not go with servers"),
            _ if args.offload_activations.is_some() => {
                refuse("offload-activations", "does not go with servers")
            }
            Pace::Together if args.travel.staleness.is_some() => {
                refuse("staleness", "goes with --strategy ps-async")
            }
            Pace::Eventual if args.ordered => refuse("ordered", "is ps's: here time decides"),
            _ => Ok(()),
        }
    }

    /// This rank's part of a world with servers, which come last.
    ///
    /// Errors: those of calls that the group cannot do.
    #[expect(clippy::too_many_arguments, reason = "what a run may choose")]
    pub(crate) fn strategy<'a>(
        self,
        args: &Args,
        model: &'a Gpt,
        group: &'a Communicator,
        lanes: Lanes,
        optimizer: Optimizer,
        keep: Keep,
        state: &State,
    ) -> Result<Box<dyn Strategy + 'a>, Error> {
        let servers = self.servers(args, group.size());
        if self == Pace::Together {
            let is_ordered = args.ordered;
            return Ok(Box::new(Together::new(
                model, group, servers, lanes, is_ordered, optimizer, keep, state,
            )?));
        }
        let bound = args.travel.staleness.unwrap_or(1);
        let steps = args.last_step().saturating_sub(state.steps);
        let numbers = (servers, bound, steps);
        let rank = Eventual::new(model, group, numbers, lanes, optimizer, keep, state)?;
        Ok(Box::new(rank))
    }
}

/// Who is a server among some ranks, and what of each unit is whose.
#[derive(Clone)]
struct Places {
    workers: usize,
    /// Of each unit, where it lies and where each server's part of it does, in the layout.
    units: Vec<(Range<usize>, Vec<Range<usize>>)>,
}

impl Places {
    fn new(layout: &Layout, ranks: usize, servers: usize) -> Places {
        let unit = |unit: usize| {
            let range = layout.unit(unit);
            let part = |server: usize| Cut::new(range.len(), server, servers).part;
            let shift = |part: Range<usize>| range.start + part.start..range.start + part.end;
            (range.clone(), (0..servers).map(|server| shift(part(server))).collect())
        };
        Places { workers: ranks - servers, units: (0..layout.units()).map(unit).collect() }
    }

    /// Which server a rank is.
    fn server(&self, rank: usize) -> Option<usize> {
        rank.checked_sub(self.workers)
    }

    /// Elements that one server has.
    fn elements(&self, server: usize) -> usize {
        self.units.iter().map(|(_, parts)| parts[server].len()).sum()
    }
}

/// A rank that computes.
struct Worker<'a> {
    model: &'a Gpt,
    lanes: Lanes,
    /// [parameters] each.
    params: Vec<f32>,
    grads: Vec<f32>,
    /// A lane's gradient of a unit, where a rank adds several lanes up.
    lane: Vec<f32>,
    tape: Tape,
    scratch: Scratch,
    tokens: Vec<u32>,
    targets: Vec<u32>,
}

impl<'a> Worker<'a> {
    fn new(model: &'a Gpt, lanes: Lanes, keep: Keep, adds_up: bool, state: &State) -> Worker<'a> {
        let (layout, samples) = (model.layout(), lanes.samples());
        let (units, time) = (0..layout.units(), layout.config().context);
        let longest = units.clone().map(|unit| layout.unit(unit).len()).max().unwrap_or(0);
        Worker {
            params: if state.is_absent() { vec![0.0; layout.len()] } else { state.params.clone() },
            grads: vec![0.0; layout.len()],
            lane: vec![0.0; if adds_up && lanes.slots() > 1 { longest } else { 0 }],
            tape: model.tape_that_keeps(keep, units, samples, time),
            scratch: model.scratch(samples, time),
            tokens: vec![0; samples * time],
            targets: vec![0; samples * time],
            model,
            lanes,
        }
    }

    /// Forward of this rank's lane of `slot`: its summed loss.
    fn forward(&mut self, slot: usize, batch: &Batch<'_>) -> Result<f64, Error> {
        let Worker { model, params, tape, tokens, targets, .. } = self;
        let windows = self.lanes.range(slot);
        let windows =
            windows.map(|index| batch.corpus.sample(batch.seed, batch.step, index, batch.context));
        fill(windows, tokens, targets, batch.context);
        for unit in 0..model.layout().units() {
            model.forward(unit, &params[model.layout().unit(unit)], tape, tokens)?;
        }
        model.loss(tape, targets, batch.scale())
    }

    /// Backward of one unit of the same. The gradient is added to those of the lanes before if
    /// there are any and `adds_up`.
    fn backward(&mut self, unit: usize, adds_up: bool) -> Result<(), Error> {
        let Worker { model, params, grads, lane, tape, scratch, tokens, .. } = self;
        let range = model.layout().unit(unit);
        let (params, grads) = (&params[range.clone()], &mut grads[range.clone()]);
        if tape.has_lost(unit) {
            model.forward(unit, params, tape, tokens)?;
        }
        if !adds_up {
            return model.backward(unit, params, grads, tape, scratch, tokens);
        }
        let lane = &mut lane[..range.len()];
        model.backward(unit, params, lane, tape, scratch, tokens)?;
        model.kernels().add(grads, lane);
        Ok(())
    }

    fn memory(&self) -> Memory {
        let bytes = |numbers: usize| 4 * numbers as u64;
        Memory {
            params: bytes(self.params.len()),
            grads: bytes(self.grads.len()),
            calls: bytes(self.lane.len()),
            activations: self.tape.bytes() + self.scratch.bytes(),
            ..Memory::default()
        }
    }
}

/// A rank that updates: its part of each unit.
struct Server {
    units: Vec<Part>,
}

struct Part {
    params: Vec<f32>,
    moments: Moments,
    /// The sum of gradients.
    grads: Vec<f32>,
}

impl Server {
    fn new(layout: &Layout, places: &Places, server: usize, rule: Rule, state: &State) -> Server {
        let part = |(_, parts): &(Range<usize>, Vec<Range<usize>>)| {
            let range = parts[server].clone();
            let held = if state.is_absent() { 0..0 } else { range.clone() };
            let (mean, square) = (&state.mean[held.clone()], &state.square[held.clone()]);
            let mut moments = Moments::new(layout, range.clone(), mean, square);
            moments.keep(rule.moments());
            let params = match state.is_absent() {
                true => vec![0.0; range.len()],
                false => state.params[held].to_vec(),
            };
            Part { grads: vec![0.0; range.len()], params, moments }
        };
        Server { units: places.units.iter().map(part).collect() }
    }

    /// Move everything against its gradient.
    fn update(&mut self, optimizer: &mut Optimizer, lr: f32) {
        for Part { params, moments, grads, .. } in &mut self.units {
            optimizer.update(params, moments, grads, lr);
        }
    }

    fn memory(&self) -> Memory {
        let bytes = |of: fn(&Part) -> usize| 4 * self.units.iter().map(of).sum::<usize>() as u64;
        Memory {
            params: bytes(|part| part.params.len()),
            grads: bytes(|part| part.grads.len()),
            moments: bytes(|part| part.moments.mean.len() + part.moments.square.len()),
            ..Memory::default()
        }
    }
}

/// The state of all servers, on every rank. Collective.
fn gather(
    group: &Communicator,
    places: &Places,
    server: Option<&Server>,
    count: usize,
    state: &mut State,
) -> Result<(), Error> {
    for (at, (range, parts)) in places.units.iter().enumerate() {
        let counts: Arc<[usize]> =
            std::iter::repeat_n(0, places.workers).chain(parts.iter().map(Range::len)).collect();
        let part = server.map(|server| &server.units[at]);
        let mine = |of: fn(&Part) -> &[f32]| part.map_or(&[][..], of);
        let all = &mut state.params[range.clone()];
        group.all_gather_v(mine(|part| &part.params), all, &counts)?;
        let all = &mut state.mean[range.clone()];
        group.all_gather_v(mine(|part| &part.moments.mean), all, &counts)?;
        if count > 1 {
            let all = &mut state.square[range.clone()];
            group.all_gather_v(mine(|part| &part.moments.square), all, &counts)?;
        }
    }
    Ok(())
}
