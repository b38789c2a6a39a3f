//! The whole training state of a model, in the order of its layout: what a run starts from, what a
//! checkpoint holds, and what ranks put together from their parts.

use crate::layout::Layout;
use crate::precision::{LossScale, Precision};

/// The arrays of a state, all of the model's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Array {
    /// Parameters.
    Params,
    /// Mean of the gradients.
    Mean,
    /// Mean of their squares.
    Square,
}

impl Array {
    /// All of them, in the order that files have them in.
    pub const ALL: [Array; 3] = [Array::Params, Array::Mean, Array::Square];
}

/// Parameters and both moments, each `[parameters]`, and how many steps they have behind them.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Parameters.
    pub params: Vec<f32>,
    /// Mean of the gradients.
    pub mean: Vec<f32>,
    /// Mean of their squares.
    pub square: Vec<f32>,
    /// Steps made; those that f16 skipped count, too.
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

    /// One of its arrays.
    pub fn array(&self, array: Array) -> &[f32] {
        match array {
            Array::Params => &self.params,
            Array::Mean => &self.mean,
            Array::Square => &self.square,
        }
    }

    /// The same, to be changed.
    pub(crate) fn array_mut(&mut self, array: Array) -> &mut [f32] {
        match array {
            Array::Params => &mut self.params,
            Array::Mean => &mut self.mean,
            Array::Square => &mut self.square,
        }
    }

    /// Take numbers of an array, from one of them on.
    pub fn put(&mut self, array: Array, first: usize, values: &[f32]) {
        self.array_mut(array)[first..first + values.len()].copy_from_slice(values);
    }

    /// Room for the state of a model, to be filled.
    pub fn room(layout: &Layout) -> State {
        State::new(vec![0.0; layout.len()])
    }
}

impl LossScale {
    /// That which a run of this precision goes on with from a state, or its first.
    pub(crate) fn of_run(precision: Precision, state: &State) -> LossScale {
        let scale = state.scale.filter(|_| precision == Precision::F16);
        scale.unwrap_or_else(|| LossScale::new(precision))
    }
}
