//! Servers that wait for all workers in each step.

use super::worker::Worker;
use super::{Places, Server, gather};
use crate::error::Error;
use crate::layout::Layout;
use crate::model::Gpt;
use crate::norms::ExactSum;
use crate::optim::Optimizer;
use crate::parallel::clip::{add_up, norm_bytes};
use crate::parallel::{Batch, Memory, Spent, Strategy, gather_losses, loss_bytes};
use crate::state::State;
use brigade_comm::Communicator;
use std::time::{Duration, Instant};

/// One rank of a world with parameter servers that keep everyone at the same step.
pub struct Together<'a> {
    layout: &'a Layout,
    group: &'a Communicator,
    places: Places,
    worker: Option<Worker<'a>>,
    server: Option<Server>,
    /// What comes from each worker: `[workers × the longest part]`, on servers.
    rooms: Vec<Vec<f32>>,
    optimizer: Optimizer,
    slots: usize,
    is_ordered: bool,
    losses: Vec<f64>,
    waited: Duration,
    formula_bytes: u64,
}

impl<'a> Together<'a> {
    /// This rank's part, of which the last `servers` of the group are servers, and the others have
    /// so many slots each.
    ///
    /// Errors: those of calls that the group cannot do.
    pub(super) fn new(
        model: &'a Gpt,
        group: &'a Communicator,
        (servers, slots): (usize, usize),
        worker: Option<Worker<'a>>,
        is_ordered: bool,
        optimizer: Optimizer,
        state: &State,
    ) -> Result<Together<'a>, Error> {
        let layout = model.layout();
        let places = Places::new(layout, group.size(), servers);
        let here = places.server(group.rank());
        let server =
            here.map(|server| Server::new(layout, &places, server, optimizer.rule(), state));
        let parts = |server: usize| places.units.iter().map(move |unit| unit.1[server].len());
        let longest = here.and_then(|server| parts(server).max()).unwrap_or(0);
        let rooms = if here.is_some() { places.workers } else { 0 };
        let pushes = if is_ordered { slots as u64 } else { 1 };
        let elements = match here {
            Some(server) => (places.workers * places.elements(server)) as u64,
            None => pushes * layout.len() as u64,
        };
        let norm = if optimizer.clips() { norm_bytes(group)? } else { 0 };
        Ok(Together {
            formula_bytes: 4 * elements + loss_bytes(Some(group), slots)? + norm,
            rooms: vec![vec![0.0; longest]; rooms],
            losses: vec![0.0; slots],
            waited: Duration::ZERO,
            layout,
            group,
            places,
            worker,
            server,
            optimizer,
            slots,
            is_ordered,
        })
    }

    /// Forward and backward of all of this rank's lanes, and what comes of them to the servers.
    fn compute(&mut self, batch: &Batch<'_>, spent: &mut Spent) -> Result<(), Error> {
        let Some(worker) = &mut self.worker else { return Ok(()) };
        for slot in 0..self.slots {
            worker.forward(slot, batch, spent)?;
            for (unit, (_, parts)) in self.places.units.iter().enumerate().rev() {
                worker.backward(unit, slot > 0 && !self.is_ordered, spent)?;
                if !self.is_ordered && slot + 1 < self.slots {
                    continue;
                }
                let from = Instant::now();
                let mut pushes = self.group.messages();
                for (server, part) in parts.iter().enumerate() {
                    let part = &worker.grads[part.clone()];
                    pushes = pushes.send(part, self.places.workers + server);
                }
                pushes.run()?;
                self.waited += from.elapsed();
            }
        }
        self.losses.copy_from_slice(worker.losses(spent)?);
        Ok(())
    }

    /// The sum of what all workers push, in the order of their lanes.
    fn collect(&mut self) -> Result<(), Error> {
        let Some(server) = &mut self.server else { return Ok(()) };
        let pushes = if self.is_ordered { self.slots } else { 1 };
        for push in 0..pushes {
            for part in server.units.iter_mut().rev() {
                let mut all = self.group.messages();
                for (worker, room) in self.rooms.iter_mut().enumerate() {
                    room.resize(part.grads.len(), 0.0);
                    all = all.recv(room, worker);
                }
                let from = Instant::now();
                all.run()?;
                self.waited += from.elapsed();
                for (worker, room) in self.rooms.iter().enumerate() {
                    match push == 0 && worker == 0 {
                        true => part.grads.copy_from_slice(room),
                        false => part.grads.iter_mut().zip(room).for_each(|(to, x)| *to += x),
                    }
                }
            }
        }
        Ok(())
    }

    /// If the optimizer clips: tell it the norm of the whole gradient, of which each server has a
    /// part, and workers hear, too.
    fn tell_norm(&mut self) -> Result<Option<f64>, Error> {
        if !self.optimizer.clips() {
            return Ok(None);
        }
        let mine = self.server.as_ref().map_or(ExactSum::ZERO, Server::squares);
        let from = Instant::now();
        let all = add_up(self.group, mine)?;
        self.waited += from.elapsed();
        Ok(Some(self.optimizer.clip(all)))
    }

    /// New parameters, from the servers to the workers.
    fn share(&mut self) -> Result<(), Error> {
        let from = Instant::now();
        for (unit, (range, parts)) in self.places.units.iter().enumerate() {
            let mut messages = self.group.messages();
            if let Some(server) = &self.server {
                for worker in 0..self.places.workers {
                    messages = messages.send(&server.units[unit].params, worker);
                }
            } else if let Some(worker) = &mut self.worker {
                let mut rest = &mut worker.params[range.clone()];
                for (server, part) in parts.iter().enumerate() {
                    let (room, others) = std::mem::take(&mut rest).split_at_mut(part.len());
                    messages = messages.recv(room, self.places.workers + server);
                    rest = others;
                }
            }
            messages.run()?;
        }
        if let Some(worker) = &mut self.worker {
            worker.renew();
        }
        self.waited += from.elapsed();
        Ok(())
    }
}

