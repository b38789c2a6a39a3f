//! Which samples of a batch are whose.
//!
//! A global batch is cut into *lanes* of equally many samples. Rank r takes lanes r, r + R, r + 2R,
//! ..., one in each *slot* of the step. In ordered mode the number of lanes is a setting of its
//! own, so a lane's gradient has the same bits wherever it is computed.

use crate::error::Error;
use std::ops::Range;

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
