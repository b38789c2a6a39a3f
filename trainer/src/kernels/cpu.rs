//! The kernels on processor cores: `gemm` for products, widened loops for the rest, rayon to spread
//! both.

use super::gemm::{Mat, MatMut, Old, parallel_product, product};
use super::{Chunk, Heads, Kernels, attention, chunks, norm, pointwise};
use rayon::prelude::*;
use std::time::Instant;

/// Kernels that run on the rayon pool of the calling thread.
///
/// `install` a pool around the training loop to choose the number of threads; results do not depend
/// on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

/// Elements a thread takes at a time where elements are independent.
const ELEMENTS: usize = 1 << 15;
/// Columns a thread takes at a time where rows are summed: four cache lines of each row.
const COLUMNS: usize = 64;

/// Rows a thread takes at a time where rows are independent.
fn rows(width: usize) -> usize {
    (ELEMENTS / width).max(1)
}

impl Cpu {
    /// Billions of operations a second in products of a model of this width, on so many threads.
    /// Cost: about a quarter of a second.
    pub fn rate(&self, threads: usize, width: usize) -> f64 {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let measure = || {
            let (rows, wide) = (512, 4 * width);
            let (x, weight) = (vec![1.0; rows * width], vec![1.0; wide * width]);
            let mut y = vec![0.0; rows * wide];
            let (begun, mut count) = (Instant::now(), 0);
            while begun.elapsed().as_millis() < 250 {
                self.linear(&mut y, &x, &weight, &[], width, None);
                count += 1;
            }
            let operations = 2.0 * (rows * wide * width) as f64 * f64::from(count);
            operations / begun.elapsed().as_secs_f64() / 1e9
        };
        // Where threads cannot be had, the calling one measures.
        pool.map_or_else(|_| measure(), |pool| pool.install(measure))
    }

    /// Have every thread of the pool take the memory that its products pack into, which it keeps.
    pub fn prepare(&self) {
        const SIDE: usize = 256;
        rayon::broadcast(|_| {
            let (ones, mut out) = (vec![1.0; SIDE * SIDE], vec![0.0; SIDE * SIDE]);
            let ones = Mat::new(&ones, SIDE, SIDE, SIDE);
            product(MatMut::new(&mut out, SIDE, SIDE, SIDE), Old::Replace, 1.0, ones.t(), ones);
        });
    }
}

impl Kernels for Cpu {
    fn embed(
        &self,
        x: &mut [f32],
        rows: &[u32],
        tokens: &[u32],
        [wte, wpe]: [&[f32]; 2],
        shape: Heads,
    ) {
        let Heads { time, width, .. } = shape;
        assert_eq!(x.len(), rows.len() * width);
        x.par_chunks_mut(width).with_min_len(self::rows(width)).zip(rows).for_each(|(x, &row)| {
            let token = &wte[tokens[row as usize] as usize * width..][..width];
            let position = &wpe[row as usize % time * width..][..width];
            for ((x, t), p) in x.iter_mut().zip(token).zip(position) {
                *x = t + p;
            }
        });
    }

    fn embed_backward(
        &self,
        [dwte, dwpe]: [&mut [f32]; 2],
        dx: &[f32],
        rows: &[u32],
        tokens: &[u32],
        shape: Heads,
    ) {
        let Heads { time, width, .. } = shape;
        assert_eq!(dx.len(), rows.len() * width);
        // Tokens repeat, so rows collide: one thread a table, rows in order. It is 1 % of a step.
        let sum = |table: &mut [f32], place: &(dyn Fn(usize) -> usize + Sync)| {
            table.fill(0.0);
            for (dx, &row) in dx.chunks_exact(width).zip(rows) {
                pointwise::add(&mut table[place(row as usize) * width..][..width], dx);
            }
        };
        rayon::join(|| sum(dwte, &|row| tokens[row] as usize), || sum(dwpe, &|row| row % time));
    }

    fn layernorm(&self, y: &mut [f32], stats: &mut [f32], x: &[f32], gain: &[f32], bias: &[f32]) {
        let (width, rows) = (gain.len(), rows(gain.len()));
        assert!(y.len() == x.len() && stats.len() * width == 2 * x.len());
        y.par_chunks_mut(rows * width)
            .zip(stats.par_chunks_mut(rows * 2))
            .zip(x.par_chunks(rows * width))
            .for_each(|((y, stats), x)| norm::forward(y, stats, x, gain, bias));
    }

