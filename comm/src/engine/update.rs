//! Sharded updates: a reduce-scatter, a function and an all-gather in one call.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use brigade_schedule::{Algorithm, Collective, Program};

use super::recent::key_of;
use super::{Engine, enough};
use crate::call::{Call, Counts};
use crate::codes::{code, number};
use crate::drive::Prepared;
use crate::extent::Memory;
use crate::header::{Header, Window};
use crate::inside::Inside;
use crate::kernels::{self, Scale};
use crate::middle::{Functions, Middle};
use crate::plan::{Phase, link_update};
use crate::reduction::Reduction;
use crate::{Dtype, Error, Op};

/// A sharded update, before it meets any memory.
#[derive(Clone, Debug)]
pub(crate) struct Shards {
    pub(crate) elems: usize,
    pub(crate) gradients: Dtype,
    pub(crate) weights: Dtype,
    pub(crate) op: Op,
}

/// The memory of an update, `elems` of each.
#[derive(Clone, Copy)]
pub(crate) struct UpdateMemory {
    pub(crate) gradients: *mut u8,
    pub(crate) weights: *mut u8,
}

/// A plan and the updates that it serves.
pub(super) struct UpdateShape {
    elems: usize,
    gradients: Dtype,
    weights: Dtype,
    op_code: u8,
    reduction: Reduction,
    prepared: Prepared,
}

impl Shards {
    /// The elements of `rank`'s shard.
    pub(crate) fn shard(elems: usize, ranks: u32, rank: u32) -> Range<usize> {
        let edge = |rank: u32| (elems as u128 * u128::from(rank) / u128::from(ranks)) as usize;
        edge(rank)..edge(rank + 1)
    }

    fn key(&self) -> u32 {
        key_of((self.elems, self.gradients, self.weights, self.op.code()))
    }

    /// The function sees what has arrived as values, and not every byte is a boolean.
    fn check(&self) -> Result<(), Error> {
        match self.gradients == Dtype::Bool || self.weights == Dtype::Bool {
            true => Err(Error::invalid(format!("{self}: booleans are not updated"))),
            false => Ok(()),
        }
    }

    fn counts(&self, ranks: u32) -> Counts {
        if self.elems.is_multiple_of(ranks as usize) {
            return Counts::Even(self.elems / ranks as usize);
        }
        Counts::PerRank((0..ranks).map(|rank| Self::shard(self.elems, ranks, rank).len()).collect())
    }

    /// The two collectives that it is made of.
    fn phases(&self, ranks: u32) -> [Call; 2] {
        let counts = self.counts(ranks);
        let (dtype, op) = (self.gradients, self.op.clone());
        let scatter =
            Call { collective: Collective::ReduceScatter, dtype, op, counts: counts.clone() };
        let (dtype, op) = (self.weights, Op::Sum);
        [scatter, Call { collective: Collective::AllGather, dtype, op, counts }]
    }
}

impl fmt::Display for Shards {
    /// As it is named in errors: `sharded-update(f32 x 1000, avg, of bf16)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { elems, gradients, weights, op } = self;
        let (gradients, weights) = (gradients.name(), weights.name());
        write!(f, "sharded-update({gradients} x {elems}, {}, of {weights})", op.name())
    }
}

