//! Ordered mode: gradients of all lanes are added one by one in lane order, on every rank.
//!
//! An all-reduce adds the ranks' own sums, so its bits depend on how many ranks there are. Here each rank
//! sees every lane's gradient and folds them itself: ((lane 0 + lane 1) + lane 2) + ..., whatever the
//! number of ranks. Lane `slot · R + r` belongs to rank r, so after each slot the next R lanes in order are
//! at hand and only a running sum is kept.
//!
//! Cost: lanes · (R − 1) / R · n elements sent per rank and step, against 2 (R − 1) / R · n for an
//! all-reduce; R · n elements of memory more.

use super::{Backward, Strategy};
use crate::error::Error;
use crate::kernels::Kernels;
use crate::model::Local;
use std::time::Duration;

/// The fold over lanes in one process.
pub struct Ordered<'a> {
    kernels: &'a dyn Kernels,
    lane: Vec<f32>,
    sum: Vec<f32>,
}

impl<'a> Ordered<'a> {
    /// Room for the gradients of `params` parameters, of one lane and of all.
    pub fn new(kernels: &'a dyn Kernels, params: usize) -> Ordered<'a> {
        Ordered { kernels, lane: vec![0.0; params], sum: vec![0.0; params] }
    }
}

impl Strategy for Ordered<'_> {
    fn reduce(&mut self, slot: usize, backward: &mut Backward<'_>) -> Result<Duration, Error> {
        backward(&mut Local(&mut self.lane))?;
        match slot {
            0 => self.sum.copy_from_slice(&self.lane),
            _ => self.kernels.add(&mut self.sum, &self.lane),
        }
        Ok(Duration::ZERO)
    }

    fn gradients(&self) -> &[f32] {
        &self.sum
    }

    fn loss(&mut self, mine: &[f64]) -> Result<f64, Error> {
        Ok(mine.iter().sum())
    }

    fn formula_bytes(&self) -> u64 {
        0
    }

    fn sent_bytes(&self) -> u64 {
        0
    }
}