    fn layernorm_backward(
        &self,
        dx: &mut [f32],
        dgain: &mut [f32],
        dbias: &mut [f32],
        dy: &[f32],
        x: &[f32],
        stats: &[f32],
        gain: &[f32],
    ) {
        let width = gain.len().max(dgain.len());
        let rows = rows(width);
        assert!(dx.is_empty() || dx.len() == x.len());
        assert!(dy.len() == x.len() && stats.len() * width == 2 * x.len());
        dx.par_chunks_mut(rows * width)
            .zip(dy.par_chunks(rows * width))
            .zip(x.par_chunks(rows * width))
            .zip(stats.par_chunks(rows * 2))
            .for_each(|(((dx, dy), x), stats)| norm::backward(dx, dy, x, stats, gain));
        let columns = dgain.par_chunks_mut(COLUMNS).zip(dbias.par_chunks_mut(COLUMNS));
        columns.enumerate().for_each(|(index, (dgain, dbias))| {
            norm::backward_columns(dgain, dbias, dy, x, stats, index * COLUMNS, width);
        });
    }

    fn linear(
        &self,
        y: &mut [f32],
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        inputs: usize,
        onto: Option<&[f32]>,
    ) {
        let (rows, outputs) = (x.len() / inputs, weight.len() / inputs);
        let x = Mat::new(x, rows, inputs, inputs);
        let weight = Mat::new(weight, outputs, inputs, inputs);
        if onto.is_none() && bias.is_empty() {
            return parallel_product(y, x, weight.t(), None::<fn(&mut [f32], usize)>);
        }
        let start = |panel: &mut [f32], row: usize| {
            let onto = onto.map(|onto| &onto[row * outputs..][..panel.len()]);
            pointwise::start_rows(panel, onto, bias, outputs);
        };
        parallel_product(y, x, weight.t(), Some(start));
    }

    fn linear_backward(
        &self,
        dx: &mut [f32],
        dweight: &mut [f32],
        dbias: &mut [f32],
        dy: &[f32],
        x: &[f32],
        weight: &[f32],
        inputs: usize,
    ) {
        let (rows, outputs) = (x.len() / inputs, weight.len().max(dweight.len()) / inputs);
        let alone = None::<fn(&mut [f32], usize)>;
        let dy_mat = Mat::new(dy, rows, outputs, outputs);
        let to_input = || {
            if !dx.is_empty() {
                let weight = Mat::new(weight, outputs, inputs, inputs);
                parallel_product(dx, dy_mat, weight, alone);
            }
        };
        let to_weight = || {
            if !dweight.is_empty() {
                let x = Mat::new(x, rows, inputs, inputs);
                parallel_product(dweight, dy_mat.t(), x, alone);
            }
        };
        let sums = || {
            dbias.par_chunks_mut(COLUMNS).enumerate().for_each(|(index, sums)| {
                pointwise::column_sums(sums, dy, index * COLUMNS, outputs);
            });
        };
        // Independent products side by side: small matrices have too few panels for many threads.
        rayon::join(to_input, || rayon::join(to_weight, sums));
    }

    fn attention(&self, y: &mut [f32], probs: &mut [f32], qkv: &[f32], shape: Heads) {
        let Heads { time, heads, width } = shape;
        assert!(qkv.len() == 3 * y.len() && probs.len() * width == y.len() * heads * time);
        y.par_chunks_mut(time * width)
            .zip(probs.par_chunks_mut(heads * time * time))
            .zip(qkv.par_chunks(time * 3 * width))
            .for_each(|((y, probs), qkv)| attention::forward(y, probs, qkv, shape));
    }

