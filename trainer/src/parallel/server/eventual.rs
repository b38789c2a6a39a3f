//! Servers that update with every gradient as it comes, and workers that wait for nobody who is not
//! too far behind: stale synchronous parallel (Ho et al. 2013).
//!
//! Each push of a worker is an update of its own, with 1/N of the learning rate. A worker that has
//! pushed c times gets its parameters once every other has pushed c − s times, s being the bound:
//! so what it computes with lacks at most s pushes of any worker, and has whatever else has come.
//! Which, is a matter of time, so two runs do not have the same digits; the bytes are the same.
//!
//! Each worker and server have a communicator of their own: whoever waits for one of them does not
//! wait for the others.

use super::worker::Worker;
use super::{Part, Places, Server, gather};
use crate::error::Error;
use crate::layout::Layout;
use crate::model::Gpt;
use crate::optim::Optimizer;
use crate::parallel::{Batch, Memory, Spent, Strategy};
use crate::state::State;
use brigade_comm::{Communicator, Owned};
use std::time::{Duration, Instant};

/// How long a server sleeps when nothing has come.
const PAUSE: Duration = Duration::from_micros(50);

/// One rank of a world with parameter servers that wait for nobody.
pub struct Eventual<'a> {
    layout: &'a Layout,
    group: &'a Communicator,
    places: Places,
    role: Role<'a>,
    optimizer: Optimizer,
    /// Steps made.
    steps: usize,
    formula_bytes: u64,
}

enum Role<'a> {
    Worker {
        worker: Box<Worker<'a>>,
        /// The way to each server, and room for what it is sent and sends: its elements, and behind
        /// them a loss.
        servers: Vec<(Communicator, Vec<f32>)>,
    },
    Server {
        server: Server,
        workers: Vec<Peer>,
        /// How far ahead of the last a worker may be.
        bound: usize,
        /// Steps that each worker makes.
        steps: usize,
    },
}

/// A worker, as a server sees it.
struct Peer {
    comm: Communicator,
    /// For what it pushes and for what it pulls; with the calls while they are on their way.
    push: Vec<f32>,
    pull: Vec<f32>,
    pushing: Option<Owned<f32>>,
    pulling: Option<Owned<f32>>,
    /// How often it has pushed, and whether it waits for parameters.
    pushes: usize,
    waits: bool,
}

impl<'a> Eventual<'a> {
    /// This rank's part, of which the last `servers` of the group are servers and a worker may be
    /// `bound` pushes ahead, in so many steps. Collective.
    ///
    /// Errors: those of calls that the group cannot do.
    pub(super) fn new(
        model: &'a Gpt,
        group: &'a Communicator,
        (servers, bound, steps): (usize, usize, usize),
        worker: Option<Worker<'a>>,
        optimizer: Optimizer,
        state: &State,
    ) -> Result<Eventual<'a>, Error> {
        let (layout, rank) = (model.layout(), group.rank());
        let places = Places::new(layout, group.size(), servers);
        let (workers, here) = (places.workers, places.server(rank));
        let mut ways = Vec::new();
        for pair in 0..workers * servers {
            let (worker, server) = (pair / servers, pair % servers);
            let is_in = rank == worker || here == Some(server);
            ways.extend(group.split(is_in.then_some(0), rank as i32)?);
        }
        let room = |server: usize| vec![0.0; places.elements(server) + 1];
        let role = match here {
            None => Role::Worker {
                worker: Box::new(worker.expect("who is no server is a worker")),
                servers: ways.into_iter().enumerate().map(|(at, way)| (way, room(at))).collect(),
            },
            Some(server) => Role::Server {
                server: Server::new(layout, &places, server, optimizer.rule(), state),
                workers: ways
                    .into_iter()
                    .map(|comm| Peer {
                        push: room(server),
                        pull: room(server),
                        pushing: None,
                        pulling: None,
                        pushes: 0,
                        waits: false,
                        comm,
                    })
                    .collect(),
                bound,
                steps,
            },
        };
        let elements = match here {
            None => layout.len() + servers,
            Some(server) => workers * (places.elements(server) + 1),
        };
        let steps = state.steps;
        let mut optimizer = optimizer;
        optimizer.steps = steps * workers;
        optimizer.scale = workers as f32;
        let formula_bytes = 4 * elements as u64;
        Ok(Eventual { layout, group, places, role, optimizer, steps, formula_bytes })
    }
}

/// A worker's step: its own samples, and what comes of them to and from the servers.
fn compute(
    worker: &mut Worker<'_>,
    servers: &mut [(Communicator, Vec<f32>)],
    places: &Places,
    batch: &Batch<'_>,
) -> Result<Spent, Error> {
    let mut spent = Spent { loss_scale: 1.0, ..Spent::default() };
    for slot in 0..worker.slots() {
        worker.forward(slot, batch, &mut spent)?;
        let mut units = (0..places.units.len()).rev();
        units.try_for_each(|unit| worker.backward(unit, slot > 0, &mut spent))?;
    }
    let loss: f64 = worker.losses(&mut spent)?.iter().sum();
    // The mean over this rank's samples: nobody knows the others'.
    spent.loss = loss * f64::from(batch.scale()) * places.workers as f64;
    let from = Instant::now();
    let mut calls = Vec::with_capacity(servers.len());
    for (at, (way, room)) in servers.iter_mut().enumerate() {
        room.clear();
        for (_, parts) in &places.units {
            room.extend_from_slice(&worker.grads[parts[at].clone()]);
        }
        room.push(spent.loss as f32);
        calls.push(way.send_owned(std::mem::take(room), 1)?);
    }
    for (call, (way, room)) in calls.into_iter().zip(&mut *servers) {
        (*room, _) = call.wait()?;
        way.recv(room, 1)?;
    }
    for (at, (_, room)) in servers.iter().enumerate() {
        let mut rest = &room[..];
        for (_, parts) in &places.units {
            let (part, others) = rest.split_at(parts[at].len());
            worker.params[parts[at].clone()].copy_from_slice(part);
            rest = others;
        }
    }
    worker.renew();
    spent.exposed = from.elapsed();
    Ok(spent)
}

