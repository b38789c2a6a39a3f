//! Text from a trained model, one byte at a time.
//!
//! Each byte costs a whole forward pass over the context: there is no cache of keys and values,
//! because a few hundred bytes at the end of a run take a second or two without it.

use crate::error::Error;
use crate::model::Gpt;
use crate::report::printable;
use crate::run::Run;
use crate::tape::Tape;

/// How bytes are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Below 1 prefers likely bytes more than the model does.
    pub temperature: f32,
    /// Only so many most likely bytes are candidates.
    pub top_k: usize,
    /// Chooses among them.
    pub seed: u64,
}

impl Run<'_> {
    /// A sample of text, which rank 0 draws.
    pub(crate) fn sample(&mut self, params: &[f32]) -> Result<(), Error> {
        if self.args.sample == 0 || !self.is_first {
            return Ok(());
        }
        let draw = Draw { temperature: 0.8, top_k: 40, seed: self.args.seed };
        let prompt = self.args.prompt.as_bytes();
        let text = sample(self.model, params, prompt, self.args.sample, draw);
        self.report.say(&printable(&[prompt, &text].concat()))
    }
}

/// `count` bytes that follow `prompt` (at least one byte), which is not repeated in the answer.
pub fn sample(model: &Gpt, params: &[f32], prompt: &[u8], count: usize, draw: Draw) -> Vec<u8> {
    assert!(!prompt.is_empty(), "the model continues a text");
    let config = model.layout().config();
    let mut rng = fastrand::Rng::with_seed(draw.seed);
    let mut tape = Tape::new(config, 1, config.context);
    let mut text = prompt.to_vec();
    let mut window = vec![0u32; config.context];
    for _ in 0..count {
        let recent = &text[text.len().saturating_sub(config.context)..];
        // Causality makes whatever stands behind the last byte harmless.
        window.fill(0);
        for (token, &byte) in window.iter_mut().zip(recent) {
            *token = u32::from(byte);
        }
        model.forward_all(params, &mut tape, &window);
        let logits = &tape.logits()[(recent.len() - 1) * config.vocab..][..config.vocab];
        text.push(choose(logits, draw, &mut rng) as u8);
    }
    text.split_off(prompt.len())
}

fn choose(logits: &[f32], draw: Draw, rng: &mut fastrand::Rng) -> usize {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    order.truncate(draw.top_k.max(1));
    let top = logits[order[0]];
    let weight = |token: usize| ((logits[token] - top) / draw.temperature.max(1e-6)).exp();
    let mut left = rng.f32() * order.iter().map(|&token| weight(token)).sum::<f32>();
    for &token in &order {
        left -= weight(token);
        if left <= 0.0 {
            return token;
        }
    }
    order[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_temperature_and_one_candidate_both_mean_the_likeliest_byte() {
        let logits = [0.0, 3.0, 1.0, 2.9];
        let mut rng = fastrand::Rng::with_seed(3);
        for _ in 0..100 {
            let cold = Draw { temperature: 0.0, top_k: 4, seed: 0 };
            let single = Draw { temperature: 5.0, top_k: 1, seed: 0 };
            assert_eq!(choose(&logits, cold, &mut rng), 1);
            assert_eq!(choose(&logits, single, &mut rng), 1);
        }
    }

    #[test]
    fn only_candidates_are_drawn_and_all_of_them() {
        let logits = [0.0, 3.0, 1.0, 2.9];
        let mut rng = fastrand::Rng::with_seed(4);
        let mut seen = [0; 4];
        for _ in 0..200 {
            seen[choose(&logits, Draw { temperature: 1.0, top_k: 2, seed: 0 }, &mut rng)] += 1;
        }
        assert!(seen[1] > 0 && seen[3] > 0 && seen[0] + seen[2] == 0, "{seen:?}");
    }
}
