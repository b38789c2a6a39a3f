//! The turn within the rank: merges, copies, and the caller's function in the middle of a call.

use std::slice;

use brigade_transports::copy_past_caches;

use super::{Turn, WITHIN_BYTES, Within};
use crate::plan::{Kind, Step};

impl Turn<'_, '_> {
    /// Do what dependencies allow, a bounded part of it.
    ///
    /// # Safety
    ///
    /// As for [`Run::poll`](super::Run::poll).
    pub(super) unsafe fn within(&mut self) -> Within {
        let mut outcome = Within::Idle;
        while self.position.step != self.pump.last {
            let step = self.plan.steps[self.position.step as usize];
            let Some(allowed) = self.allowed(&step) else { return outcome };
            let done = self.progress[self.position.step as usize];
            let now = if let Kind::Update { first, elems } = step.kind {
                if allowed < step.bytes {
                    return outcome;
                }
                // SAFETY: the caller vouches for memory and plan.
                if !unsafe { self.update(&step, first, elems) } {
                    return if matches!(outcome, Within::Moved) { outcome } else { Within::Awaits };
                }
                step.bytes
            } else {
                // SAFETY: likewise.
                unsafe { self.merge_or_copy(&step, done, allowed) }
            };
            if now > 0 {
                outcome = Within::Moved;
            }
            self.progress[self.position.step as usize] = done + now;
            if done + now < step.bytes {
                return outcome;
            }
            outcome = Within::Moved;
            self.complete();
            if matches!(step.kind, Kind::Update { .. }) {
                // The wires may have waited for that.
                return outcome;
            }
        }
        outcome
    }

    /// Some of the bytes `done..allowed` of a merge or a copy; how many.
    ///
    /// # Safety
    ///
    /// As for [`Run::poll`](super::Run::poll).
    unsafe fn merge_or_copy(&self, step: &Step, done: u64, allowed: u64) -> u64 {
        let granule = self.plan.elem_bytes as u64;
        let now = (allowed - done).min(WITHIN_BYTES) / granule * granule;
        // SAFETY: both places are `bytes` long and dependencies have settled `allowed` of them.
        unsafe {
            let at = |place| self.memory.at(place).add(done as usize);
            let (source, target) = (at(step.source).cast_const(), at(step.target));
            if let Kind::Merge { other } = step.kind {
                let count = (now / granule) as usize;
                self.functions.reduction.merge(at(other), source, target, count);
            } else if step.is_past_caches {
                let bytes = now as usize;
                let (source, target) = (
                    slice::from_raw_parts(source, bytes),
                    slice::from_raw_parts_mut(target, bytes),
                );
                copy_past_caches(source, target);
            } else {
                std::ptr::copy_nonoverlapping(source, target, now as usize);
            }
        }
        now
    }

    /// Let the caller's function update a part of its shard. Returns whether it was ready to.
    ///
    /// # Safety
    ///
    /// As for [`Run::poll`](super::Run::poll).
    unsafe fn update(&mut self, step: &Step, first: u64, elems: u64) -> bool {
        let middle = self.functions.middle.as_deref_mut();
        let middle = middle.expect("a plan with updates is run with a function");
        let (first, elems) = (first as usize, elems as usize);
        if !middle.is_ready(first, elems) {
            return false;
        }
        let (gradients, weights) = (self.memory.at(step.source), self.memory.at(step.target));
        // SAFETY: both hold so many elements, which nobody else touches now: all gradients have
        // arrived, and no weights have been sent.
        unsafe { middle.update(first, elems, gradients, weights) };
        true
    }
}
