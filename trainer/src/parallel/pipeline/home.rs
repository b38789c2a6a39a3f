//! Where the stages of a rank are at home: who computes them and has their state. The host does so
//! in `stages`, a device in `parallel::device`.

use super::dry::Span;
use super::run::Stages;
use crate::error::Error;
use crate::norms::ExactSum;
use crate::offload::DiskUse;
use crate::optim::Optimizer;
use crate::parallel::{Batch, Memory};
use crate::state::State;
use std::time::Duration;

/// The stages of one rank.
pub(crate) trait Home {
    /// Numbers that hosts hand over from stage to stage for each micro-batch.
    fn letter(&self) -> usize;

    /// The computations of one step over a batch, which is about to begin.
    fn pass<'s>(&'s mut self, batch: &'s Batch<'s>) -> Result<Box<dyn Stages + 's>, Error>;

    /// Behind them: when which was computed, where the host's clock does not tell, and then how
    /// long nothing was.
    fn measure(&mut self, _spans: &mut [Span]) -> Result<Option<Duration>, Error> {
        Ok(None)
    }

    /// Behind that: the summed loss of each micro-batch, on the rank that has the last stage.
    fn losses(&self) -> &[f64];

    /// Before any update: the squares of the gradients of all stages, of those tensors that are
    /// counted, and how long this waited for other ranks.
    fn squares(&mut self, counts: &dyn Fn(usize) -> bool) -> Result<(ExactSum, Duration), Error>;

    /// Move a stage's parameters against its gradients. How long this waited for other ranks, and
    /// for files.
    fn update(
        &mut self,
        stage: usize,
        optimizer: &mut Optimizer,
        lr: f32,
    ) -> Result<[Duration; 2], Error>;

    /// The stages' part of the training state goes to its place. Collective over ranks with other
    /// samples.
    fn gather(&mut self, state: &mut State) -> Result<(), Error>;

    /// Payload bytes that a step makes this rank send beside messages between stages and the loss.
    fn formula_bytes(&self) -> u64;

    /// What of the bytes that its groups have sent belongs to no step.
    fn meeting_bytes(&self) -> u64 {
        0
    }

    /// What this rank holds, without messages.
    fn memory(&self) -> Memory;

    /// What files have cost so far.
    fn disk_use(&self) -> DiskUse {
        DiskUse::default()
    }

    /// What they cost in a step, by formula.
    fn disk_formula(&self) -> DiskUse {
        DiskUse::default()
    }

    /// What computes, if it is not the host: one line.
    fn device(&self) -> Option<String> {
        None
    }

    /// A step has failed on this rank, which gives memory back next: have those hear of it first
    /// who might wait for this one there.
    fn seen(&self, _error: &Error) {}

    /// The end of all steps: nothing of this rank's is used by another any more.
    fn close(&mut self) -> Result<(), Error> {
        Ok(())
    }
}
