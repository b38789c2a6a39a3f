//! One process: the reference that every other strategy must reproduce.

use super::{Backward, Strategy};
use crate::error::Error;
use crate::model::Local;
use std::time::Duration;

/// One lane, one rank, nobody to talk to.
pub struct Single {
    /// [params]
    grads: Vec<f32>,
}

impl Single {
    /// Room for the gradients of `params` parameters.
    pub fn new(params: usize) -> Single {
        Single { grads: vec![0.0; params] }
    }
}

impl Strategy for Single {
    fn reduce(&mut self, slot: usize, backward: &mut Backward<'_>) -> Result<Duration, Error> {
        assert_eq!(slot, 0, "one process computes its batch as one lane");
        backward(&mut Local(&mut self.grads))?;
        Ok(Duration::ZERO)
    }

    fn gradients(&self) -> &[f32] {
        &self.grads
    }

    fn loss(&mut self, mine: &[f64]) -> Result<f64, Error> {
        Ok(mine[0])
    }

    fn formula_bytes(&self) -> u64 {
        0
    }

    fn held_bytes(&self) -> u64 {
        4 * self.grads.len() as u64
    }

    fn sent_bytes(&self) -> u64 {
        0
    }
}
