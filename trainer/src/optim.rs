//! The update: AdamW by `brigade_offload`'s kernels, over whatever part of the parameters a rank
//! holds. Which bits come out depends on the numbers alone, not on threads, parts or processors.

use crate::error::Error;
use crate::layout::Layout;
use brigade_offload::memory::Buffer;
use brigade_offload::optimizer::{
    AdamW, Crew, Gradients, Moment, Narrowed, Shard, Update, Weights,
};
use serde::{Deserialize, Serialize};
use std::ops::{Deref, DerefMut, Range};

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

/// Numbers, wherever they lie in memory.
pub(crate) enum Numbers {
    /// On the heap.
    Own(Vec<f32>),
    /// In an arena with a budget.
    Arena(Buffer),
}

impl Deref for Numbers {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Numbers::Own(numbers) => numbers,
            Numbers::Arena(buffer) => buffer.view(),
        }
    }
}

impl DerefMut for Numbers {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Numbers::Own(numbers) => numbers,
            Numbers::Arena(buffer) => buffer.view_mut(),
        }
    }
}

/// Both moments of a range of parameters, and which of them decay.
pub struct Moments {
    len: usize,
    /// Neighbouring tensors that decay alike, merged: [(elements of the part, decays)].
    groups: Vec<(Range<usize>, bool)>,
    /// [len], or nothing while they are in a file.
    pub(crate) mean: Numbers,
    pub(crate) square: Numbers,
}

impl Moments {
    /// Of the parameters in `range` of the layout, with these values.
    pub fn new(layout: &Layout, range: Range<usize>, mean: &[f32], square: &[f32]) -> Moments {
        assert!(mean.len() == range.len() && square.len() == range.len(), "moments of {range:?}");
        let mut groups: Vec<(Range<usize>, bool)> = Vec::new();
        for tensor in layout.tensors() {
            let here = tensor.range.start.max(range.start)..tensor.range.end.min(range.end);
            if here.is_empty() {
                continue;
            }
            let here = here.start - range.start..here.end - range.start;
            match groups.last_mut() {
                Some((group, decays)) if *decays == tensor.decays() => group.end = here.end,
                _ => groups.push((here, tensor.decays())),
            }
        }
        let [mean, square] = [mean, square].map(|moment| Numbers::Own(moment.to_vec()));
        Moments { len: range.len(), groups, mean, square }
    }

    /// Parameters that they are of.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Both.
    pub(crate) fn arrays_mut(&mut self) -> [&mut Numbers; 2] {
        [&mut self.mean, &mut self.square]
    }

    /// They are somewhere else now.
    pub(crate) fn leave(&mut self) {
        for moment in self.arrays_mut() {
            *moment = Numbers::Own(Vec::new());
        }
    }
}

/// AdamW and the threads it runs on.
pub struct Optimizer {
    hyper: Hyper,
    pub(crate) crew: Crew,
    /// Updates made.
    pub steps: usize,
}

impl Optimizer {
    /// On so many threads, after `steps` updates.
    ///
    /// Errors: `Setting` if there cannot be so many threads.
    pub fn new(hyper: Hyper, threads: usize, steps: usize) -> Result<Optimizer, Error> {
        let crew = Crew::new(threads);
        let crew = crew.map_err(|problem| Error::setting("threads", problem.to_string()))?;
        Ok(Optimizer { hyper, crew, steps })
    }

    /// Move `params` against `grads`, as part of the update after `steps` others. Cost: one pass
    /// over 28 bytes a parameter.
    pub fn update(&mut self, params: &mut [f32], moments: &mut Moments, grads: &[f32], lr: f32) {
        for (group, update) in self.updates(moments, lr) {
            let shard = Shard {
                weights: Weights::F32(&mut params[group.clone()]),
                gradients: Gradients::F32(&grads[group.clone()]),
                mean: Moment::F32(&mut moments.mean[group.clone()]),
                square: Moment::F32(&mut moments.square[group.clone()]),
                narrowed: Narrowed::None,
            };
            update.apply(&mut self.crew, shard).expect("equal parts of arrays that AdamW has");
        }
    }

    /// What that update is for each group of elements.
    pub(crate) fn updates(&self, moments: &Moments, lr: f32) -> Vec<(Range<usize>, Update)> {
        let Hyper { beta1, beta2, eps, decay } = self.hyper;
        let of = |(group, decays): &(Range<usize>, bool)| {
            let decay = if *decays { decay } else { 0.0 };
            let rule = AdamW { lr, beta1, beta2, eps, decay };
            (group.clone(), rule.at(self.steps as u64 + 1, 1.0))
        };
        moments.groups.iter().map(of).collect()
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
