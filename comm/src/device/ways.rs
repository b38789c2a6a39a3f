//! The ways to carry out a call: one kernel that finds the others by flags, on their buffers or
//! (`slots`) by a schedule; kernels between two meetings of the hosts; or through pinned memory of
//! the host (`staged`).

pub(super) mod lent;
mod proof;
mod slots;

use std::fmt;
use std::sync::atomic::Ordering;

use brigade_cuda::{CudaError, Function, Stream};

use super::exchange::{agree, exchange, trouble};
use super::kernels::{Folding, launch};
use super::layout::{Direct, Kind};
use super::plans::{Plan, Ready};
use super::room::Room;
use super::way::Way;
use super::{Inner, State};
use crate::Error;
use crate::call::Call;
use lent::{Allocation, Imports, Offer, offer};

/// Blocks on each multiprocessor for kernels that wait for nobody.
const MET_BLOCKS: u32 = 2;
/// How many streams are remembered, to wait for at the end.
const STREAMS_MAX: usize = 8;

impl Inner {
    /// See [`super::DeviceGroup::enqueue`].
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn enqueue(
        &self,
        call: &Call,
        input: u64,
        output: u64,
        stream: &Stream,
    ) -> Result<(), Error> {
        self.watched.check()?;
        let is_for_host = call.collective.folds() && Folding::by(call.dtype, &call.op).is_none();
        self.refuse_capture(call, is_for_host, stream)?;
        let mut state = self.state();
        state.refuse_closed()?;
        let in_place = input == output;
        let index = match state.plans.find(call, in_place) {
            Some(index) => index,
            None => self.prepare(&mut state, call, in_place, stream)?,
        };
        self.check_memory(&mut state, index, call, input, output)?;
        state.used(stream);
        state.posted = state.posted.wrapping_add(1);
        // SAFETY: the caller's promise.
        let given = unsafe { self.carry_out(&mut state, index, call, (input, output), stream) };
        // Even if only a part was given.
        self.mark_last(&mut state, stream);
        given
    }

    /// Behind a call: of a stream of somebody else, who may destroy it, nothing else tells later
    /// whether it is done.
    pub(super) fn mark_last(&self, state: &mut State, stream: &Stream) {
        if stream.is_borrowed() {
            let is_plain = matches!(stream.is_capturing(), Ok(false));
            state.is_unmarked |= !is_plain || stream.record(&self.last).is_err();
        }
    }

    /// Give the stream what a plan has become, whose kernels are loaded and whose memory is there.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::enqueue`].
    unsafe fn carry_out(
        &self,
        state: &mut State,
        index: usize,
        call: &Call,
        buffers @ (input, output): (u64, u64),
        stream: &Stream,
    ) -> Result<(), Error> {
        let State { plans, kernels, imports, staging, scratch, posted, .. } = state;
        let plan = plans.at(index);
        let failed = |error| self.give_up(call, &error, stream);
        match &plan.ready {
            Ready::Packets { argument, threads } => {
                let loaded = kernels.find(plan.folding).expect("loaded when the plan was made");
                let argument = super::layout::Packets { input, output, ..**argument };
                let shape = (1, loaded.threads.min(*threads));
                // SAFETY: the argument is the kernel's; the caller vouches for the buffers, and
                // the boards outlive the group.
                unsafe { launch(&loaded.packets, stream, shape, &argument) }.map_err(failed)
            }
            Ready::Direct { argument, steps } => {
                let loaded = kernels.find(plan.folding).expect("loaded when the plan was made");
                let mut argument = **argument;
                if self.way == Way::Linked {
                    // No schedule of so many ranks fits a kernel.
                    self.refuse_capture(call, true, stream)?;
                }
                let source = match plan.copied_bytes() {
                    0 => input,
                    bytes => {
                        let room = self.scratch(scratch, bytes, (call, stream))?;
                        // SAFETY: the room is as long as the input, which the caller vouches for.
                        unsafe { stream.copy(room, input, bytes) }.map_err(failed)?;
                        room
                    }
                };
                for (peer, (input_at, output_at)) in steps.tells.iter().enumerate() {
                    argument.input[peer] = source + input_at;
                    argument.output[peer] = output + output_at;
                }
                if self.way == Way::Together {
                    let shape = (steps.blocks, loaded.threads);
                    // SAFETY: as above.
                    return unsafe { launch(&loaded.direct, stream, shape, &argument) }
                        .map_err(failed);
                }
                let kernel = (&loaded.direct, loaded.threads);
                let stays = self.keeps.load(Ordering::Relaxed) && plan.copied_bytes() == 0;
                let lent = (source, output, stays);
                // SAFETY: as above.
                match unsafe { self.meet_and_run(imports, (argument, lent), kernel, stream)? } {
                    true => Ok(()),
                    // SAFETY: as above.
                    false => unsafe { self.stage(staging, call, buffers, stream) },
                }
            }
            Ready::Linked(slotted) => {
                let room = match plan.room_bytes() {
                    0 => 0,
                    bytes => self.scratch(scratch, bytes, (call, stream))?,
                };
                let loaded = kernels.find(plan.folding).expect("loaded when the plan was made");
                let (plan, places) = ((plan, slotted, loaded), (input, output, room));
                // SAFETY: as above, and the room is as long as the plan says.
                unsafe { self.pass_on(plan, call, places, *posted, stream) }
            }
            // SAFETY: as above.
            Ready::Staged => unsafe { self.staged(staging, scratch, call, buffers, stream) },
        }
    }

