//! What runs calls: the plans of one communicator, its scratch memory, and what broke it.

mod any;
#[cfg(test)]
mod crowding;
mod recent;
mod shape;
mod update;

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use brigade_schedule::Collective;

use crate::call::{Buffers, Call};
use crate::drive::{Driver, Prepared};
use crate::extent::{CallMemory, Extent, Memory};
use crate::header::Header;
use crate::kernels;
use crate::middle::Functions;
use crate::plan::{Message, Plan, link_messages};
use crate::purpose::Purpose;
use crate::reduction::Reduction;
use crate::select::Selector;
use crate::{Dtype, Error, Op, Settings};
use recent::{Recent, key_of};
use shape::Shape;
use update::UpdateShape;
pub(crate) use update::{Shards, UpdateMemory};

/// How long the plans of collectives may be that are kept, and those of updates: a long one takes
/// some 30 MiB, and a training step has hundreds of short ones.
const PLAN_BYTES: usize = 64 << 20;
/// How long those of messages may be.
const MESSAGE_PLAN_BYTES: usize = 16 << 20;

/// One communicator's machinery, used by one thread at a time.
pub(crate) struct Engine {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    group: u64,
    /// By which functions that run inside its calls know the communicator.
    number: u64,
    settings: Arc<Settings>,
    selector: Arc<Selector>,
    pub(crate) driver: Driver,
    plans: Recent<Shape>,
    /// Plans of sharded updates.
    updates: Recent<UpdateShape>,
    /// Plans of groups of messages.
    message_plans: Recent<Prepared>,
    /// From whom the last message came that could have been anybody's.
    last_source: u32,
    sequence: u64,
    scratch: Vec<u64>,
    staging: Vec<u8>,
    pub(crate) sent_bytes: u64,
    /// The error after which this communicator is of no more use. Errors are boxed in here, so that
    /// handing on a success moves a word.
    broken: Option<Box<Error>>,
}

/// Whose machinery it is.
pub(crate) struct Seat {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) group: u64,
    /// The communicator's in this process.
    pub(crate) number: u64,
}

impl Engine {
    /// The machinery of one rank of a group.
    pub(crate) fn new(
        Seat { rank, ranks, group, number }: Seat,
        settings: Arc<Settings>,
        selector: Arc<Selector>,
        driver: Driver,
    ) -> Self {
        Self {
            rank,
            ranks,
            group,
            number,
            settings,
            selector,
            driver,
            plans: Recent::at_most(PLAN_BYTES),
            updates: Recent::at_most(PLAN_BYTES),
            message_plans: Recent::at_most(MESSAGE_PLAN_BYTES),
            last_source: rank,
            sequence: 0,
            scratch: Vec::new(),
            staging: Vec::new(),
            sent_bytes: 0,
            broken: None,
        }
    }

    /// Carry out one call, from the first byte to the last.
    ///
    /// # Panics
    ///
    /// When a user's operator does. The other ranks are told, and the communicator is broken.
    pub(crate) fn call(&mut self, call: &Call, buffers: Buffers<'_>) -> Result<(), Box<Error>> {
        self.call_for(Purpose::Itself, call, buffers)
    }

