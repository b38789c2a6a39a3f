//! Which experts a token goes to, and how much each of them counts.

use super::Mixture;
use crate::kernels::Kernels;

/// The gate's choices for some tokens.
#[derive(Default)]
pub struct Gate {
    /// [tokens × experts], softmax of the scores.
    probs: Vec<f32>,
    /// [tokens × top] experts, likeliest first; of equals the one with the lower number.
    pub(super) chosen: Vec<usize>,
    /// [tokens × top], the probability of each: what its answer is multiplied by.
    pub(super) shares: Vec<f32>,
}

impl Gate {
    /// Score x, [tokens × c], by `weight`, [experts × c], and choose.
    pub(super) fn choose(&mut self, k: &dyn Kernels, x: &[f32], weight: &[f32], mixture: &Mixture) {
        let (tokens, experts) = (x.len() / mixture.width, mixture.experts);
        self.probs.resize(tokens * experts, 0.0);
        k.linear(&mut self.probs, x, weight, &[], mixture.width, None);
        self.chosen.clear();
        self.chosen.reserve_exact(tokens * mixture.top);
        self.shares.clear();
        self.shares.reserve_exact(tokens * mixture.top);
        let mut order: Vec<usize> = Vec::with_capacity(experts);
        for probs in self.probs.chunks_exact_mut(experts) {
            let largest = probs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            probs.iter_mut().for_each(|p| *p = (*p - largest).exp());
            let total: f32 = probs.iter().sum();
            probs.iter_mut().for_each(|p| *p /= total);
            order.clear();
            order.extend(0..experts);
            order.sort_by(|a, b| probs[*b].total_cmp(&probs[*a]));
            for &expert in &order[..mixture.top] {
                self.chosen.push(expert);
                self.shares.push(probs[expert]);
            }
        }
    }

    /// How many scores there were.
    pub(super) fn scores(&self) -> usize {
        self.probs.len()
    }

    /// Bytes of it.
    pub(super) fn bytes(&self) -> u64 {
        let numbers = size_of::<f32>() * (self.probs.len() + self.shares.len());
        (numbers + size_of::<usize>() * self.chosen.len()) as u64
    }

    /// Writes `dx` and `dweight` from the gradient of the shares.
    pub(super) fn backward(
        &self,
        k: &dyn Kernels,
        (dx, dweight): (&mut [f32], &mut [f32]),
        dshares: &[f32],
        x: &[f32],
        weight: &[f32],
        mixture: &Mixture,
    ) {
        let (experts, top) = (mixture.experts, mixture.top);
        let mut dscores = vec![0.0; self.probs.len()];
        let rows = dscores.chunks_exact_mut(experts).zip(self.probs.chunks_exact(experts));
        let choices = self.chosen.chunks_exact(top).zip(dshares.chunks_exact(top));
        for ((ds, p), (chosen, dshares)) in rows.zip(choices) {
            for (&expert, dshare) in chosen.iter().zip(dshares) {
                ds[expert] = *dshare;
            }
            // Softmax: ds = p · (dp − Σ dp·p), with dp zero where nothing was chosen.
            let dot: f32 = ds.iter().zip(p).map(|(dp, p)| dp * p).sum();
            for (ds, p) in ds.iter_mut().zip(p) {
                *ds = p * (*ds - dot);
            }
        }
        k.linear_backward(dx, dweight, &mut [], &dscores, x, weight, mixture.width);
    }
}
