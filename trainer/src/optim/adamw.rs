//! AdamW over the flat buffer: which elements decay, and how far a step is from the start.

use crate::kernels::{AdamStep, Kernels};
use crate::layout::Layout;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What a user may choose about AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hyper {
    /// Memory of the mean gradient.
    pub beta1: f32,
    /// Memory of the mean squared gradient.
    pub beta2: f32,
    /// Keeps the division finite.
    pub eps: f32,
    /// Weight decay of matrices.
    pub decay: f32,
}

impl Default for Hyper {
    fn default() -> Hyper {
        Hyper { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.1 }
    }
}

/// Both moments, and the number of steps taken.
pub struct AdamW {
    hyper: Hyper,
    /// Neighbouring tensors that decay alike, merged: [(range, decays)].
    ranges: Vec<(Range<usize>, bool)>,
    pub(crate) mean: Vec<f32>,
    pub(crate) square: Vec<f32>,
    pub(crate) steps: usize,
}

impl AdamW {
    /// Zero moments. Memory: 8 bytes per parameter.
    pub fn new(hyper: Hyper, layout: &Layout) -> AdamW {
        let mut ranges: Vec<(Range<usize>, bool)> = Vec::new();
        for tensor in layout.tensors() {
            match ranges.last_mut() {
                Some((range, decays)) if *decays == tensor.decays() => range.end = tensor.range.end,
                _ => ranges.push((tensor.range.clone(), tensor.decays())),
            }
        }
        let zeros = vec![0.0; layout.len()];
        AdamW { hyper, ranges, mean: zeros.clone(), square: zeros, steps: 0 }
    }

    /// Move `params` against `grads`.
    pub fn step(&mut self, kernels: &dyn Kernels, params: &mut [f32], grads: &[f32], lr: f32) {
        assert!(params.len() == self.mean.len() && grads.len() == self.mean.len());
        self.steps += 1;
        let Hyper { beta1, beta2, eps, decay } = self.hyper;
        // In f64, as f32 would round 1 − 0.999ᵗ visibly.
        let bias = |beta: f32| (1.0 - f64::from(beta).powi(self.steps as i32)) as f32;
        let (bias1, bias2) = (bias(beta1), bias(beta2));
        for (range, decays) in &self.ranges {
            let decay = if *decays { decay } else { 0.0 };
            let step = AdamStep { lr, beta1, beta2, eps, decay, bias1, bias2 };
            kernels.adamw(
                &mut params[range.clone()],
                &mut self.mean[range.clone()],
                &mut self.square[range.clone()],
                &grads[range.clone()],
                &step,
            );
        }
    }
}

/// Linear warm-up over the first 5 % of `steps`, then a half cosine down to a tenth of `peak`.
///
/// `step` counts from 0.
pub fn learning_rate(peak: f32, step: usize, steps: usize) -> f32 {
    let warmup = (steps / 20).max(1);
    if step < warmup {
        return peak * (step + 1) as f32 / warmup as f32;
    }
    let progress = (step - warmup) as f64 / (steps - warmup).max(1) as f64;
    let shape = 0.5 * (1.0 + (std::f64::consts::PI * progress.min(1.0)).cos());
    (f64::from(peak) * (0.1 + 0.9 * shape)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_rises_then_falls_to_a_tenth() {
        let rates: Vec<f32> = (0..100).map(|step| learning_rate(1.0, step, 100)).collect();
        assert_eq!(rates[4], 1.0);
        assert!(rates[..5].is_sorted() && rates[5..].is_sorted_by(|a, b| a >= b));
        assert!((rates[99] - 0.1).abs() < 1e-2);
    }

    #[test]
    fn a_single_step_has_a_rate() {
        assert_eq!(learning_rate(1.0, 0, 1), 1.0);
    }
}