    fn attention_backward(
        &self,
        dqkv: &mut [f32],
        scratch: &mut [f32],
        dy: &[f32],
        qkv: &[f32],
        probs: &[f32],
        shape: Heads,
    ) {
        let Heads { time, heads, width } = shape;
        assert!(dqkv.len() == qkv.len() && probs.len() * width == dy.len() * heads * time);
        dqkv.par_chunks_mut(time * 3 * width)
            .zip(scratch.par_chunks_mut(shape.scratch()))
            .zip(dy.par_chunks(time * width))
            .zip(qkv.par_chunks(time * 3 * width))
            .zip(probs.par_chunks(heads * time * time))
            .for_each(|((((dqkv, scratch), dy), qkv), probs)| {
                attention::backward(dqkv, scratch, dy, qkv, probs, shape);
            });
    }

    fn attend(
        &self,
        (y, lse): (&mut [f32], &mut [f32]),
        scratch: &mut [f32],
        (qkv, kv): (&[f32], &[f32]),
        to: (&[Chunk], Heads),
    ) {
        let Heads { time, heads, width } = to.1;
        let Some(&Chunk { len, .. }) = to.0.first() else { return };
        assert!(qkv.len() == 3 * y.len() && lse.len() * width == y.len() * heads);
        y.par_chunks_mut(time * width)
            .zip(lse.par_chunks_mut(heads * time))
            .zip(scratch.par_chunks_mut(len * len))
            .zip(qkv.par_chunks(time * 3 * width))
            .zip(kv.par_chunks(time * 2 * width))
            .for_each(|((((y, lse), scores), qkv), kv)| {
                chunks::forward(y, lse, scores, qkv, kv, to);
            });
    }

    fn attend_backward(
        &self,
        (dqkv, dkv): (&mut [f32], &mut [f32]),
        scratch: &mut [f32],
        (dy, y, lse): (&[f32], &[f32], &[f32]),
        (qkv, kv): (&[f32], &[f32]),
        to: (&[Chunk], Heads),
    ) {
        let Heads { time, heads, width } = to.1;
        let Some(&Chunk { len, .. }) = to.0.first() else { return };
        assert!(qkv.len() == 3 * y.len() && lse.len() * width == y.len() * heads);
        let given = qkv.par_chunks(time * 3 * width).zip(kv.par_chunks(time * 2 * width));
        let made = dy.par_chunks(time * width).zip(y.par_chunks(time * width));
        dqkv.par_chunks_mut(time * 3 * width)
            .zip(dkv.par_chunks_mut(time * 2 * width))
            .zip(scratch.par_chunks_mut(2 * len * len))
            .zip(made.zip(lse.par_chunks(heads * time)))
            .zip(given)
            .for_each(|((((dqkv, dkv), scratch), (made, lse)), given)| {
                chunks::backward((dqkv, dkv), scratch, made, lse, given, to);
            });
    }

    fn gelu(&self, y: &mut [f32], x: &[f32]) {
        assert_eq!(y.len(), x.len());
        let x = x.par_chunks(ELEMENTS);
        y.par_chunks_mut(ELEMENTS).zip(x).for_each(|(y, x)| pointwise::gelu(y, x));
    }

    fn gelu_backward(&self, dy: &mut [f32], x: &[f32]) {
        assert_eq!(dy.len(), x.len());
        let x = x.par_chunks(ELEMENTS);
        dy.par_chunks_mut(ELEMENTS).zip(x).for_each(|(dy, x)| pointwise::gelu_backward(dy, x));
    }

    fn cross_entropy(&self, logits: &mut [f32], losses: &mut [f32], targets: &[u32], scale: f32) {
        let vocab = logits.len() / targets.len();
        let rows = rows(vocab);
        assert_eq!(losses.len(), targets.len());
        logits
            .par_chunks_mut(rows * vocab)
            .zip(losses.par_chunks_mut(rows))
            .zip(targets.par_chunks(rows))
            .for_each(|((logits, losses), targets)| {
                pointwise::cross_entropy(logits, losses, targets, scale, vocab);
            });
    }

    fn add(&self, total: &mut [f32], part: &[f32]) {
        assert_eq!(total.len(), part.len());
        let part = part.par_chunks(ELEMENTS);
        total.par_chunks_mut(ELEMENTS).zip(part).for_each(|(sum, part)| pointwise::add(sum, part));
    }

    fn threads(&self) -> usize {
        rayon::current_num_threads()
    }
}
