//! What a model starts from.

use super::Gpt;
use crate::layout::{Layout, Tensor};
use fastrand::Rng;
use std::ops::Range;

impl Gpt {
    /// GPT-2's start: weights from N(0, 0.02) at its width of 768 and wider for narrower models,
    /// those that feed the residual stream divided by √(2·layers), gains 1, biases 0. The same seed
    /// gives the same bits everywhere.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut params = vec![0.0; self.layout.len()];
        Initial::new(&self.layout, seed).fill(0, &mut params);
        params
    }
}

/// That start, of which any part can be drawn without the rest.
pub(crate) struct Initial<'l> {
    layout: &'l Layout,
    /// As the generator is in front of each tensor.
    before: Vec<Rng>,
}

impl<'l> Initial<'l> {
    /// Cost: two numbers of the generator for each weight, and none of them is kept.
    pub(crate) fn new(layout: &'l Layout, seed: u64) -> Initial<'l> {
        let mut rng = Rng::with_seed(seed);
        let draw = |tensor: &Tensor| {
            let before = rng.clone();
            if tensor.decays() {
                pass_over(&mut rng, tensor.range.len());
            }
            before
        };
        let before = layout.tensors().iter().map(draw).collect();
        Initial { layout, before }
    }

    /// The parameters from `first` on.
    pub(crate) fn fill(&self, first: usize, params: &mut [f32]) {
        let end = first + params.len();
        for (tensor, before) in self.layout.tensors().iter().zip(&self.before) {
            let Range { start, end } = tensor.range.start.max(first)..tensor.range.end.min(end);
            if start >= end {
                continue;
            }
            let values = &mut params[start - first..end - first];
            match self.scale(tensor) {
                Some(scale) => {
                    let mut rng = before.clone();
                    pass_over(&mut rng, start - tensor.range.start);
                    values.fill_with(|| normal(&mut rng) * scale);
                }
                None if tensor.name.ends_with("weight") => values.fill(1.0),
                None => values.fill(0.0),
            }
        }
    }

    /// How far a tensor's weights spread, if they are drawn.
    fn scale(&self, tensor: &Tensor) -> Option<f32> {
        let config = self.layout.config();
        let std = 0.02 * (768.0 / config.width as f32).sqrt();
        let residual = std / (2.0 * config.layers as f32).sqrt();
        let feeds_stream = ["proj.weight", "out.weight"].iter().any(|n| tensor.name.ends_with(n));
        tensor.decays().then_some(if feeds_stream { residual } else { std })
    }
}

/// One draw from N(0, 1) (Box and Muller 1958).
fn normal(rng: &mut Rng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * rng.f64()).cos()) as f32
}

/// Leave the generator as so many draws would.
fn pass_over(rng: &mut Rng, draws: usize) {
    for _ in 0..2 * draws {
        rng.f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Config;

    #[test]
    fn a_part_has_the_bits_of_the_whole_wherever_it_is_cut() {
        let seed = 7;
        let config =
            Config { vocab: 11, context: 5, layers: 2, heads: 2, width: 6, experts: 0, top: 0 };
        let layout = Layout::new(config);
        let initial = Initial::new(&layout, seed);
        let mut whole = vec![0.0; layout.len()];
        initial.fill(0, &mut whole);
        // What the first weights have always been: a run of today goes on from one of before.
        let mut rng = Rng::with_seed(seed);
        let std = 0.02 * (768.0f32 / 6.0).sqrt();
        assert!(whole[..16 * 6].iter().all(|weight| *weight == normal(&mut rng) * std));
        for parts in [2, 3, 7, 50] {
            for part in 0..parts {
                let edge = |part: usize| layout.len() * part / parts;
                let mut params = vec![f32::NAN; edge(part + 1) - edge(part)];
                initial.fill(edge(part), &mut params);
                assert_eq!(params, whole[edge(part)..edge(part + 1)], "{part} of {parts}");
            }
        }
    }
}
