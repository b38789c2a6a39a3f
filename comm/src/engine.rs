//! What runs calls: the wires of one communicator, the plans it has made, and the way it waits.

use std::sync::Arc;
use std::time::Instant;

use brigade_schedule::program;
use brigade_transports::{Endpoint, TransportError};

use crate::call::{Buffers, Call};
use crate::header::Header;
use crate::kernels;
use crate::plan::{Channel, Place, Plan, link, link_messages};
use crate::reduction::Reduction;
use crate::run::{Memory, Poll, Run, Stop, Wires};
use crate::select::Selector;
use crate::wait::{Patience, Standstill, Watch};
use crate::{Dtype, Error, Op, Settings};

/// How many plans are kept. A training step repeats a few calls; beyond that the oldest goes.
const PLANS_MAX: usize = 64;

/// One communicator's machinery, used by one thread at a time.
pub(crate) struct Engine {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) group: u64,
    pub(crate) settings: Arc<Settings>,
    pub(crate) endpoints: Vec<Box<dyn Endpoint>>,
    pub(crate) transport_names: Vec<&'static str>,
    /// Which endpoint serves each member.
    pub(crate) routes: Vec<Option<usize>>,
    pub(crate) selector: Selector,
    pub(crate) watch: Watch,
    pub(crate) patience: Patience,
    wires: Wires,
    plans: Vec<Prepared>,
    next_plan: usize,
    last_plan: usize,
    run: Run,
    sequence: u32,
    scratch: Vec<u64>,
    staging: Vec<u8>,
    pub(crate) sent_bytes: u64,
    /// The error after which this communicator is of no more use.
    broken: Option<Error>,
}

/// A plan and the call it was made for.
struct Prepared {
    call: Call,
    in_place: bool,
    plan: Plan,
    name: String,
}

/// Everything a new engine is given.
pub(crate) struct Parts {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) group: u64,
    pub(crate) settings: Arc<Settings>,
    pub(crate) endpoints: Vec<Box<dyn Endpoint>>,
    pub(crate) transport_names: Vec<&'static str>,
    pub(crate) routes: Vec<Option<usize>>,
    pub(crate) selector: Selector,
    pub(crate) watch: Watch,
    pub(crate) patience: Patience,
}

/// One message of a group of sends and receives.
pub(crate) struct Message {
    pub(crate) channel: Channel,
    pub(crate) place: Place,
    pub(crate) bytes: u64,
}

impl Engine {
    pub(crate) fn new(parts: Parts) -> Self {
        let mut wires = Wires::default();
        wires.to.resize_with(parts.ranks as usize, || None);
        wires.from.resize_with(parts.ranks as usize, || None);
        Self {
            rank: parts.rank,
            ranks: parts.ranks,
            group: parts.group,
            settings: parts.settings,
            endpoints: parts.endpoints,
            transport_names: parts.transport_names,
            routes: parts.routes,
            selector: parts.selector,
            watch: parts.watch,
            patience: parts.patience,
            wires,
            plans: Vec::new(),
            next_plan: 0,
            last_plan: 0,
            run: Run::default(),
            sequence: 0,
            scratch: Vec::new(),
            staging: Vec::new(),
            sent_bytes: 0,
            broken: None,
        }
    }

    /// Carry out one call, from the first byte to the last.
    pub(crate) fn call(&mut self, call: &Call, mut buffers: Buffers<'_>) -> Result<(), Error> {
        call.validate(self.ranks)?;
        let memory = check_buffers(call, self.ranks, self.rank, &mut buffers)?;
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if let Some(error) = self.watch.stopped() {
            return Err(self.broken.insert(error).clone());
        }
        let in_place = matches!(buffers, Buffers::InPlace(_));
        // If a user's operator panics, wires are left in the middle of a message.
        self.broken = Some(Error::invalid(format!("an operator panicked during {call}")));
        let outcome = self.call_checked(call, memory, in_place);
        self.broken = outcome.clone().err().filter(|error| !error.is_recoverable());
        outcome
    }

    fn call_checked(
        &mut self,
        call: &Call,
        mut memory: CallMemory,
        mut in_place: bool,
    ) -> Result<(), Error> {
        if self.is_staged(call, in_place) {
            // SAFETY: the memory was checked against the call.
            unsafe { self.stage(call, &mut memory) };
            in_place = false;
        }
        let index = self.prepare(call, in_place)?;
        self.sequence = self.sequence.wrapping_add(1);
        let scratch = self.plans[index].plan.scratch_bytes.div_ceil(8) as usize;
        if self.scratch.len() < scratch {
            self.scratch.resize(scratch, 0);
        }
        let run_memory = Memory {
            input: memory.input,
            output: if in_place { memory.input.cast_mut() } else { memory.output },
            scratch: self.scratch.as_mut_ptr().cast(),
        };
        let reduction = if call.collective.folds() {
            Reduction::of(call.dtype, &call.op)
        } else {
            Reduction::None
        };
        self.drive(index, run_memory, &reduction)?;
        self.sent_bytes += self.plans[index].plan.sent_bytes;
        if call.collective.folds() && matches!(call.op, Op::Avg) && memory.output_elems > 0 {
            let divide = kernels::divide(call.dtype).expect("validated: the type can be averaged");
            // SAFETY: the output has so many elements and is ours for the length of the call.
            unsafe { divide(memory.output, memory.output_elems, f64::from(self.ranks)) };
        }
        Ok(())
    }