impl Engine {
    /// Fold gradients, let `middle` update this rank's shard of the weights, and gather all shards.
    ///
    /// # Safety
    ///
    /// `memory` holds `elems` elements of each type, which nothing else touches meanwhile.
    ///
    /// # Panics
    ///
    /// When the function or a user's operator does. The other ranks are told, and the communicator
    /// is broken.
    pub(crate) unsafe fn update(
        &mut self,
        shards: &Shards,
        memory: UpdateMemory,
        middle: &mut dyn Middle,
    ) -> Result<(), Box<Error>> {
        let known = self.find_update(shards);
        if known.is_none() {
            shards.check()?;
            let phases = shards.phases(self.ranks);
            phases.iter().try_for_each(|call| call.validate(self.ranks, self.rank))?;
        }
        self.admit()?;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let index = known.map_or_else(|| self.prepare_update(shards), Ok)?;
            // SAFETY: the caller's promise.
            unsafe { self.run_update(index, shards, memory, middle) }
        }));
        let outcome = outcome.unwrap_or_else(|panic| self.panicked(shards, panic));
        self.remember(outcome)
    }

    /// # Safety
    ///
    /// As for [`Engine::update`].
    unsafe fn run_update(
        &mut self,
        index: usize,
        shards: &Shards,
        memory: UpdateMemory,
        middle: &mut dyn Middle,
    ) -> Result<(), Box<Error>> {
        let UpdateMemory { gradients, weights } = memory;
        if let Op::PreMulSum(factor) = shards.op {
            let scale =
                kernels::premultiply(shards.gradients).expect("validated: it can be scaled");
            // SAFETY: so many elements, which are ours for the length of the call.
            unsafe { scale(gradients, shards.elems, factor) };
        }
        self.sequence += 1;
        let UpdateShape { reduction, prepared, .. } = &self.updates[index];
        let scratch = enough(&mut self.scratch, &prepared.plan);
        let memory = Memory { input: gradients, output: weights, scratch };
        let custom = matches!(shards.op, Op::Custom(_))
            .then(|| Reduction::of(&shards.phases(self.ranks)[0]));
        let is_average = matches!(shards.op, Op::Avg);
        let divide = is_average.then(|| kernels::divide(shards.gradients)).flatten();
        let ranks = f64::from(self.ranks);
        let mut averaging = Averaging { middle, divide, ranks, number: self.number };
        let reduction = custom.as_ref().unwrap_or(reduction);
        let mut functions = Functions { reduction, middle: Some(&mut averaging) };
        // SAFETY: the caller vouches for the memory, for which the plan was linked.
        unsafe { self.driver.drive(prepared, self.sequence, &memory, &mut functions)? };
        self.sent_bytes += prepared.plan.sent_bytes;
        Ok(())
    }

    fn find_update(&mut self, shards: &Shards) -> Option<usize> {
        let op_code = shards.op.code();
        self.updates.find(
            || shards.key(),
            |shape| {
                shape.elems == shards.elems
                    && shape.gradients == shards.gradients
                    && shape.weights == shards.weights
                    && shape.op_code == op_code
            },
        )
    }

    fn prepare_update(&mut self, shards: &Shards) -> Result<usize, Box<Error>> {
        let calls = shards.phases(self.ranks);
        let (scatterer, scatter) = self.phase(&calls[0], None)?;
        let (gatherer, gather) = self.phase(&calls[1], number(code(scatterer)))?;
        let window = Window::at_most(self.settings.window_bytes);
        let header = Header::of_call(&calls[0], code(scatterer), self.group, window)
            .with_update(shards.weights, code(gatherer));
        let [scatter, gather] = [(&scatter, &calls[0]), (&gather, &calls[1])]
            .map(|(program, call)| Phase { program, call });
        let plan = link_update(scatter, gather, header, window.bytes())
            .map_err(|error| Error::invalid(format!("{shards}: {error}")))?;
        let name = format!("{shards} by {scatterer} and {gatherer}({})", self.ranks);
        let prepared = Prepared { plan, name };
        self.driver.open_wires(&prepared, self.settings.join_patience())?;
        let bytes = size_of::<UpdateShape>() + prepared.heap_bytes();
        let shape = UpdateShape {
            elems: shards.elems,
            gradients: shards.gradients,
            weights: shards.weights,
            op_code: shards.op.code(),
            reduction: Reduction::built_in(&calls[0]),
            prepared,
        };
        Ok(self.updates.insert(shards.key(), bytes, shape))
    }

    /// The algorithm and the program of one half. If the other half's algorithm has a number, this
    /// one has the same or none: a header has room for one.
    fn phase(&self, call: &Call, others: Option<u16>) -> Result<(Algorithm, Program), Box<Error>> {
        let may = |algorithm| match (number(code(algorithm)), others) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        };
        let choice = self.selector.choose_among(call, self.ranks, &self.settings, may)?;
        let algorithm = choice.algorithm;
        let program = self.selector.program(call, algorithm, (self.rank, self.ranks))?;
        Ok((algorithm, program))
    }
}

/// Makes a mean of what was summed, before the caller's function sees it, which runs inside the
/// call.
struct Averaging<'a> {
    middle: &'a mut dyn Middle,
    divide: Option<Scale>,
    ranks: f64,
    /// The communicator's.
    number: u64,
}

impl Middle for Averaging<'_> {
    fn is_ready(&mut self, first: usize, elems: usize) -> bool {
        let _inside = Inside::call_of(self.number);
        self.middle.is_ready(first, elems)
    }

    unsafe fn update(&mut self, first: usize, elems: usize, gradients: *mut u8, weights: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(divide) = self.divide {
                divide(gradients, elems, self.ranks);
            }
            let _inside = Inside::call_of(self.number);
            self.middle.update(first, elems, gradients, weights);
        }
    }
}