    /// Carry out a call that is a part of something else.
    ///
    /// # Panics
    ///
    /// As for [`Engine::call`].
    pub(crate) fn call_for(
        &mut self,
        purpose: Purpose,
        call: &Call,
        mut buffers: Buffers<'_>,
    ) -> Result<(), Box<Error>> {
        let staged = is_staged(call, &buffers);
        let in_place = matches!(buffers, Buffers::InPlace(_)) && !staged;
        let known = self.find(purpose, call, in_place);
        let extent = match known {
            Some(index) => self.plans[index].extent,
            None => Extent::of(call, self.ranks, self.rank)?,
        };
        let watch = &self.driver.watch;
        let memory = extent.check(call, &mut buffers, || watch.world_rank())?;
        self.admit()?;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let index = match known {
                Some(index) => index,
                None => self.prepare(purpose, call, extent, in_place)?,
            };
            self.carry_out(index, call, memory, staged)
        }));
        if call.dtype == Dtype::Bool {
            // SAFETY: the output has so many elements and is ours for the length of the call.
            unsafe { settle_bools(memory.output, memory.output_elems) };
        }
        let outcome = outcome.unwrap_or_else(|panic| self.panicked(call, panic));
        self.remember(outcome)
    }

    /// Tell the others why this communicator is of no more use, and go on panicking.
    fn panicked(&mut self, during: impl Display, panic: Box<dyn Any + Send>) -> ! {
        self.driver.recall();
        let literal = panic.downcast_ref::<&str>().copied();
        let words = literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let why = format!("it panicked during {during}: {}", words.unwrap_or("without a word"));
        self.broken = Some(Box::new(self.driver.watch.abort(&why)));
        resume_unwind(panic)
    }

    /// Refuse every call after an error, here or on another rank.
    fn admit(&mut self) -> Result<(), Box<Error>> {
        if self.broken.is_none() {
            self.broken = self.driver.watch.stopped().map(Box::new);
        }
        self.broken.clone().map_or(Ok(()), Err)
    }

    /// The error after which nothing can be called any more.
    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.as_deref()
    }

    fn remember(&mut self, outcome: Result<(), Box<Error>>) -> Result<(), Box<Error>> {
        if let Err(error) = &outcome
            && !error.is_recoverable()
        {
            self.broken = Some(error.clone());
        }
        outcome
    }

    fn carry_out(
        &mut self,
        index: usize,
        call: &Call,
        mut memory: CallMemory,
        staged: bool,
    ) -> Result<(), Box<Error>> {
        if staged {
            // SAFETY: the memory was checked against the call.
            unsafe { self.stage(call, &mut memory) };
        }
        self.sequence += 1;
        let Shape { prepared, in_place, .. } = &self.plans[index];
        let run_memory = Memory {
            input: memory.input,
            output: if *in_place { memory.input.cast_mut() } else { memory.output },
            scratch: enough(&mut self.scratch, &prepared.plan),
        };
        let custom = matches!(call.op, Op::Custom(_)).then(|| Reduction::of(call));
        let reduction = custom.as_ref().unwrap_or(&self.plans[index].reduction);
        let mut functions = Functions { reduction, middle: None };
        // SAFETY: the buffers were checked against the call that the plan was linked for, the
        // caller's borrow keeps them ours, and scratch is long enough.
        unsafe { self.driver.drive(prepared, self.sequence, &run_memory, &mut functions)? };
        self.sent_bytes += prepared.plan.sent_bytes;
        if call.collective.folds() && matches!(call.op, Op::Avg) && memory.output_elems > 0 {
            let divide = kernels::divide(call.dtype).expect("validated: the type can be averaged");
            // SAFETY: the output has so many elements and is ours for the length of the call.
            unsafe { divide(memory.output, memory.output_elems, f64::from(self.ranks)) };
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `memory` is the memory of `call`, checked.
    unsafe fn stage(&mut self, call: &Call, memory: &mut CallMemory) {
        let bytes = memory.input_elems * call.dtype.size();
        let staging = staged(&mut self.staging, bytes);
        // SAFETY: the input can be read for so many bytes, and staging is ours.
        unsafe {
            std::ptr::copy_nonoverlapping(memory.input_start, staging.as_mut_ptr(), bytes);
            if let Op::PreMulSum(factor) = call.op {
                let scale = kernels::premultiply(call.dtype).expect("validated: it can be scaled");
                scale(staging.as_mut_ptr(), memory.input_elems, factor);
            }
        }
        memory.input = staging.as_ptr();
    }

    /// Carry out sends and receives that may all be in flight at once. Allocates nothing where the
    /// plan is still there of a group of the same peers and lengths.
    ///
    /// # Safety
    ///
    /// Every place is in `Space::Absolute`, good for its bytes until this returns; no receive
    /// overlaps another message.
    ///
    /// # Panics
    ///
    /// When a transport does. The other ranks are told, and the communicator is broken.
    pub(crate) unsafe fn messages(&mut self, messages: &[Message]) -> Result<(), Box<Error>> {
        self.admit()?;
        let index = self.prepare_messages(messages);
        let index = index.map_err(|error| self.remember(Err(error)).expect_err("it was one"))?;
        let prepared = &self.message_plans[index];
        let null = std::ptr::null_mut();
        let memory = Memory { input: null, output: null, scratch: null };
        let driver = &mut self.driver;
        let mut functions = Functions { reduction: &Reduction::None, middle: None };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the caller vouches for the places, which are absolute.
            unsafe { driver.drive(prepared, 0, &memory, &mut functions) }
        }));
        let sent_bytes = prepared.plan.sent_bytes;
        let bools = |message: &&Message| message.is_receive() && message.dtype == Dtype::Bool;
        for message in messages.iter().filter(bools) {
            // SAFETY: the place is good for its bytes, by the caller's promise.
            unsafe { settle_bools(memory.at(message.place), message.bytes as usize) };
        }
        let outcome = outcome.unwrap_or_else(|panic| self.panicked("a message", panic));
        if outcome.is_ok() {
            self.sent_bytes += sent_bytes;
        }
        self.remember(outcome)
    }

    /// The plan for a group of messages: one of the same shape, moved to these places, or new.
    fn prepare_messages(&mut self, messages: &[Message]) -> Result<usize, Box<Error>> {
        let header = Header::of_message(self.group);
        let known =
            self.message_plans.find(|| key_of(messages), |it| it.plan.rebind(messages, header));
        if let Some(index) = known {
            return Ok(index);
        }
        let plan = link_messages(messages, header);
        let prepared = Prepared { plan, name: messages_name(messages, &self.driver.watch.members) };
        self.driver.open_wires(&prepared, self.settings.join_patience())?;
        let bytes = size_of::<Prepared>() + prepared.heap_bytes();
        Ok(self.message_plans.insert(key_of(messages), bytes, prepared))
    }
}