/// A server's step: as many pushes as there are workers, of any of them.
fn serve(
    server: &mut Server,
    workers: &mut [Peer],
    (bound, steps): (usize, usize),
    optimizer: &mut Optimizer,
    lr: f32,
) -> Result<Spent, Error> {
    let mut spent = Spent { loss_scale: 1.0, ..Spent::default() };
    let (count, mut served) = (workers.len(), 0);
    while served < count {
        let mut is_idle = true;
        for at in 0..count {
            let peer = &mut workers[at];
            if peer.pushing.is_none() && peer.pushes < steps && !peer.waits && served < count {
                let room = std::mem::take(&mut peer.push);
                peer.pushing = Some(peer.comm.recv_owned(room, 0)?);
            }
            if !peer.pushing.as_ref().is_some_and(Owned::is_done) || served == count {
                continue;
            }
            let call = peer.pushing.take().expect("it is done");
            (_, peer.push) = call.wait()?;
            (peer.pushes, peer.waits) = (peer.pushes + 1, true);
            (served, is_idle) = (served + 1, false);
            let from = Instant::now();
            let mut rest = &peer.push[..];
            for Part { grads, .. } in &mut server.units {
                let (part, others) = rest.split_at(grads.len());
                grads.copy_from_slice(part);
                rest = others;
            }
            spent.loss += f64::from(rest[0]) / count as f64;
            server.update(optimizer, lr / count as f32);
            optimizer.steps += 1;
            spent.optimizer += from.elapsed();
            answer(server, workers, bound)?;
        }
        if is_idle {
            std::thread::sleep(PAUSE);
            spent.exposed += PAUSE;
        }
    }
    for peer in workers.iter_mut() {
        if let Some(call) = peer.pulling.take() {
            (peer.pull, _) = call.wait()?;
        }
    }
    Ok(spent)
}

/// Send parameters to those who wait for them and are not too far ahead.
fn answer(server: &Server, workers: &mut [Peer], bound: usize) -> Result<(), Error> {
    let last = workers.iter().map(|peer| peer.pushes).min().unwrap_or(0);
    for peer in
        workers.iter_mut().filter(|peer| peer.waits && peer.pushes <= last.saturating_add(bound))
    {
        if let Some(call) = peer.pulling.take() {
            // It has pushed since, so it has this.
            (peer.pull, _) = call.wait()?;
        }
        let mut pull = std::mem::take(&mut peer.pull);
        pull.clear();
        server.units.iter().for_each(|part| pull.extend_from_slice(&part.params));
        pull.push(0.0);
        peer.pulling = Some(peer.comm.send_owned(pull, 0)?);
        peer.waits = false;
    }
    Ok(())
}

impl Strategy for Eventual<'_> {
    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let Eventual { places, role, optimizer, .. } = self;
        let spent = match role {
            Role::Worker { worker, servers } => compute(worker, servers, places, batch)?,
            Role::Server { server, workers, bound, steps } => {
                serve(server, workers, (*bound, *steps), optimizer, lr)?
            }
        };
        self.steps += 1;
        Ok(spent)
    }

    fn gather(&mut self) -> Result<State, Error> {
        let mut state = State::room(self.layout);
        let server = match &self.role {
            Role::Server { server, .. } => Some(server),
            Role::Worker { .. } => None,
        };
        let count = self.optimizer.rule().moments();
        gather(self.group, &self.places, server, count, &mut state)?;
        state.steps = self.steps;
        Ok(state)
    }

    fn steps(&self) -> usize {
        self.steps
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn sent_bytes(&self) -> u64 {
        let pairs: u64 = match &self.role {
            Role::Worker { servers, .. } => {
                servers.iter().map(|(way, _)| way.stats().sent_bytes).sum()
            }
            Role::Server { workers, .. } => {
                workers.iter().map(|peer| peer.comm.stats().sent_bytes).sum()
            }
        };
        self.group.stats().sent_bytes + pairs
    }

    fn device(&self) -> Option<String> {
        match &self.role {
            Role::Worker { worker, .. } => worker.device(),
            Role::Server { .. } => None,
        }
    }

    fn memory(&self) -> Memory {
        let (memory, rooms) = match &self.role {
            Role::Worker { worker, servers } => {
                let rooms = servers.iter().map(|(_, room)| room.capacity());
                (worker.memory(), rooms.sum::<usize>())
            }
            Role::Server { server, .. } => {
                let here = self.places.server(self.group.rank()).unwrap_or(0);
                (server.memory(), 2 * self.places.workers * (self.places.elements(here) + 1))
            }
        };
        Memory { calls: memory.calls + 4 * rooms as u64, ..memory }
    }
}
