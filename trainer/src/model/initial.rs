//! What a model starts from.

use super::Gpt;

impl Gpt {
    /// GPT-2's start: weights from N(0, 0.02) at its width of 768 and wider for narrower models,
    /// those that feed the residual stream divided by √(2·layers), gains 1, biases 0. The same seed
    /// gives the same bits everywhere.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut params = vec![0.0; self.layout.len()];
        let mut rng = fastrand::Rng::with_seed(seed);
        let std = 0.02 * (768.0 / self.layout.config().width as f32).sqrt();
        let residual = std / (2.0 * self.layout.config().layers as f32).sqrt();
        for tensor in self.layout.tensors() {
            let values = &mut params[tensor.range.clone()];
            let feeds_stream =
                ["proj.weight", "out.weight"].iter().any(|n| tensor.name.ends_with(n));
            match tensor.decays() {
                true if feeds_stream => values.fill_with(|| normal(&mut rng) * residual),
                true => values.fill_with(|| normal(&mut rng) * std),
                false if tensor.name.ends_with("weight") => values.fill(1.0),
                false => values.fill(0.0),
            }
        }
        params
    }
}

/// One draw from N(0, 1) (Box and Muller 1958).
fn normal(rng: &mut fastrand::Rng) -> f32 {
    let radius = (-2.0 * (1.0 - rng.f64()).ln()).sqrt();
    (radius * (std::f64::consts::TAU * rng.f64()).cos()) as f32
}
