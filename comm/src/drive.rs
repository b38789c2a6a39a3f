//! What drives a plan from its first byte to its last: the wires of one communicator, and the way
//! it waits.

mod any;

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_transports::{Bells, Endpoint};

use crate::Error;
use crate::eagerness::Eagerness;
use crate::extent::Memory;
use crate::middle::Functions;
use crate::plan::{Channel, Plan};
use crate::run::{Poll, Run, Wires};
use crate::wait::{At, Opening, Standstill, Watch};

/// The longest a rank sleeps before it looks around: a lost peer is noticed this much later.
const NAP: Duration = Duration::from_millis(20);
/// The longest sleep of one who waits for a function of the caller's, which rings no bell.
const UPDATE_NAP: Duration = Duration::from_micros(500);

/// A plan and how it is named in errors.
pub(crate) struct Prepared {
    pub(crate) plan: Plan,
    pub(crate) name: String,
}

impl Prepared {
    /// The memory that is kept for it elsewhere.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.plan.heap_bytes() + self.name.len()
    }
}

/// The wires of one communicator and the call that is on them.
pub(crate) struct Driver {
    /// In front of the endpoints, which must outlive them.
    wires: Wires,
    pub(crate) endpoints: Vec<Box<dyn Endpoint>>,
    /// Which endpoint serves each member.
    routes: Arc<[Option<usize>]>,
    pub(crate) watch: Watch,
    bells: Bells,
    waiting: Eagerness,
    run: Run,
}

impl Driver {
    /// Wires that are opened when they are first needed.
    pub(crate) fn new(
        mut endpoints: Vec<Box<dyn Endpoint>>,
        routes: Arc<[Option<usize>]>,
        watch: Watch,
        waiting: Eagerness,
    ) -> Self {
        let mut wires = Wires::default();
        wires.to.resize_with(routes.len(), || None);
        wires.from.resize_with(routes.len(), || None);
        let bells = Bells::join(&mut endpoints);
        Self { endpoints, routes, watch, bells, waiting, wires, run: Run::default() }
    }

    /// Open the wires that a plan needs and that are not open yet: within `patience`, which is as
    /// long as joining may take, and no longer than the call may.
    pub(crate) fn open_wires(
        &mut self,
        prepared: &Prepared,
        patience: Duration,
    ) -> Result<(), Box<Error>> {
        let deadline = Instant::now() + patience.min(self.watch.timeout);
        for pump in &prepared.plan.pumps {
            match pump.channel {
                Channel::To(peer) => self.open_to(peer, deadline, &prepared.name)?,
                Channel::From(peer) => self.open_from(peer, &prepared.name)?,
                Channel::Within => {}
            }
        }
        Ok(())
    }

    fn open_to(&mut self, peer: u32, deadline: Instant, name: &str) -> Result<(), Box<Error>> {
        let index = peer as usize;
        if self.wires.to[index].is_none() {
            let opening = Opening { peer, route: self.route(index), what: "wire", name };
            let connect = |endpoint: &mut dyn Endpoint| endpoint.connect(index, deadline);
            let endpoints = &mut self.endpoints;
            let opened = self.watch.await_opening(endpoints, &opening, connect)?;
            let judge = |error| self.watch.judge_opening(peer, error, name);
            self.wires.to[index] = Some(opened.map_err(judge)?);
        }
        Ok(())
    }

    fn open_from(&mut self, peer: u32, name: &str) -> Result<(), Box<Error>> {
        let index = peer as usize;
        if self.wires.from[index].is_none() {
            let route = self.route(index);
            let opened = self.endpoints[route].receiver(index);
            let judge = |error| self.watch.judge_opening(peer, error, name);
            self.wires.from[index] = Some(opened.map_err(judge)?);
        }
        Ok(())
    }

    fn route(&self, peer: usize) -> usize {
        self.routes[peer].expect("every member has a route")
    }

    /// Run a prepared plan to its end.
    ///
    /// # Safety
    ///
    /// `memory` holds for every place of the plan, and nothing else touches it meanwhile.
    pub(crate) unsafe fn drive(
        &mut self,
        prepared: &Prepared,
        sequence: u64,
        memory: &Memory,
        functions: &mut Functions<'_>,
    ) -> Result<(), Box<Error>> {
        // SAFETY: the caller's promise. However the run ends, no wire keeps any of the memory.
        let outcome = unsafe { self.run_to_end(prepared, sequence, memory, functions) };
        if outcome.is_err() {
            self.recall();
        }
        outcome
    }

    /// Take back all memory that wires hold, after a call that did not end well.
    pub(crate) fn recall(&mut self) {
        self.wires.to.iter_mut().flatten().for_each(|wire| wire.recall());
    }

    /// # Safety
    ///
    /// As for [`Driver::drive`]; after an error, wires may hold memory until they are recalled.
    unsafe fn run_to_end(
        &mut self,
        prepared: &Prepared,
        sequence: u64,
        memory: &Memory,
        functions: &mut Functions<'_>,
    ) -> Result<(), Box<Error>> {
        let Prepared { plan, name } = prepared;
        let header = plan.header.numbered(sequence);
        self.watch.history.note(&plan.header, sequence);
        self.run.start(plan, &header);
        self.waiting.begin(|| plan.pumps.iter().map(|pump| pump.bytes).max().unwrap_or(0));
        // A sleeper arms the bells, looks once more, and only then sleeps. What has arrived when it
        // wakes counts before anything that it may have heard of the others.
        let (mut armed, mut slept) = (false, false);
        loop {
            // SAFETY: the caller's promise.
            let poll = unsafe { self.run.poll(plan, &mut self.wires, memory, functions) };
            let idle = matches!(poll, Ok(Poll::Idle));
            if armed && !idle {
                self.bells.disarm(&mut self.endpoints);
                armed = false;
            }
            slept &= idle;
            match poll {
                Ok(Poll::Done) => {
                    self.watch.goes_on();
                    return Ok(());
                }
                Ok(Poll::Moved) => self.waiting.moved(),
                Ok(Poll::Idle) if armed => {
                    // A bell that fails shows in the wires too, and there it has a name.
                    let nap = if self.run.awaits_update { UPDATE_NAP } else { NAP };
                    let _ = self.bells.wait(&mut self.endpoints, nap);
                    (armed, slept) = (false, true);
                }
                Ok(Poll::Idle) if slept => {
                    slept = false;
                    let at = At::Step(&self.run, plan);
                    let still = Standstill { at, name, header: &header };
                    self.watch.look_around(
                        self.waiting.stall.as_mut(),
                        &mut self.endpoints,
                        &still,
                    )?;
                }
                Ok(Poll::Idle) if self.waiting.is_brief() => {}
                Ok(Poll::Idle) => {
                    self.bells.arm(&mut self.endpoints);
                    armed = true;
                }
                Err(stop) => return Err(self.watch.judge(stop, name).into()),
            }
        }
    }
}
