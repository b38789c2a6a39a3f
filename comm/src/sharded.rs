//! The collective with a function in its middle: gradients in, every rank's shard of the weights
//! updated, weights out.
//!
//! What a ZeRO optimizer does with three calls is one here, and worked through in windows: while
//! the function updates one part of the shard, the gradients of the next are on their way, and so
//! are the weights of the last. The function may say that it is not ready, because the optimizer's
//! state still comes from a disk.

use std::ops::Range;

use crate::communicator::Communicator;
use crate::dtype::Element;
use crate::engine::{Shards, UpdateMemory};
use crate::middle::Middle;
use crate::{Error, Op};

/// What turns folded gradients into new weights.
///
/// A function of a range, gradients and weights is one, which is always ready.
///
/// Both functions run inside the call, on the thread that made it. Another call on the same
/// communicator, also one that is only started, would wait for itself, so there it is
/// [`Error::Invalid`]. They may look at the communicator (its rank, its counters, its algorithms),
/// abort it, and make calls on other communicators as long as all ranks of those do; an update
/// inside such a call may make none at all. What nobody can refuse is to wait for another thread
/// that calls this communicator: that never ends.
pub trait ShardUpdate<G, W> {
    /// Whether this part of the shard can be updated now. If not, other parts of the call go on,
    /// and it is asked again at least every millisecond.
    fn is_ready(&mut self, part: Range<usize>) -> bool {
        let _always = part;
        true
    }

    /// Update one part of the rank's shard: `weights`, by `gradients` that are folded over all
    /// ranks. `part` counts from the beginning of the shard. Each part comes once, in order.
    fn update(&mut self, part: Range<usize>, gradients: &mut [G], weights: &mut [W]);
}

impl<G, W, F: FnMut(Range<usize>, &mut [G], &mut [W])> ShardUpdate<G, W> for F {
    fn update(&mut self, part: Range<usize>, gradients: &mut [G], weights: &mut [W]) {
        self(part, gradients, weights);
    }
}

impl Communicator {
    /// Which of `elems` elements this rank updates in [`Communicator::sharded_update`].
    pub fn shard(&self, elems: usize) -> Range<usize> {
        Shards::shard(elems, self.size() as u32, self.rank() as u32)
    }

    /// Fold `gradients` over all ranks, let `update` change this rank's shard of `weights`, and
    /// give every rank the weights of all: `[elems]` each, on every rank. Of the weights only the
    /// rank's own shard is read. Of the gradients the shard comes out folded, the rest as it may.
    ///
    /// Comes to the same, bit by bit, as a reduce-scatter, the update and an all-gather.
    ///
    /// Cost: (g + w)(P-1)/P bytes sent in 2(P-1) steps, for g bytes of gradients and w of weights.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an operator that has no meaning for `G`, booleans, or buffers of
    /// unequal lengths; otherwise what ended the group.
    ///
    /// # Panics
    ///
    /// When `update` does. The other ranks are told, and the group has ended.
    ///
    /// ```
    /// # use brigade_comm::*;
    /// # at_once(Communicator::local_world(2, &Settings::default()).unwrap(), |comm| {
    /// let (mut gradients, mut weights) = ([1.0; 5], [10.0; 5]);
    /// let mut descend = |_part, gradients: &mut [f32], weights: &mut [f32]| {
    ///     for (weight, gradient) in weights.iter_mut().zip(gradients) {
    ///         *weight -= 0.5 * *gradient;
    ///     }
    /// };
    /// comm.sharded_update(&mut gradients, Op::Sum, &mut weights, &mut descend)?;
    /// assert_eq!(weights, [9.0; 5]);
    /// # Ok::<(), Error>(()) }).unwrap().into_iter().for_each(Result::unwrap);
    /// ```
    pub fn sharded_update<G: Element, W: Element>(
        &self,
        gradients: &mut [G],
        op: Op,
        weights: &mut [W],
        update: &mut dyn ShardUpdate<G, W>,
    ) -> Result<(), Error> {
        let shards = Shards { elems: gradients.len(), gradients: G::DTYPE, weights: W::DTYPE, op };
        if weights.len() != gradients.len() {
            return Err(Error::invalid(format!(
                "{shards}: {} gradients, but {} weights",
                gradients.len(),
                weights.len()
            )));
        }
        let memory = UpdateMemory {
            gradients: gradients.as_mut_ptr().cast(),
            weights: weights.as_mut_ptr().cast(),
        };
        let mut typed = Typed { update };
        let shared = self.shared();
        shared.drain()?;
        let mut engine = shared.lock()?;
        // SAFETY: two slices of the types and the length that the call names, borrowed until it is
        // over.
        let outcome = unsafe { engine.update(&shards, memory, &mut typed) };
        shared.count(&engine, outcome.is_ok());
        outcome.map_err(|error| *error)
    }
}

/// An update that knows its types.
struct Typed<'a, G, W> {
    update: &'a mut dyn ShardUpdate<G, W>,
}

impl<G: Element, W: Element> Middle for Typed<'_, G, W> {
    fn is_ready(&mut self, first: usize, elems: usize) -> bool {
        self.update.is_ready(first..first + elems)
    }

    unsafe fn update(&mut self, first: usize, elems: usize, gradients: *mut u8, weights: *mut u8) {
        // SAFETY: the caller vouches for so many elements of either type, and for nobody else
        // touching them. They lie in slices of these types, so they are aligned; any bits that
        // arrive are values, for booleans were refused.
        let (gradients, weights) = unsafe {
            (
                std::slice::from_raw_parts_mut(gradients.cast::<G>(), elems),
                std::slice::from_raw_parts_mut(weights.cast::<W>(), elems),
            )
        };
        self.update.update(first..first + elems, gradients, weights);
    }
}
