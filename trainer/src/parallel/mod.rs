//! What ranks do with a step: who takes which samples, and how gradients become one.
//!
//! A global batch is cut into *lanes* of equally many samples. Rank r takes lanes r, r + R, r + 2R,
//! ..., one in each *slot* of the step. In fast mode there is one lane per rank. In ordered mode
//! the number of lanes is a setting of its own, so a lane's gradient has the same bits wherever it
//! is computed.

mod buckets;
mod ddp;
mod formula;
mod local;
mod ordered;

pub use ddp::Ddp;
pub use local::Single;
pub use ordered::Ordered;

use crate::error::Error;
use crate::model::GradientSync;
use brigade_comm::{Communicator, Dtype};
use brigade_schedule::Collective;
use std::ops::Range;
use std::time::Duration;

/// The backward of one lane, as a strategy calls it: once, with the owner of the gradients.
pub type Backward<'a> = dyn FnMut(&mut dyn GradientSync) -> Result<(), Error> + 'a;

/// How the gradients of all lanes become one.
pub trait Strategy {
    /// Run the backward of this rank's lane of `slot`, and bring its gradients together with the
    /// other ranks', meanwhile if possible. Returns how long communication held the step up after
    /// backward had ended.
    fn reduce(&mut self, slot: usize, backward: &mut Backward<'_>) -> Result<Duration, Error>;

    /// After the last slot: the sum of all lanes' gradients, the same bits on every rank.
    fn gradients(&self) -> &[f32];

    /// Sum of all lanes' losses, in lane order. mine: `[slots]`.
    fn loss(&mut self, mine: &[f64]) -> Result<f64, Error>;

    /// Payload bytes that one step makes this rank send, by the formulas of its calls.
    fn formula_bytes(&self) -> u64;

    /// Bytes of gradients, and of whatever else the strategy holds beside them.
    fn held_bytes(&self) -> u64;

    /// Payload bytes that this rank has sent since it started.
    fn sent_bytes(&self) -> u64;
}

/// Which samples of the global batch are this rank's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes {
    rank: usize,
    ranks: usize,
    lanes: usize,
    samples: usize,
}

impl Lanes {
    /// Cut `batch` samples into `lanes`, for this rank of `ranks`.
    ///
    /// Errors: `Setting`, with the nearest value that works, if something does not divide.
    pub fn new(batch: usize, lanes: usize, rank: usize, ranks: usize) -> Result<Lanes, Error> {
        assert!(rank < ranks && lanes > 0, "rank {rank} of {ranks}, {lanes} lanes");
        if !lanes.is_multiple_of(ranks) {
            let next = lanes.next_multiple_of(ranks);
            let problem =
                format!("{ranks} ranks do not divide {lanes} lanes; --lanes {next} works");
            return Err(Error::setting("lanes", problem));
        }
        if batch == 0 || !batch.is_multiple_of(lanes) {
            let next = batch.max(1).next_multiple_of(lanes);
            let parts = if lanes == ranks { "ranks" } else { "lanes" };
            let problem =
                format!("{lanes} {parts} cannot share {batch} samples evenly; --batch {next} can");
            return Err(Error::setting("batch", problem));
        }
        Ok(Lanes { rank, ranks, lanes, samples: batch / lanes })
    }

    /// Lanes that this rank computes in each step.
    pub fn slots(&self) -> usize {
        self.lanes / self.ranks
    }

    /// Whether this is rank 0, which prints and writes files for all.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Samples per lane.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Global indices of the samples of this rank's lane in `slot`.
    pub fn range(&self, slot: usize) -> Range<usize> {
        let lane = slot * self.ranks + self.rank;
        lane * self.samples..(lane + 1) * self.samples
    }
}

/// Sum over all ranks and slots in lane order, the same bits on every rank. mine: [slots].
fn gather_losses(comm: &Communicator, mine: &[f64]) -> Result<f64, Error> {
    let mut all = vec![0.0; comm.size() * mine.len()];
    comm.all_gather(mine, &mut all)?;
    let lane = |lane: usize| all[lane % comm.size() * mine.len() + lane / comm.size()];
    Ok((0..all.len()).map(lane).sum())
}

/// What `gather_losses` makes this rank send.
fn loss_bytes(comm: &Communicator, slots: usize) -> Result<u64, Error> {
    formula::call_bytes(comm, Collective::AllGather, Dtype::F64, slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_taken_once_and_slots_follow_lane_order() {
        for ranks in [1, 2, 3, 4, 6, 12] {
            let worlds: Vec<Lanes> =
                (0..ranks).map(|rank| Lanes::new(24, 12, rank, ranks).unwrap()).collect();
            let slots = 0..worlds[0].slots();
            let order =
                slots.flat_map(|slot| worlds.iter().flat_map(move |lanes| lanes.range(slot)));
            assert!(order.eq(0..24), "{ranks} ranks");
        }
    }

    #[test]
    fn what_does_not_divide_is_refused_with_a_value_that_works() {
        let problem =
            |batch, lanes, ranks| Lanes::new(batch, lanes, 0, ranks).unwrap_err().to_string();
        assert!(problem(16, 4, 3).contains("--lanes 6"));
        assert!(problem(10, 4, 2).contains("--batch 12"));
    }
}
