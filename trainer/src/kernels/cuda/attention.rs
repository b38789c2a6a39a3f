//! Causal self-attention of all samples (Vaswani et al. 2017): products for every head of every
//! sample, as few calls as it goes, and a softmax between them.

use super::launch::{launch, narrow};
use super::{Device, Matrix, Product, View};
use crate::error::Error;
use crate::kernels::Heads;
use brigade_cuda::Arg;

impl Device {
    /// Causal attention; probs: [samples × heads × time × time], written.
    pub fn attention(&self, y: View, probs: View, qkv: View, heads: Heads) -> Result<(), Error> {
        let Heads { time, width, .. } = heads;
        let size = width / heads.heads;
        let scale = 1.0 / (size as f32).sqrt();
        let [q, k, v] = thirds(qkv, heads);
        let square = [time, time, size];
        let scores = Across { view: probs, apart: time, sample: 0, head: 0 }.squares(heads);
        self.across(heads, y.len() / width / time, [scores, q, k], |[out, q, k]| {
            Product::new(out, q, k.t(), square).scaled(scale)
        })?;
        let (steps, rows) = (narrow(time), (probs.len() / time) as u64);
        launch!(self.causal_softmax(probs.address(), steps, rows)
            as self.rows(probs.len() / time, time))?;
        let mixed = Across { view: y, apart: width, sample: time * width, head: size };
        self.across(heads, y.len() / width / time, [mixed, scores, v], |[out, p, v]| {
            Product::new(out, p, v, [time, size, time])
        })
    }

    /// Writes `dqkv`; scores: as long as probs.
    pub fn attention_backward(
        &self,
        dqkv: View,
        scores: View,
        dy: View,
        qkv: View,
        probs: View,
        heads: Heads,
    ) -> Result<(), Error> {
        let Heads { time, width, .. } = heads;
        let (size, samples) = (width / heads.heads, dy.len() / width / time);
        let ([q, k, v], [dq, dk, dv]) = (thirds(qkv, heads), thirds(dqkv, heads));
        let square = |view| Across { view, apart: time, sample: 0, head: 0 }.squares(heads);
        let (ds, p) = (square(scores), square(probs));
        let dy = Across { view: dy, apart: width, sample: time * width, head: size };
        self.across(heads, samples, [ds, dy, v], |[out, dy, v]| {
            Product::new(out, dy, v.t(), [time, time, size])
        })?;
        self.across(heads, samples, [dv, p, dy], |[out, p, dy]| {
            Product::new(out, p.t(), dy, [time, size, time])
        })?;
        assert_eq!(scores.len(), probs.len());
        let (steps, rows) = (narrow(time), (probs.len() / time) as u64);
        let scale = 1.0 / (size as f32).sqrt();
        launch!(self.softmax_backward(scores.address(), probs.address(), steps, rows, scale)
            as self.rows(probs.len() / time, time))?;
        self.across(heads, samples, [dq, ds, k], |[out, ds, k]| {
            Product::new(out, ds, k, [time, size, time])
        })?;
        self.across(heads, samples, [dk, ds, q], |[out, ds, q]| {
            Product::new(out, ds.t(), q, [time, size, time])
        })
    }

    /// The same product for every head of every sample.
    pub(super) fn across(
        &self,
        heads: Heads,
        samples: usize,
        matrices: [Across; 3],
        product: impl Fn([Matrix; 3]) -> Product,
    ) -> Result<(), Error> {
        // As few calls as it goes, each of what lies evenly apart.
        let is_by_sample = heads.heads > samples;
        let (calls, count) =
            if is_by_sample { (samples, heads.heads) } else { (heads.heads, samples) };
        (0..calls).try_for_each(|call| {
            let matrix = |across: Across| across.matrix(call, is_by_sample);
            self.product(&product(matrices.map(matrix)).times(count))
        })
    }
}

/// A matrix for each head of each sample in one view.
#[derive(Clone, Copy)]
pub(super) struct Across {
    pub(super) view: View,
    /// Numbers from a row to the next.
    pub(super) apart: usize,
    /// Numbers from a sample to the next, and from a head to the next.
    pub(super) sample: usize,
    pub(super) head: usize,
}

impl Across {
    /// Those that are [time × time] without gaps.
    fn squares(self, heads: Heads) -> Across {
        let head = heads.time * heads.time;
        Across { sample: heads.heads * head, head, ..self }
    }

    /// All heads of a sample, or a head of all samples.
    fn matrix(self, call: usize, is_by_sample: bool) -> Matrix {
        let (start, stride) = match is_by_sample {
            true => (call * self.sample, self.head),
            false => (call * self.head, self.sample),
        };
        Matrix::rows(self.view.part(start..self.view.len()), self.apart).each(stride)
    }
}

/// Queries, keys and values.
fn thirds(qkv: View, heads: Heads) -> [Across; 3] {
    let Heads { time, width, .. } = heads;
    [0, 1, 2].map(|third| Across {
        view: qkv.part(third * width..qkv.len()),
        apart: 3 * width,
        sample: time * 3 * width,
        head: width / heads.heads,
    })
}
