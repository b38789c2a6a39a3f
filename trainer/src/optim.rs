//! The update, by `brigade_offload`'s kernels, over whatever part of the parameters a rank holds.
//! Which bits come out depends on the numbers alone, not on threads, parts or processors.

mod hyper;
mod moments;

pub use hyper::Hyper;
pub use moments::Moments;
pub(crate) use moments::Numbers;

use crate::error::Error;
use crate::kernels::cuda::AdamWStep;
use crate::norms::{ExactSum, Sums};
use brigade_offload::optimizer::{
    AdamW, Crew, Gradients, Lamb, Lars, Lion, Narrowed, Sgd, Shard, TensorNorms, Update, square_sum,
};
use clap::ValueEnum;
use serde::Serialize;
use std::ops::Range;

/// How gradients become steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// Loshchilov and Hutter 2019
    #[default]
    Adamw,
    /// AdamW with steps as long, against each tensor, as --lr says (You et al. 2020)
    Lamb,
    /// Momentum with such steps, a thousandth of --lr times the tensor (You et al. 2017)
    Lars,
    /// Signs of a momentum (Chen et al. 2023); --lr a tenth of AdamW's
    Lion,
    /// Gradient descent with momentum
    Sgd,
}

impl Rule {
    /// As it is written.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no rule is hidden").get_name().to_string()
    }

    /// How many moments it has.
    pub fn moments(self) -> usize {
        if matches!(self, Rule::Adamw | Rule::Lamb) { 2 } else { 1 }
    }

    /// Whether it asks for norms of whole tensors.
    pub fn has_norms(self) -> bool {
        matches!(self, Rule::Lamb | Rule::Lars)
    }
}

/// LARS's η.
const TRUST: f32 = 1e-3;

/// A rule and the threads it runs on.
pub struct Optimizer {
    rule: Rule,
    hyper: Hyper,
    pub(crate) crew: Crew,
    /// Of each tensor in this update, if the rule asks for them.
    norms: Vec<TensorNorms>,
    /// What gradients are multiplied by.
    pub(crate) scale: f32,
    /// The norm that the whole gradient may have, and what it is multiplied by in place of `scale`
    /// to have no larger one in this update.
    most: Option<f32>,
    clipped: Option<f32>,
    /// Steps made.
    pub steps: usize,
    /// Those of them that made no update, as a gradient had overflowed: moments know nothing of
    /// them.
    pub(crate) skipped: usize,
}

impl Optimizer {
    /// AdamW on so many threads, after `steps` steps.
    ///
    /// Errors: `Setting` if there cannot be so many threads.
    pub fn new(hyper: Hyper, threads: usize, steps: usize) -> Result<Optimizer, Error> {
        let crew = Crew::new(threads);
        let crew = crew.map_err(|problem| Error::setting("threads", problem.to_string()))?;
        let norms = Vec::new();
        let (rule, scale, most, clipped) = (Rule::Adamw, 1.0, None, None);
        Ok(Optimizer { rule, hyper, crew, norms, scale, most, clipped, steps, skipped: 0 })
    }

    /// The same with another rule.
    pub fn by(self, rule: Rule) -> Optimizer {
        Optimizer { rule, ..self }
    }

    /// The same for gradients whose norm is this at most: those with a larger one are made to have
    /// it (Pascanu et al. 2013), all parameters together. Whoever updates tells the norm before, by
    /// `clip`.
    pub fn clipping(self, most: Option<f32>) -> Optimizer {
        Optimizer { most, ..self }
    }

    /// Whether it wants to be told the norm of the whole gradient.
    pub(crate) fn clips(&self) -> bool {
        self.most.is_some()
    }

    /// Before an update: take the squares of the whole gradient, which have not been multiplied by
    /// `scale`. Returns its norm, which has.
    pub(crate) fn clip(&mut self, squares: ExactSum) -> f64 {
        let (squares, loss_scale) = (squares.rounded(), 1.0 / self.scale);
        // What is no number moves nothing to a place that is one: whoever looks sees it.
        let factor = |most| squares.factor(loss_scale, most).unwrap_or(f32::NAN);
        self.clipped = self.most.map(factor);
        squares.norm(loss_scale)
    }

    /// The number of this update, from 1.
    fn number(&self) -> u64 {
        self.steps.saturating_sub(self.skipped) as u64 + 1
    }

    /// What this update multiplies gradients by.
    fn factor(&self) -> f32 {
        self.clipped.unwrap_or(self.scale)
    }

    /// Its rule.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Move `params` against `grads`, as part of the update after `steps` others. Cost: one pass
    /// over 28 bytes a parameter, or 20 with one moment.
    pub fn update(&mut self, params: &mut [f32], moments: &mut Moments, grads: &[f32], lr: f32) {
        self.update_both(params, Narrowed::None, moments, grads, lr);
    }

    /// The same, with copies of the new parameters that are narrower.
    pub(crate) fn update_both(
        &mut self,
        params: &mut [f32],
        mut narrowed: Narrowed<'_>,
        moments: &mut Moments,
        grads: &[f32],
        lr: f32,
    ) {
        for (group, update) in self.updates(moments, lr) {
            let narrowed = narrowed.part(group.clone());
            let shard = Shard { narrowed, ..moments.shard(group, params, grads) };
            update.apply(&mut self.crew, shard).expect("equal parts of arrays that the rule has");
        }
    }

