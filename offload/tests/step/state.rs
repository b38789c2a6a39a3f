//! A state to be stepped, from a seed: as numbers in memory, and as arrays of bytes.

use brigade_offload::optimizer::{
    AdamW, Crew, Gradients, Moment, Narrowed, Shard, Update, Weights,
};
use half::bf16;
use std::ops::Range;

pub(crate) const ADAMW: AdamW = AdamW { lr: 1e-2, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.1 };

/// Everything that a step of AdamW sees.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Numbers {
    pub(crate) weights: Vec<f32>,
    pub(crate) mean: Vec<f32>,
    pub(crate) square: Vec<f32>,
    pub(crate) gradients: Vec<bf16>,
    pub(crate) narrowed: Vec<bf16>,
}

impl Numbers {
    pub(crate) fn new(seed: u64, count: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut numbers = |scale: f32| -> Vec<f32> {
            (0..count).map(|_| (random.f32() * 2.0 - 1.0) * scale).collect()
        };
        let (weights, mean, square) = (numbers(1.0), numbers(0.1), numbers(0.01));
        let square = square.into_iter().map(f32::abs).collect();
        let gradients = numbers(4.0).into_iter().map(bf16::from_f32).collect();
        Self { weights, mean, square, gradients, narrowed: vec![bf16::ZERO; count] }
    }

    /// Two groups of tensors: the first two fifths decay, the rest does not.
    pub(crate) fn groups(&self, t: u64) -> Vec<(Range<usize>, Update)> {
        let (count, border) = (self.weights.len(), self.weights.len() * 2 / 5);
        let plain = AdamW { decay: 0.0, ..ADAMW };
        vec![(0..border, ADAMW.at(t, 0.5)), (border..count, plain.at(t, 0.5))]
    }

    /// The step that all others are compared with: in memory, a group at a time.
    pub(crate) fn step(&mut self, t: u64) {
        let mut crew = Crew::new(1).expect("there are threads");
        for (group, update) in self.groups(t) {
            let shard = Shard {
                weights: Weights::F32(&mut self.weights[group.clone()]),
                gradients: Gradients::Bf16(&self.gradients[group.clone()]),
                mean: Moment::F32(&mut self.mean[group.clone()]),
                square: Moment::F32(&mut self.square[group.clone()]),
                narrowed: Narrowed::Bf16(&mut self.narrowed[group]),
            };
            update.apply(&mut crew, shard).expect("a good shard");
        }
    }
}

/// Numbers as they lie in a file.
pub(crate) fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// And back.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<f32> {
    let (numbers, _) = bytes.as_chunks::<4>();
    numbers.iter().map(|number| f32::from_ne_bytes(*number)).collect()
}
