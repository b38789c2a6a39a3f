//! Calls that were made before, lowered once; and the memory that they name, asked about once.
//!
//! `lower` makes steps or packets of a call, `link` hops; both are pure. `slotted` is what comes of
//! the latter, `facts` what they are told of the group.

pub(super) mod facts;
mod link;
mod lower;
pub(super) mod slotted;

use std::cell::OnceCell;

use brigade_cuda::{Context, CudaError, Place, Whereabouts};
use brigade_schedule::Collective;

use super::exchange::trouble;
use super::kernels::Folding;
use super::layout::{Direct, Packets, Part, RANKS, Step};
use super::way::Way;
use crate::call::{Call, Counts};
use crate::extent::Extent;
use crate::{Dtype, Error, Op};
use facts::Facts;
use lower::{DirectSteps, Lowered, lower, lower_direct, signature};
use slotted::Slotted;

/// How many calls are kept; beyond that the oldest goes.
const PLANS_MAX: usize = 64;
/// How many ranges of memory are remembered.
const RANGES_MAX: usize = 32;

/// One kind of call, ready.
pub(super) struct Plan {
    collective: Collective,
    dtype: Dtype,
    op_code: u8,
    factor: f64,
    counts: Counts,
    in_place: bool,
    /// Elements of input and output.
    pub(super) elems: (usize, usize),
    pub(super) folding: Folding,
    pub(super) signature: u32,
    pub(super) ready: Ready,
}

/// What is enqueued.
pub(super) enum Ready {
    /// The kernel `packets`, but for the addresses.
    Packets {
        argument: Box<Packets>,
        /// Threads that have something to do, in whole warps.
        threads: u32,
    },
    /// The kernel `direct`, but for the addresses.
    Direct { argument: Box<Direct>, steps: DirectSteps },
    /// The kernel `linked`.
    Linked(Slotted),
    /// Nothing: the host does it.
    Staged,
}

/// The calls of one group.
#[derive(Default)]
pub(super) struct Plans {
    plans: Vec<Plan>,
    next: usize,
    last: usize,
}

impl Plans {
    /// The plan made before for such calls.
    pub(super) fn find(&mut self, call: &Call, in_place: bool) -> Option<usize> {
        let op_code = call.op.code();
        let known = |plan: &Plan| {
            plan.in_place == in_place
                && plan.collective == call.collective
                && plan.dtype == call.dtype
                && plan.op_code == op_code
                && plan.factor.to_bits() == factor(&call.op).to_bits()
                && plan.counts == call.counts
        };
        if self.plans.get(self.last).is_some_and(known) {
            return Some(self.last);
        }
        self.last = self.plans.iter().position(known)?;
        Some(self.last)
    }

    pub(super) fn at(&self, index: usize) -> &Plan {
        &self.plans[index]
    }

    pub(super) fn keep(&mut self, plan: Plan) -> usize {
        let index = self.next;
        self.next = (index + 1) % PLANS_MAX;
        if index < self.plans.len() {
            self.plans[index] = plan;
        } else {
            self.plans.push(plan);
        }
        index
    }
}

impl Plan {
    /// The plan for a call; refuses one that makes no sense.
    pub(super) fn new(call: &Call, in_place: bool, facts: &Facts<'_>) -> Result<Self, Error> {
        Extent::of(call, facts.ranks, facts.rank)?;
        let folding = match call.collective.folds() {
            true => Folding::by(call.dtype, &call.op),
            false => Some(Folding::NONE),
        };
        let mut signature = signature(call);
        let ready = match (folding, facts.way) {
            (None, _) | (_, Way::Staged | Way::ByNodes) => Ready::Staged,
            (Some(_), Way::Together) => match lower(call, facts.ranks, facts.rank, facts.blocks) {
                Lowered::Packets(parts) => packets(call, signature, facts, &parts),
                Lowered::Direct(steps) => direct(call, signature, facts, steps),
            },
            (Some(_), Way::Linked) => match lower(call, facts.ranks, facts.rank, facts.blocks) {
                Lowered::Packets(parts) => packets(call, signature, facts, &parts),
                Lowered::Direct(steps) => match Slotted::new(call, facts)? {
                    Some(slotted) => Ready::Linked(slotted),
                    None => direct(call, signature, facts, steps),
                },
            },
            (Some(_), Way::Met) => {
                let steps = lower_direct(call, facts.ranks, facts.rank, facts.blocks);
                direct(call, signature, facts, steps)
            }
        };
        if let Ready::Linked(slotted) = &ready {
            signature = slotted.signature;
        }
        Ok(Self {
            collective: call.collective,
            dtype: call.dtype,
            op_code: call.op.code(),
            factor: factor(&call.op),
            counts: call.counts.clone(),
            in_place,
            elems: call.buffer_elems(facts.ranks, facts.rank),
            folding: folding.unwrap_or(Folding::NONE),
            signature,
            ready,
        })
    }

    /// Bytes of a copy of the input that the call needs: an all-to-all in place would write over
    /// what is still to be read, and a schedule folds what was multiplied before.
    pub(super) fn copied_bytes(&self) -> usize {
        let overlaps = self.in_place && self.collective == Collective::AllToAll;
        let is_copied = match self.ready {
            Ready::Direct { .. } => overlaps,
            Ready::Linked(_) => {
                let scales = self.op_code == Op::PreMulSum(1.0).code();
                overlaps || (scales && self.collective.folds())
            }
            Ready::Packets { .. } | Ready::Staged => false,
        };
        if is_copied { self.elems.0 * self.dtype.size() } else { 0 }
    }