    /// What that update is for each group of elements.
    pub(crate) fn updates(&self, moments: &Moments, lr: f32) -> Vec<(Range<usize>, Update)> {
        let Hyper { beta1, beta2, eps, decay } = self.hyper;
        let step = self.number();
        let of = |&(ref group, tensor, decays): &(Range<usize>, usize, bool)| {
            let decay = if decays { decay } else { 0.0 };
            let (momentum, trust) = (beta1, TRUST);
            let update = match self.rule {
                Rule::Adamw => AdamW { lr, beta1, beta2, eps, decay }.at(step, self.factor()),
                Rule::Lamb => Lamb { lr, beta1, beta2, eps, decay }.at(step, self.norms[tensor]),
                Rule::Lars => {
                    Lars { lr, momentum, decay, trust }.at(self.factor(), self.norms[tensor])
                }
                Rule::Lion => Lion { lr, beta1, beta2, decay }.at(self.factor()),
                Rule::Sgd => Sgd { lr, momentum, decay, is_nesterov: false }.at(self.factor()),
            };
            (group.clone(), update)
        };
        moments.groups.iter().map(of).collect()
    }

    /// AdamW's constants in that update, for who updates on a device.
    pub(crate) fn adamw_step(&self, lr: f32, decays: bool) -> AdamWStep {
        assert_eq!(self.rule, Rule::Adamw, "the only rule that devices have");
        let Hyper { beta1, beta2, eps, decay } = self.hyper;
        let decay = if decays { decay } else { 0.0 };
        let bias = |beta: f32| debt(beta, self.number()) as f32;
        let (rate, root) = (lr / bias(beta1), 1.0 / bias(beta2).sqrt());
        AdamWStep { scale: self.factor(), beta1, beta2, eps, rate, root, shrink: 1.0 - lr * decay }
    }

    /// Before the update of a rule that asks for norms: add those of a part, whose moments LAMB
    /// moves now. Cost: one more pass over all that the update reads.
    pub(crate) fn measure(
        &mut self,
        sums: &mut Sums,
        params: &mut [f32],
        moments: &mut Moments,
        grads: &[f32],
    ) {
        let Hyper { beta1, beta2, eps, decay } = self.hyper;
        let (step, factor) = (self.number(), self.factor());
        for (group, tensor, decays) in moments.groups.clone() {
            let decay = if decays { decay } else { 0.0 };
            let update = match self.rule {
                Rule::Lamb => {
                    let rule = Lamb { lr: 0.0, beta1, beta2, eps, decay };
                    let shard = moments.shard(group.clone(), params, grads);
                    let moved = rule.measure(&mut self.crew, step, factor, shard);
                    moved.expect("equal parts of arrays that LAMB has");
                    let (rate, root) = (debt(beta1, step).recip(), debt(beta2, step).sqrt());
                    let (rate, root) = (rate as f32, root as f32);
                    let (mean, square) = (&moments.mean[group.clone()], &moments.square);
                    let (square, params) = (&square[group.clone()], &params[group.clone()]);
                    ExactSum::of(group.len(), |at| {
                        mean[at] * rate / (square[at].sqrt() / root + eps) + decay * params[at]
                    })
                }
                _ => ExactSum::of(group.len(), |at| grads[group.start + at]),
            };
            let weights = ExactSum::of(group.len(), |at| params[group.start + at]);
            sums.add(tensor, [weights, update]);
        }
    }

    /// Whether all of these gradients are numbers. Cost: one pass that reads them.
    pub(crate) fn is_finite(&mut self, grads: &[f32]) -> bool {
        square_sum(&mut self.crew, Gradients::F32(grads)).is_finite()
    }

    /// The norms of all tensors, after those of all parts were added.
    pub(crate) fn take_norms(&mut self, sums: &Sums) {
        self.norms = sums.norms();
    }
}

/// 1 − betaᵗ: how much of a mean that began at nothing is there after `step` steps. From some step
/// on it is 1 for every beta, so what no i32 holds is the largest one.
fn debt(beta: f32, step: u64) -> f64 {
    1.0 - f64::from(beta).powi(i32::try_from(step).unwrap_or(i32::MAX))
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
    use crate::layout::{Config, Layout};

    #[test]
    fn rate_rises_then_falls_to_a_tenth() {
        let rates: Vec<f32> = (0..100).map(|step| learning_rate(1.0, step, 100)).collect();
        assert_eq!(rates[4], 1.0);
        assert!(rates[..5].is_sorted() && rates[5..].is_sorted_by(|a, b| a >= b));
        assert!((rates[99] - 0.1).abs() < 1e-2);
    }

    #[test]
    fn more_steps_than_an_i32_holds_are_as_many() {
        assert_eq!(debt(0.9, 1), 1.0 - f64::from(0.9_f32));
        for step in [1 << 31, (1 << 32) + 1, u64::MAX] {
            assert_eq!(debt(0.999, step), 1.0, "{step}");
        }
    }

    #[test]
    fn steps_that_made_no_update_are_none_of_those_that_moments_know() {
        let config =
            Config { vocab: 7, context: 5, layers: 1, heads: 1, width: 4, experts: 0, top: 0 };
        let layout = Layout::new(config);
        let of = |steps, skipped| {
            let optimizer = Optimizer::new(Hyper::default(), 1, steps).unwrap();
            let mut moments = Moments::new(&layout, 0..3, &[0.1; 3], &[0.2; 3]);
            let mut params = [1.0; 3];
            Optimizer { skipped, ..optimizer }.update(&mut params, &mut moments, &[0.3; 3], 0.1);
            params
        };
        assert_eq!(of(7, 5), of(2, 0));
        assert_ne!(of(7, 5), of(7, 0));
    }

    #[test]
    fn a_single_step_has_a_rate() {
        assert_eq!(learning_rate(1.0, 0, 1), 1.0);
    }
}
