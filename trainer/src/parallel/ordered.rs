//! Ordered mode: gradients of all lanes are added one by one in lane order, on every rank.
//!
//! An all-reduce adds the ranks' own sums, so its bits depend on how many ranks there are. Here
//! each rank gathers every lane's gradient and folds them itself: ((lane 0 + lane 1) + lane 2) +
//! ..., whatever the number of ranks. Lane `slot · R + r` belongs to rank r, so after each slot the
//! next R lanes in order are at hand and only a running sum is kept.
//!
//! Cost: lanes · (R − 1) / R · n elements sent per rank and step, against 2 (R − 1) / R · n for an
//! all-reduce; (R + 1) · n elements of memory more.

use super::buckets::Buckets;
use super::formula::call_bytes;
use super::{Backward, Strategy, gather_losses, loss_bytes};
use crate::error::Error;
use crate::kernels::Kernels;
use crate::model::{GradientSync, Local};
use brigade_comm::{Buffers, Call, Communicator, Dtype, Scope, Work};
use brigade_schedule::Collective;
use std::time::{Duration, Instant};

/// The fold over lanes, of one rank or of many.
pub struct Ordered<'a> {
    kernels: &'a dyn Kernels,
    comm: Option<&'a Communicator>,
    /// [params], of the lane whose backward runs.
    lane: Vec<f32>,
    /// Bucket by bucket, the lanes of one slot in rank order: [ranks × params], empty for one rank.
    gathered: Vec<f32>,
    /// [params], over the lanes so far.
    sum: Vec<f32>,
    buckets: Buckets,
    formula_bytes: u64,
}

impl<'a> Ordered<'a> {
    /// Room for the gradients of `params` parameters, sent in buckets of at most `bucket` elements,
    /// in steps of `slots` slots. Without a communicator all lanes are this process's own.
    ///
    /// Errors: those of `comm`, if it cannot do an all-gather.
    pub fn new(
        kernels: &'a dyn Kernels,
        comm: Option<&'a Communicator>,
        params: usize,
        bucket: usize,
        slots: usize,
    ) -> Result<Ordered<'a>, Error> {
        let buckets = Buckets::new(params, bucket);
        let mut formula_bytes = 0;
        if let Some(comm) = comm {
            for bucket in buckets.all() {
                let lane = call_bytes(comm, Collective::AllGather, Dtype::F32, bucket.len())?;
                formula_bytes += slots as u64 * lane;
            }
            formula_bytes += loss_bytes(comm, slots)?;
        }
        Ok(Ordered {
            kernels,
            comm,
            lane: vec![0.0; params],
            gathered: vec![0.0; comm.map_or(0, |comm| comm.size() * params)],
            sum: vec![0.0; params],
            buckets,
            formula_bytes,
        })
    }

    fn ranks(&self) -> usize {
        self.comm.map_or(1, Communicator::size)
    }

    /// Add the gathered lanes of a slot to the sum, in rank order.
    fn fold(&mut self, slot: usize) {
        let ranks = self.ranks();
        for bucket in self.buckets.all() {
            let lanes = &self.gathered[ranks * bucket.start..ranks * bucket.end];
            let sum = &mut self.sum[bucket.clone()];
            for (rank, lane) in lanes.chunks_exact(bucket.len()).enumerate() {
                add_lane(self.kernels, sum, lane, slot == 0 && rank == 0);
            }
        }
    }
}

impl Strategy for Ordered<'_> {
    fn reduce(&mut self, slot: usize, backward: &mut Backward<'_>) -> Result<Duration, Error> {
        let Some(comm) = self.comm else {
            backward(&mut Local(&mut self.lane))?;
            add_lane(self.kernels, &mut self.sum, &self.lane, slot == 0);
            return Ok(Duration::ZERO);
        };
        let (lane, gathered, buckets) = (&mut self.lane, &mut self.gathered, self.buckets);
        let ended = comm.scope(|scope| -> Result<Instant, Error> {
            let ranks = comm.size();
            let mut sync =
                Gathering { scope, ranks, open: lane, room: gathered, buckets, works: Vec::new() };
            backward(&mut sync)?;
            let ended = Instant::now();
            for work in sync.works {
                work.wait()?;
            }
            Ok(ended)
        })??;
        self.fold(slot);
        Ok(ended.elapsed())
    }

    fn gradients(&self) -> &[f32] {
        &self.sum
    }

    fn loss(&mut self, mine: &[f64]) -> Result<f64, Error> {
        match self.comm {
            Some(comm) => gather_losses(comm, mine),
            None => Ok(mine.iter().sum()),
        }
    }

    fn formula_bytes(&self) -> u64 {
        self.formula_bytes
    }

    fn held_bytes(&self) -> u64 {
        4 * (self.lane.len() + self.gathered.len() + self.sum.len()) as u64
    }

    fn sent_bytes(&self) -> u64 {
        self.comm.map_or(0, |comm| comm.stats().sent_bytes)
    }
}

fn add_lane(kernels: &dyn Kernels, sum: &mut [f32], lane: &[f32], is_first: bool) {
    match is_first {
        true => sum.copy_from_slice(lane),
        false => kernels.add(sum, lane),
    }
}

/// A lane's gradients while its backward runs: a prefix that is still open, and buckets under way.
struct Gathering<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    ranks: usize,
    open: &'scope mut [f32],
    /// [ranks × open], where the gathered lanes go.
    room: &'scope mut [f32],
    buckets: Buckets,
    works: Vec<Work<'scope>>,
}

impl GradientSync for Gathering<'_, '_> {
    fn open(&mut self) -> &mut [f32] {
        self.open
    }

    fn ready(&mut self, start: usize) -> Result<(), Error> {
        while let Some(bucket) = self.buckets.next(self.open.len(), start) {
            let (open, lane) = std::mem::take(&mut self.open).split_at_mut(bucket.start);
            let (room, lanes) =
                std::mem::take(&mut self.room).split_at_mut(self.ranks * bucket.start);
            (self.open, self.room) = (open, room);
            let call = Call::moving(Collective::AllGather, Dtype::F32, lane.len());
            let input = bytemuck::cast_slice(lane);
            let buffers = Buffers::OutOfPlace { input, output: bytemuck::cast_slice_mut(lanes) };
            self.works.push(self.scope.start(call, buffers)?);
        }
        Ok(())
    }
}