    /// Bytes of the group's memory that the call needs: a copy, and scratch behind it.
    pub(super) fn room_bytes(&self) -> usize {
        let copied = self.copied_bytes();
        match &self.ready {
            Ready::Linked(slotted) => copied.next_multiple_of(256) + slotted.scratch_bytes(),
            _ => copied,
        }
    }

    /// The call in words.
    pub(super) fn name(&self, call: &Call) -> String {
        match &self.ready {
            Ready::Linked(slotted) => format!("{call} by {}", slotted.algorithm),
            _ => call.to_string(),
        }
    }
}

pub(super) fn factor(op: &Op) -> f64 {
    match op {
        Op::PreMulSum(factor) => *factor,
        _ => 1.0,
    }
}

fn packets(call: &Call, signature: u32, facts: &Facts<'_>, parts: &[Part]) -> Ready {
    let mut part = [Part::default(); RANKS];
    part[..parts.len()].copy_from_slice(parts);
    let bytes = parts.iter().flat_map(|part| [part.send_bytes, part.take_bytes]).max();
    let threads = (bytes.unwrap_or(0) / 8 + 2).next_multiple_of(32);
    let argument = Box::new(Packets {
        group: *facts.group,
        halves: *facts.packets,
        input: 0,
        output: 0,
        signature,
        op: u32::from(call.op.code()),
        folds: u32::from(call.collective.folds()),
        orders: u32::from(call.collective == Collective::Barrier),
        factor: factor(&call.op),
        part,
    });
    Ready::Packets { argument, threads }
}

fn direct(call: &Call, signature: u32, facts: &Facts<'_>, steps: DirectSteps) -> Ready {
    let mut step = [Step::NONE; RANKS];
    step[..steps.steps.len()].copy_from_slice(&steps.steps);
    let argument = Box::new(Direct {
        group: *facts.group,
        how: match facts.way {
            Way::Together if facts.is_one_device => Direct::HERE,
            Way::Together => 0,
            _ => Direct::MET,
        },
        signature,
        op: u32::from(call.op.code()),
        steps: steps.steps.len() as u32,
        factor: factor(&call.op),
        input: [0; RANKS],
        output: [0; RANKS],
        step,
    });
    Ready::Direct { argument, steps }
}

/// Memory that was asked about.
#[derive(Default)]
pub(super) struct Ranges {
    known: Vec<Whereabouts>,
    next: usize,
    /// The other devices that read what lies there, once they were asked for.
    readers: OnceCell<Vec<Context>>,
}

impl Ranges {
    /// Refuse so many bytes at an address that the device of this context cannot use, or, being on
    /// a device, must not for a reason of the caller's. Asks the driver, and the caller, once for
    /// each allocation, but of pinned memory each time.
    pub(super) fn of(
        &mut self,
        context: &Context,
        what: &str,
        (address, bytes): (u64, usize),
        refused: impl FnOnce(&OnceCell<Vec<Context>>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let around = |range: &&Whereabouts| {
            // Of pinned memory a driver may not tell how long it is.
            if range.place == Place::Pinned && range.bytes == 0 {
                return true;
            }
            let room = address
                .checked_sub(range.start)
                .and_then(|at| range.bytes.checked_sub(at as usize));
            room.is_some_and(|room| bytes <= room)
        };
        if self.known.iter().any(|range| around(&range)) {
            return Ok(());
        }
        let asked = |error: CudaError| trouble("asking where memory lies", &error);
        let _here = context.enter().map_err(asked)?;
        let range = context.device().cuda.where_is(address).map_err(asked)?;
        let ordinal = context.device().ordinal;
        match range.place {
            Place::Host => Err(Error::invalid(format!(
                "the {what} at {address:#x} lies in ordinary memory of the host; a call in a \
                 stream takes memory of a device, or pinned memory"
            ))),
            Place::Device(other) if other != ordinal => Err(Error::invalid(format!(
                "the {what} at {address:#x} lies on device {other}, but this rank's is {ordinal}"
            ))),
            _ if !around(&&range) => Err(Error::invalid(format!(
                "the {what} at {address:#x} should have {bytes} bytes, but its allocation ends \
                 {} bytes from there",
                range.start + range.bytes as u64 - address
            ))),
            // Nothing tells when it is let go where it lies, and is the host's alone again. What
            // devices reach elsewhere they were asked to, as under WSL, is refused by name.
            Place::Pinned => match context.address_of_pinned(address) {
                Ok(there) if there != address => Err(Error::invalid(format!(
                    "the {what} at {address:#x} lies in pinned memory that devices reach at \
                     {there:#x} (cuMemHostGetDevicePointer): pass that address"
                ))),
                _ => Ok(()),
            },
            _ => {
                if range.place != Place::Managed {
                    refused(&self.readers)?;
                }
                let end = |range: &Whereabouts| range.start + range.bytes as u64;
                // Whatever was known of these addresses is gone.
                self.known.retain(|old| end(old) <= range.start || end(&range) <= old.start);
                if self.known.len() < RANGES_MAX {
                    self.known.push(range);
                } else {
                    self.known[self.next] = range;
                    self.next = (self.next + 1) % RANGES_MAX;
                }
                Ok(())
            }
        }
    }
}