    /// This rank cannot do its part of a call in which the others may be already: end it for all,
    /// with what is missing here. A capture is nobody's but this rank's, and so is a proof.
    pub(super) fn give_up(
        &self,
        call: &dyn fmt::Display,
        error: &CudaError,
        stream: &Stream,
    ) -> Error {
        let error = trouble(&call.to_string(), error);
        if !self.is_proved || stream.is_capturing().unwrap_or(false) {
            return error;
        }
        self.watched.end(error)
    }

    /// Only kernels that wait for nothing on the host can be captured.
    pub(super) fn refuse_capture(
        &self,
        call: &dyn fmt::Display,
        is_for_host: bool,
        stream: &Stream,
    ) -> Result<(), Error> {
        if (self.way.is_enqueued() && !is_for_host)
            || !stream.is_capturing().map_err(|error| trouble("a stream", &error))?
        {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{call} cannot be captured: the ranks of this group meet on the host for it"
        )))
    }

    /// Make the plan for a call of a new kind, and with all other ranks what it needs.
    fn prepare(
        &self,
        state: &mut State,
        call: &Call,
        in_place: bool,
        stream: &Stream,
    ) -> Result<usize, Error> {
        let plan = Plan::new(call, in_place, &self.facts())?;
        self.watched.learn(plan.signature, plan.name(call));
        let is_staged = matches!(plan.ready, Ready::Staged);
        if !is_staged && state.kernels.find(plan.folding).is_none() {
            refuse_first_in_capture(call, stream)?;
            // Loading waits for everything on the device, and holds up whoever else shares the
            // context: calls that wait for another rank there must have that rank's by now.
            agree(&self.watched.shared, true)?;
            let loaded = state.kernels.load(&self.context, plan.folding);
            // No rank's kernel may wait for a rank that loads.
            let all_loaded = agree(&self.watched.shared, loaded.is_ok())?;
            loaded.map_err(|error| Error::invalid(format!("{call}: {error}")))?;
            if !all_loaded {
                return Err(Error::invalid(format!("{call}: another rank could not prepare it")));
            }
        }
        Ok(state.plans.keep(plan))
    }

    /// Room for a copy of an input, which no other rank need know of: whether a call is in place
    /// is each rank's own affair. What was too small is kept, since graphs may have it in them.
    pub(super) fn scratch(
        &self,
        rooms: &mut Vec<Room>,
        bytes: usize,
        (call, stream): (&Call, &Stream),
    ) -> Result<u64, Error> {
        if let Some(room) = rooms.last().filter(|room| room.bytes() >= bytes) {
            return Ok(room.address());
        }
        refuse_first_in_capture(call, stream)?;
        let bytes = bytes.next_power_of_two();
        let room = Room::new(self, bytes).map_err(|error| self.give_up(call, &error, stream))?;
        let address = room.address();
        rooms.push(room);
        Ok(address)
    }

    /// Refuse buffers that are not there, or do not lie as elements must.
    fn check_memory(
        &self,
        state: &mut State,
        index: usize,
        call: &Call,
        input: u64,
        output: u64,
    ) -> Result<(), Error> {
        let (input_elems, output_elems) = state.plans.at(index).elems;
        let size = call.dtype.size();
        for (what, address, elems) in
            [("input", input, input_elems), ("output", output, output_elems)]
        {
            if elems == 0 {
                continue;
            }
            if !address.is_multiple_of(size as u64) {
                let name = call.dtype;
                return Err(Error::invalid(format!(
                    "{call}: the {what} at {address:#x} does not lie as {name} must, at a \
                     multiple of {size}"
                )));
            }
            let refused = |readers: &_| self.refuse_unread(what, address, readers);
            state.ranges.of(&self.context, what, (address, elems * size), refused)?;
        }
        Ok(())
    }

    /// Carry out a call between two meetings of the hosts; false if a rank cannot reach what it
    /// must, in which case nothing has happened.
    ///
    /// # Safety
    ///
    /// As for [`super::DeviceGroup::enqueue`]; the argument has this rank's own addresses.
    unsafe fn meet_and_run(
        &self,
        imports: &mut Imports,
        (argument, buffers): (Direct, (u64, u64, bool)),
        (kernel, threads): (&Function, u32),
        stream: &Stream,
    ) -> Result<bool, Error> {
        let shared = &self.watched.shared;
        let ranks = self.group.ranks as usize;
        let failed = |error| trouble("a call on a device", &error);
        self.settle(stream)?;
        let offers = exchange(shared, &offer(&self.context, &argument, buffers, ranks))?;
        let offers: Vec<Offer> =
            offers.chunks_exact(Offer::bytes(ranks)).map(Offer::from_bytes).collect();
        if let Some(peer) = offers.iter().position(|offer| offer.signature != argument.signature) {
            let theirs = offers[peer].signature;
            return Err(self.watched.mismatch(peer as u32, argument.signature, theirs));
        }
        let reached = self.reach(imports, &argument, &offers);
        if !agree(shared, reached.is_some())? {
            imports.let_go();
            agree(shared, true)?;
            // A way that always goes through the host is not this one.
            return match self.is_proved {
                true => Ok(false),
                false => Err(Error::invalid("ranks cannot open each other's buffers")),
            };
        }
        let argument = reached.expect("all ranks have agreed that they have");
        let moves = argument.step[..argument.steps as usize]
            .iter()
            .all(|step| matches!(step.kind, Kind::Pull | Kind::Push));
        let given = if moves {
            // SAFETY: every rank has told where its buffers lie, and waits until all have met.
            unsafe { copies(&argument, stream) }
        } else {
            let blocks = self.context.device().multiprocessors * MET_BLOCKS;
            // SAFETY: as above, and the argument is the kernel's.
            unsafe { launch(kernel, stream, (blocks, threads), &argument) }
        };
        // Even if only a part was given.
        let settled = self.settle(stream);
        if settled.is_ok() {
            // Before its owners hear that the call has ended, and may free it.
            imports.let_go();
        }
        let done = given.map_err(failed).and(settled);
        // Nobody waits for a rank whose device has failed.
        let all_done = agree(shared, done.is_ok())?;
        done?;
        let why = || String::from("another rank could not carry it out: its error says why");
        if all_done { Ok(true) } else { Err(failed(CudaError::Refused { why: why() })) }
    }

    /// The argument with the addresses that the others have told us, if all can be reached that
    /// its steps touch.
    fn reach(&self, imports: &mut Imports, own: &Direct, offers: &[Offer]) -> Option<Direct> {
        let mut argument = *own;
        let rank = self.group.rank as usize;
        imports.begin_call();
        for (peer, offer) in offers.iter().enumerate() {
            let (input_at, output_at) = offer.tells[rank];
            let (reads, writes) = own.touched(peer as u32);
            if self.cards[peer].process == self.cards[rank].process {
                let is_out = |needed, told| needed && !self.reads_of(peer, told);
                if is_out(reads, input_at) || is_out(writes, output_at) {
                    imports.tell(peer, &"this rank's device does not reach it");
                    return None;
                }
                argument.input[peer] = input_at;
                argument.output[peer] = output_at;
                continue;
            }
            let mut reached = |needed: bool, told: u64, allocation: &Allocation| {
                if !needed {
                    return Some(0);
                }
                let start = imports.import(&self.context, (peer, offer.stays), allocation)?;
                Some(start + told.checked_sub(allocation.start)?)
            };
            argument.input[peer] = reached(reads, input_at, &offer.input)?;
            argument.output[peer] = reached(writes, output_at, &offer.output)?;
        }
        Some(argument)
    }
}

