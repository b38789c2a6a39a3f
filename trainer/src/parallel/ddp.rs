//! Data-parallel training (Li et al. 2020): every rank holds the model, gradients are summed in
//! buckets.
//!
//! A bucket starts its all-reduce the moment backward says that it is final, on the communicator's
//! own thread, while backward goes on with the layers below. Gradients are reduced where they lie.
//!
//! Cost: 2 (R − 1) / R · n elements sent per rank and step, no memory beyond the gradients.

use super::buckets::Buckets;
use super::formula::call_bytes;
use super::{Backward, Strategy, gather_losses, loss_bytes};
use crate::error::Error;
use crate::model::GradientSync;
use brigade_comm::{Communicator, Dtype, Op, Scope, Work};
use brigade_schedule::Collective;
use std::time::{Duration, Instant};

/// One lane per rank, one all-reduce per bucket.
pub struct Ddp<'a> {
    comm: &'a Communicator,
    /// [params]
    grads: Vec<f32>,
    buckets: Buckets,
    formula_bytes: u64,
}

impl<'a> Ddp<'a> {
    /// Room for the gradients of `params` parameters, sent in buckets of at most `bucket` elements.
    ///
    /// Errors: those of `comm`, if it cannot do an all-reduce.
    pub fn new(comm: &'a Communicator, params: usize, bucket: usize) -> Result<Ddp<'a>, Error> {
        let buckets = Buckets::new(params, bucket);
        let mut formula_bytes = loss_bytes(comm, 1)?;
        for bucket in buckets.all() {
            formula_bytes += call_bytes(comm, Collective::AllReduce, Dtype::F32, bucket.len())?;
        }
        Ok(Ddp { comm, grads: vec![0.0; params], buckets, formula_bytes })
    }
}

impl Strategy for Ddp<'_> {
    fn reduce(&mut self, slot: usize, backward: &mut Backward<'_>) -> Result<Duration, Error> {
        assert_eq!(slot, 0, "a rank computes its part of the batch as one lane");
        let Ddp { comm, grads, buckets, .. } = self;
        comm.scope(|scope| {
            let mut sync = Sending { scope, open: grads, buckets: *buckets, works: Vec::new() };
            backward(&mut sync)?;
            let from = Instant::now();
            for work in sync.works {
                work.wait()?;
            }
            Ok(from.elapsed())
        })?
    }

    fn gradients(&self) -> &[f32] {
        &self.grads
    }

    fn loss(&mut self, mine: &[f64]) -> Result<f64, Error> {
        gather_losses(self.comm, mine)
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn held_bytes(&self) -> u64 {
        4 * self.grads.len() as u64
    }

    fn sent_bytes(&self) -> u64 {
        self.comm.stats().sent_bytes
    }
}

/// The gradients of a running backward: a prefix that is still open, and buckets under way.
struct Sending<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    open: &'scope mut [f32],
    buckets: Buckets,
    works: Vec<Work<'scope>>,
}

impl GradientSync for Sending<'_, '_> {
    fn open(&mut self) -> &mut [f32] {
        self.open
    }

    fn ready(&mut self, start: usize) -> Result<(), Error> {
        while let Some(bucket) = self.buckets.next(self.open.len(), start) {
            let (open, bucket) = std::mem::take(&mut self.open).split_at_mut(bucket.start);
            self.open = open;
            self.works.push(self.scope.all_reduce(bucket, Op::Sum)?);
        }
        Ok(())
    }
}