impl Strategy for Together<'_> {
    fn step(&mut self, batch: &Batch<'_>, lr: f32) -> Result<Spent, Error> {
        let mut spent = Spent { loss_scale: 1.0, ..Spent::default() };
        self.compute(batch, &mut spent)?;
        self.collect()?;
        spent.norm = self.tell_norm()?;
        let from = Instant::now();
        if let Some(server) = &mut self.server {
            server.update(&mut self.optimizer, lr);
        }
        spent.optimizer = from.elapsed();
        self.share()?;
        self.optimizer.steps += 1;
        let from = Instant::now();
        let sum = gather_losses(Some(self.group), &self.losses)?;
        spent.loss = sum * f64::from(batch.scale());
        spent.exposed = std::mem::take(&mut self.waited) + from.elapsed();
        Ok(spent)
    }

    fn gather(&mut self) -> Result<State, Error> {
        let mut state = State::room(self.layout);
        let count = self.optimizer.rule().moments();
        gather(self.group, &self.places, self.server.as_ref(), count, &mut state)?;
        state.steps = self.optimizer.steps;
        Ok(state)
    }

    fn steps(&self) -> usize {
        self.optimizer.steps
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn sent_bytes(&self) -> u64 {
        self.group.stats().sent_bytes
    }

    fn device(&self) -> Option<String> {
        self.worker.as_ref().and_then(Worker::device)
    }

    fn memory(&self) -> Memory {
        let memory = match (&self.worker, &self.server) {
            (Some(worker), _) => worker.memory(),
            (None, Some(server)) => server.memory(),
            (None, None) => Memory::default(),
        };
        let rooms: usize = self.rooms.iter().map(Vec::capacity).sum();
        Memory { calls: memory.calls + 4 * rooms as u64, ..memory }
    }
}