impl State {
    pub(super) fn refuse_closed(&self) -> Result<(), Error> {
        match self.is_closed {
            true => Err(Error::invalid("the group on devices was closed on this rank")),
            false => Ok(()),
        }
    }

    /// Remember a stream that a call went into, and that stays.
    pub(super) fn used(&mut self, stream: &Stream) {
        let is_known = |known: &Stream| known.raw() == stream.raw();
        if stream.is_borrowed() || self.streams.iter().any(is_known) {
            return;
        }
        if self.streams.len() == STREAMS_MAX {
            self.streams.remove(0);
        }
        self.streams.push(stream.clone());
    }
}

/// What is made or loaded for the first call of a kind cannot be captured.
fn refuse_first_in_capture(call: &Call, stream: &Stream) -> Result<(), Error> {
    if !stream.is_capturing().map_err(|error| trouble("a stream", &error))? {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{call} is made for the first time, which cannot be captured: make one such call before"
    )))
}

/// The steps of a call that only moves, by the copy engines.
///
/// # Safety
///
/// The addresses of the argument are good for its steps, which wait for nobody.
unsafe fn copies(argument: &Direct, stream: &Stream) -> Result<(), CudaError> {
    let rank = argument.group.rank as usize;
    for step in &argument.step[..argument.steps as usize] {
        let peer = step.peer as usize;
        let (to, from) = match step.kind {
            Kind::Push => (argument.output[peer], argument.input[rank]),
            _ => (argument.output[rank], argument.input[peer]),
        };
        let (to, from) = (to + step.target, from + step.source);
        if to != from {
            // SAFETY: the caller's promise.
            unsafe { stream.copy(to, from, step.bytes as usize) }?;
        }
    }
    Ok(())
}
