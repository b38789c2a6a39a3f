//! Causal self-attention of one sample (Vaswani et al. 2017), in blocks of rows.
//!
//! Rows i..j of the scores need columns 0..j only, so working in blocks of 64 rows skips nearly
//! half of the products. Heads are columns of the same rows: views with a stride, no copies.

use super::Heads;
use super::gemm::{Mat, MatMut, Old, product};
use super::pointwise::{causal_softmax, softmax_backward};

/// y: [time × width], probs: [heads × time × time], qkv: [time × 3·width].
pub(super) fn forward(y: &mut [f32], probs: &mut [f32], qkv: &[f32], shape: Heads) {
    let Heads { time, heads, width } = shape;
    let size = width / heads;
    let scale = 1.0 / (size as f32).sqrt();
    for (head, probs) in probs.chunks_exact_mut(time * time).enumerate() {
        let [q, k, v] = columns(qkv, head * size, width);
        for (rows, end) in blocks(time) {
            let count = end - rows;
            let p = &mut probs[rows * time..end * time];
            let q = Mat::new(&q[rows * 3 * width..], count, size, 3 * width);
            let k = Mat::new(k, end, size, 3 * width);
            product(MatMut::new(p, count, end, time), Old::Replace, scale, q, k.t());
            causal_softmax(p, time, end, rows);
            let v = Mat::new(v, end, size, 3 * width);
            let y = MatMut::new(&mut y[rows * width + head * size..], count, size, width);
            product(y, Old::Replace, 1.0, Mat::new(p, count, end, time), v);
        }
    }
}

/// dqkv: [time × 3·width], scratch: [`shape.scratch()`]; the other shapes as in `forward`.
pub(super) fn backward(
    dqkv: &mut [f32],
    scratch: &mut [f32],
    dy: &[f32],
    qkv: &[f32],
    probs: &[f32],
    shape: Heads,
) {
    let Heads { time, heads, width } = shape;
    let (size, stride) = (width / heads, 3 * width);
    let scale = 1.0 / (size as f32).sqrt();
    // Each block of rows adds to the keys and values of all tokens before it.
    dqkv.fill(0.0);
    for (head, probs) in probs.chunks_exact(time * time).enumerate() {
        let column = head * size;
        let [q, k, v] = columns(qkv, column, width);
        for (rows, end) in blocks(time) {
            let count = end - rows;
            let ds = &mut scratch[..count * end];
            let p = &probs[rows * time..end * time];
            let dy = Mat::new(&dy[rows * width + column..], count, size, width);
            let values = Mat::new(v, end, size, stride);
            product(MatMut::new(ds, count, end, end), Old::Replace, 1.0, dy, values.t());
            softmax_backward(ds, p, time, end, scale);

            let (ds, p) = (Mat::new(ds, count, end, end), Mat::new(p, count, end, time));
            let queries = Mat::new(&q[rows * stride..], count, size, stride);
            let keys = Mat::new(k, end, size, stride);
            let dq = MatMut::new(&mut dqkv[rows * stride + column..], count, size, stride);
            product(dq, Old::Replace, 1.0, ds, keys);
            let dk = MatMut::new(&mut dqkv[width + column..], end, size, stride);
            product(dk, Old::Keep, 1.0, ds.t(), queries);
            let dv = MatMut::new(&mut dqkv[2 * width + column..], end, size, stride);
            product(dv, Old::Keep, 1.0, p.t(), dy);
        }
    }
}

/// Queries, keys and values of the head whose columns start at `column`.
fn columns(qkv: &[f32], column: usize, width: usize) -> [&[f32]; 3] {
    [&qkv[column..], &qkv[width + column..], &qkv[2 * width + column..]]
}

/// First row and end of each block.
fn blocks(time: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..time).step_by(Heads::ROWS).map(move |row| (row, time.min(row + Heads::ROWS)))
}
