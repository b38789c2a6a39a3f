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
mod worker;

pub use eventual::Eventual;
pub use together::Together;

use super::cut::Cut;
use super::{Lanes, Memory, Pace, Strategy, Thrift, Travel, Ways};
use crate::args::Args;
use crate::device::DeviceUse;
use crate::error::Error;
use crate::layout::Layout;
use crate::model::Gpt;
use crate::norms::ExactSum;
use crate::optim::{Moments, Optimizer, Rule};
use crate::precision::Precision;
use crate::state::State;
use brigade_comm::Communicator;
use std::ops::Range;
use std::sync::Arc;
use worker::Worker;

impl Pace {
    /// How many of so many ranks are servers: none of one, which is alone.
    pub(crate) fn servers(self, args: &Args, ranks: usize) -> usize {
        if ranks > 1 { args.travel.servers.unwrap_or(ranks / 2) } else { 0 }
    }

    /// Whether a rank of so many is a worker: servers come last, and need no device.
    pub(crate) fn computes(self, args: &Args, (rank, ranks): (usize, usize)) -> bool {
        rank + self.servers(args, ranks) < ranks
    }

    /// Which of how many shares of the samples a rank has, of so many: servers have none, and are
    /// given the last.
    pub(crate) fn share(self, args: &Args, (rank, ranks): (usize, usize)) -> (usize, usize) {
        let servers = self.servers(args, ranks);
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
        let is_narrow = args.precision != Precision::F32;
        let is_divided = Ways::of(&args.strategy)?.inside.is_some();
        match pace {
            _ if is_divided => {
                refuse("strategy", "servers hold whole tensors: no way divides them")
            }
            _ if travel != Travel::default() => refuse("strategy", "servers get what is as it is"),
            _ if args.mesh.is_some() => refuse("mesh", "is not for servers: say --servers"),
            _ if args.optimizer.has_norms() => refuse("optimizer", "has norms of whole tensors"),
            _ if args.precision == Precision::F16 || (is_narrow && !args.device.is_cuda()) => {
                refuse("precision", "of servers is f32, or bf16 where workers have devices")
            }
            _ if args.tile.is_some() => refuse("tile", "does not go with servers"),
            _ if args.offload.is_some() => refuse("offload", "does not go with servers"),
            _ if args.offload_activations.is_some() => {
                refuse("offload-activations", "does not go with servers")
            }
            Pace::Together if args.travel.staleness.is_some() => {
                refuse("staleness", "goes with --strategy ps-async")
            }
            Pace::Eventual if args.ordered => refuse("ordered", "is ps's: here time decides"),
            Pace::Eventual if args.clip.is_some() => {
                refuse("clip", "is ps's: here no gradient is ever whole")
            }
            _ => Ok(()),
        }
    }

    /// This rank's part of a world with servers.
    ///
    /// Errors: those of calls that the group cannot do, and of what a device does not.
    #[expect(clippy::too_many_arguments, reason = "what a run may choose")]
    pub(crate) fn strategy<'a>(
        self,
        args: &Args,
        model: &'a Gpt,
        group: &'a Communicator,
        lanes: Lanes,
        optimizer: Optimizer,
        (thrift, usage): (&Thrift, Option<DeviceUse>),
        state: &State,
    ) -> Result<Box<dyn Strategy + 'a>, Error> {
        let servers = self.servers(args, group.size());
        let is_worker = self.computes(args, (group.rank(), group.size()));
        let adds_up = !args.ordered;
        let worker = || Worker::new(model, lanes, (thrift, usage), adds_up, state);
        let worker = is_worker.then(worker).transpose()?;
        if self == Pace::Together {
            let numbers = (servers, lanes.slots());
            return Ok(Box::new(Together::new(
                model, group, numbers, worker, !adds_up, optimizer, state,
            )?));
        }
        let bound = args.travel.staleness.unwrap_or(1);
        let steps = args.last_step().saturating_sub(state.steps);
        let numbers = (servers, bound, steps);
        let rank = Eventual::new(model, group, numbers, worker, optimizer, state)?;
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

    /// The squares of all its gradients.
    fn squares(&self) -> ExactSum {
        let parts = self.units.iter().map(|part| part.moments.squares(&part.grads, |_| true));
        parts.fold(ExactSum::ZERO, ExactSum::plus)
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
