//! The whole training state of a model, in the order of its layout: what a run starts from, what a
//! checkpoint holds, and what ranks put together from their parts.

use crate::layout::Layout;
use crate::precision::LossScale;

/// Parameters and both moments, each `[parameters]`, and how many updates they have behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Parameters.
    pub params: Vec<f32>,
    /// Mean of the gradients.
    pub mean: Vec<f32>,
    /// Mean of their squares.
    pub square: Vec<f32>,
    /// Updates made.
    pub steps: usize,
    /// What losses are multiplied by, if that changes by what happens (`--precision f16`).
    pub scale: Option<LossScale>,
}

impl State {
    /// The state before the first step.
    pub fn new(params: Vec<f32>) -> State {
        let zeros = vec![0.0; params.len()];
        State { params, mean: zeros.clone(), square: zeros, steps: 0, scale: None }
    }

    /// The state of a model that is not there: whoever takes a part of it gets zeros, in memory
    /// that was never touched.
    pub fn absent() -> State {
        State::new(Vec::new())
    }

    /// Whether there is nothing in it.
    pub fn is_absent(&self) -> bool {
        self.params.is_empty()
    }

    /// An array (`params`, `mean` or `square`).
    pub fn array(&self, array: &str) -> &[f32] {
        match array {
            "params" => &self.params,
            "mean" => &self.mean,
            _ => &self.square,
        }
    }

    /// Take numbers of an array (`params`, `mean` or `square`), from one of them on.
    pub fn put(&mut self, array: &str, first: usize, values: &[f32]) {
        let all = match array {
            "params" => &mut self.params,
            "mean" => &mut self.mean,
            _ => &mut self.square,
        };
        all[first..first + values.len()].copy_from_slice(values);
    }

    /// Room for the state of a model, to be filled.
    pub fn room(layout: &Layout) -> State {
        State::new(vec![0.0; layout.len()])
    }
}