    /// Whether the input must be copied before the call: to be scaled, or because in an all-to-all
    /// in place every block lies where another one will arrive.
    fn is_staged(&self, call: &Call, in_place: bool) -> bool {
        let scaled = call.collective.folds() && matches!(call.op, Op::PreMulSum(_));
        scaled || (in_place && call.collective == brigade_schedule::Collective::AllToAll)
    }

    /// # Safety
    ///
    /// `memory` is the memory of `call`, checked.
    unsafe fn stage(&mut self, call: &Call, memory: &mut CallMemory) {
        let bytes = memory.input_elems * call.dtype.size();
        self.staging.resize(bytes, 0);
        // SAFETY: the input can be read for so many bytes, and staging is ours.
        unsafe {
            std::ptr::copy_nonoverlapping(memory.input_start, self.staging.as_mut_ptr(), bytes);
            if let Op::PreMulSum(factor) = call.op {
                let scale = kernels::premultiply(call.dtype).expect("validated: it can be scaled");
                scale(self.staging.as_mut_ptr(), memory.input_elems, factor);
            }
        }
        memory.input = self.staging.as_ptr();
    }

    /// The plan for a call: one made before, or a new one.
    fn prepare(&mut self, call: &Call, in_place: bool) -> Result<usize, Error> {
        let known = |plan: &Prepared| plan.in_place == in_place && plan.call.shares_plan(call);
        if self.plans.get(self.last_plan).is_some_and(known) {
            return Ok(self.last_plan);
        }
        if let Some(index) = self.plans.iter().position(known) {
            self.last_plan = index;
            return Ok(index);
        }
        let algorithm = self.selector.choose(call, self.ranks, &self.settings)?;
        let program = program(call.collective, algorithm, self.ranks, self.rank)
            .ok_or_else(|| Error::invalid(format!("{algorithm} cannot do {call}")))?;
        let code = crate::select::code(algorithm);
        let header = Header::of_call(call, code, self.group);
        let plan = link(&program, call, header, self.settings.window_bytes, in_place)
            .map_err(|error| Error::invalid(format!("{call}: {error}")))?;
        self.open_wires(&plan).map_err(|error| self.failure(error, &call.to_string()))?;
        let name = format!("{call} by {algorithm}({})", self.ranks);
        let prepared = Prepared { call: call.clone(), in_place, plan, name };
        let index = self.next_plan;
        self.next_plan = (index + 1) % PLANS_MAX;
        if index < self.plans.len() {
            self.plans[index] = prepared;
        } else {
            self.plans.push(prepared);
        }
        Ok(index)
    }

    /// The algorithm that a call will use.
    pub(crate) fn algorithm(&self, call: &Call) -> Result<brigade_schedule::Algorithm, Error> {
        self.selector.choose(call, self.ranks, &self.settings)
    }