/// Whether the input must be copied before the call: to be scaled, or because in an all-to-all
/// in place every block lies where another one will arrive.
fn is_staged(call: &Call, buffers: &Buffers<'_>) -> bool {
    let scaled = call.collective.folds() && matches!(call.op, Op::PreMulSum(_));
    let in_place = matches!(buffers, Buffers::InPlace(_));
    scaled || (in_place && call.collective == Collective::AllToAll)
}

/// Scratch memory for a plan.
fn enough(scratch: &mut Vec<u64>, plan: &Plan) -> *mut u8 {
    let words = plan.scratch_bytes.div_ceil(8) as usize;
    if scratch.len() < words {
        scratch.resize(words, 0);
    }
    scratch.as_mut_ptr().cast()
}

/// Memory for a copy of an input. It stays as long as the longest was.
fn staged(staging: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if staging.len() < bytes {
        // Anew, since nothing is to be kept of what was there.
        *staging = Vec::new();
        *staging = vec![0; bytes];
    }
    &mut staging[..bytes]
}

/// A group of messages as it is named in errors, by the ranks of the world.
fn messages_name(messages: &[Message], members: &[u32]) -> String {
    let list: Vec<String> = messages.iter().map(|message| message.words(members)).collect();
    list.join(", ")
}

/// Make booleans of bytes: what a peer sent must not become a `bool` that is neither.
///
/// # Safety
///
/// `count` bytes at `start` can be read and written.
unsafe fn settle_bools(start: *mut u8, count: usize) {
    if count > 0 {
        // SAFETY: the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, count) };
        bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is copied in is written anyway, so it is not cleared each time.
    #[test]
    fn staging_that_was_long_enough_before_is_handed_out_as_it_is() {
        let mut staging = Vec::new();
        assert_eq!(staged(&mut staging, 8), [0; 8]);
        staged(&mut staging, 8).fill(7);
        assert_eq!(staged(&mut staging, 3), [7; 3]);
        assert_eq!(staged(&mut staging, 8), [7; 8], "after a shorter one");
        assert_eq!(staged(&mut staging, 9).len(), 9);
    }
}