    fn open_wires(&mut self, plan: &Plan) -> Result<(), TransportError> {
        let deadline = Instant::now() + self.settings.join_timeout;
        for pump in &plan.pumps {
            let (Channel::To(peer) | Channel::From(peer)) = pump.channel else { continue };
            let index = peer as usize;
            let route = self.routes[index].expect("every member has a route");
            let endpoint = &mut self.endpoints[route];
            match pump.channel {
                Channel::To(_) if self.wires.to[index].is_none() => {
                    self.wires.to[index] = Some(endpoint.sender(index, deadline)?);
                }
                Channel::From(_) if self.wires.from[index].is_none() => {
                    self.wires.from[index] = Some(endpoint.receiver(index)?);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Run a prepared plan to its end.
    fn drive(&mut self, index: usize, memory: Memory, reduction: &Reduction) -> Result<(), Error> {
        let Prepared { plan, name, .. } = &self.plans[index];
        let numbered = plan.header.numbered(self.sequence);
        self.watch.history.note(&plan.header.numbered(self.sequence));
        self.run.start(plan, self.sequence);
        let (run, wires) = (&mut self.run, &mut self.wires);
        let mut waiting = self.patience.begin();
        loop {
            // SAFETY: the buffers were checked against the call that the plan was linked for, the
            // caller's borrow keeps them ours, and scratch is long enough.
            match unsafe { run.poll(plan, wires, &memory, reduction) } {
                Ok(Poll::Done) => return Ok(()),
                Ok(Poll::Moved) => waiting.moved(),
                Ok(Poll::Idle) if waiting.is_brief() => {}
                Ok(Poll::Idle) => {
                    for endpoint in &mut self.endpoints {
                        endpoint.doorbell().arm();
                    }
                    // SAFETY: as above.
                    let again = unsafe { run.poll(plan, wires, &memory, reduction) };
                    if !matches!(again, Ok(Poll::Idle)) {
                        for endpoint in &mut self.endpoints {
                            endpoint.doorbell().disarm();
                        }
                        match again {
                            Ok(Poll::Done) => return Ok(()),
                            Ok(_) => waiting.moved(),
                            Err(stop) => return Err(self.watch.judge(stop, name)),
                        }
                        continue;
                    }
                    waiting.sleep(&mut self.endpoints);
                    let place = Standstill { run, plan, name, header: &numbered };
                    self.watch.look_around(&mut waiting, &mut self.endpoints, &place)?;
                }
                Err(stop) => return Err(self.watch.judge(stop, name)),
            }
        }
    }

    /// Carry out sends and receives that may all be in flight at once.
    ///
    /// # Safety
    ///
    /// Every place is an absolute address in `Space::Input` (sends) or `Space::Output` (receives),
    /// good for its bytes until this returns; no receive overlaps another message.
    pub(crate) unsafe fn messages(
        &mut self,
        messages: &[Message],
        dtype: Dtype,
        name: &str,
    ) -> Result<(), Error> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        if let Some(error) = self.watch.stopped() {
            return Err(self.broken.insert(error).clone());
        }
        let list: Vec<_> = messages.iter().map(|m| (m.channel, m.place, m.bytes)).collect();
        let header = Header::of_message(dtype, self.group);
        let plan = link_messages(&list, header, dtype.size());
        self.open_wires(&plan).map_err(|error| self.failure(error, name))?;
        let call = Call::moving(brigade_schedule::Collective::Barrier, dtype, 0);
        let prepared = Prepared { call, in_place: false, plan, name: name.to_owned() };
        // The list of plans lends a place for the length of the call; a message plan is never found
        // again, because it holds addresses.
        self.plans.push(prepared);
        let index = self.plans.len() - 1;
        let null = std::ptr::null_mut();
        let memory = Memory { input: null, output: null, scratch: null };
        let sequence = std::mem::take(&mut self.sequence);
        let outcome = self.drive(index, memory, &Reduction::None);
        self.sequence = sequence;
        let plan = self.plans.pop().expect("just pushed").plan;
        self.sent_bytes += plan.sent_bytes;
        outcome.inspect_err(|error| self.broken = Some(error.clone()))
    }

    fn failure(&self, error: TransportError, during: &str) -> Error {
        self.watch.judge(Stop::Wire(error), during)
    }
}

/// The memory of one call, as addresses.
struct CallMemory {
    /// Where places of `Space::Input` count from.
    input: *const u8,
    /// The first byte of this rank's input.
    input_start: *const u8,
    /// The first byte of this rank's output.
    output: *mut u8,
    input_elems: usize,
    output_elems: usize,
}

/// Refuse buffers that are too short or too long, with both numbers.
fn check_buffers(
    call: &Call,
    ranks: u32,
    rank: u32,
    buffers: &mut Buffers<'_>,
) -> Result<CallMemory, Error> {
    let (input_elems, output_elems) = call.buffer_elems(ranks, rank);
    let size = call.dtype.size();
    let wrong = |what: &str, got: usize, elems: usize| {
        Error::invalid(format!(
            "{call}: the {what} of rank {rank} has {got} bytes, but {elems} elements of {size} \
             bytes are {} bytes",
            elems * size
        ))
    };
    match buffers {
        Buffers::OutOfPlace { input, output } => {
            if input_elems > 0 && input.len() != input_elems * size {
                return Err(wrong("input", input.len(), input_elems));
            }
            if output_elems > 0 && output.len() != output_elems * size {
                return Err(wrong("output", output.len(), output_elems));
            }
            let input = input.as_ptr();
            let output = output.as_mut_ptr();
            Ok(CallMemory { input, input_start: input, output, input_elems, output_elems })
        }
        Buffers::InPlace(buffer) => {
            let elems = input_elems.max(output_elems);
            if buffer.len() != elems * size {
                return Err(wrong("buffer", buffer.len(), elems));
            }
            let start = buffer.as_mut_ptr();
            let own = own_block_offset(call, ranks, rank) * size;
            let (mut input_start, mut output) = (start, start);
            if input_elems < output_elems && input_elems > 0 {
                input_start = start.wrapping_add(own);
            } else if output_elems < input_elems && output_elems > 0 {
                output = start.wrapping_add(own);
            }
            Ok(CallMemory { input: start, input_start, output, input_elems, output_elems })
        }
    }
}

/// Elements in front of the rank's own block, in a buffer that holds one block of each rank.
fn own_block_offset(call: &Call, ranks: u32, rank: u32) -> usize {
    if call.collective.blocks(ranks) != ranks {
        return 0;
    }
    (0..rank).map(|block| call.block_elems(ranks, rank, block)).sum()
}
