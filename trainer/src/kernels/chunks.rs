//! Attention of some rows to some others' keys and values, a chunk of each at a time, with a
//! softmax that is put right as more chunks come (Milakov and Gimelshein 2018).
//!
//! Of each row and head is kept `lse = ln Σ exp(score)` over the columns seen so far. A chunk's
//! scores then become their share of the softmax at once, and what was there before shrinks by
//! `exp(lse before − lse after)`. Backward makes the same scores again from `lse`, so no more than
//! a chunk of them is ever held.

use super::gemm::{Mat, MatMut, Old, product};
use super::pointwise::{chunk_backward, chunk_softmax};
use super::{Chunk, Heads};

/// y: [time × width], lse: [heads × time], scores: [chunk × chunk], qkv: [time × 3·width], kv:
/// [time × 2·width], all of one sample; `time` are the rows that are here.
pub(super) fn forward(
    y: &mut [f32],
    lse: &mut [f32],
    scores: &mut [f32],
    qkv: &[f32],
    kv: &[f32],
    (chunks, shape): (&[Chunk], Heads),
) {
    let Heads { time, heads, width } = shape;
    let size = width / heads;
    for head in 0..heads {
        let column = head * size;
        for chunk in chunks {
            let Chunk { rows, columns, len, .. } = *chunk;
            let s = &mut scores[..len * len];
            score(s, qkv, kv, chunk, column, shape);
            let y = &mut y[rows * width + column..];
            let lse = &mut lse[head * time + rows..][..len];
            chunk_softmax(s, lse, y, chunk.is_causal, size, width);
            let v = Mat::new(&kv[columns * 2 * width + width + column..], len, size, 2 * width);
            let y = MatMut::new(y, len, size, width);
            product(y, Old::Keep, 1.0, Mat::new(s, len, len, len), v);
        }
    }
}

/// What backward adds to: the first third of dqkv, [time × 3·width], and dkv, [time × 2·width].
/// scratch: [2 × chunk × chunk]; y and dy: [time × width].
pub(super) fn backward(
    (dqkv, dkv): (&mut [f32], &mut [f32]),
    scratch: &mut [f32],
    (dy, y): (&[f32], &[f32]),
    lse: &[f32],
    (qkv, kv): (&[f32], &[f32]),
    (chunks, shape): (&[Chunk], Heads),
) {
    let Heads { time, heads, width } = shape;
    let size = width / heads;
    let scale = 1.0 / (size as f32).sqrt();
    for head in 0..heads {
        let column = head * size;
        for chunk in chunks {
            let Chunk { rows, columns, len, .. } = *chunk;
            let (p, rest) = scratch.split_at_mut(len * len);
            let ds = &mut rest[..len * len];
            score(p, qkv, kv, chunk, column, shape);
            let own = rows * width + column;
            let theirs = columns * 2 * width + column;
            let grad = Mat::new(&dy[own..], len, size, width);
            let values = Mat::new(&kv[theirs + width..], len, size, 2 * width);
            product(MatMut::new(ds, len, len, len), Old::Replace, 1.0, grad, values.t());
            let lse = &lse[head * time + rows..][..len];
            let (y, dy) = (&y[own..], &dy[own..]);
            chunk_backward(ds, p, lse, y, dy, chunk.is_causal, size, width, scale);

            let (ds, p) = (Mat::new(ds, len, len, len), Mat::new(p, len, len, len));
            let queries = Mat::new(&qkv[rows * 3 * width + column..], len, size, 3 * width);
            let keys = Mat::new(&kv[theirs..], len, size, 2 * width);
            let dq = &mut dqkv[rows * 3 * width + column..];
            product(MatMut::new(dq, len, size, 3 * width), Old::Keep, 1.0, ds, keys);
            let dk = MatMut::new(&mut dkv[theirs..], len, size, 2 * width);
            product(dk, Old::Keep, 1.0, ds.t(), queries);
            let dv = MatMut::new(&mut dkv[theirs + width..], len, size, 2 * width);
            product(dv, Old::Keep, 1.0, p.t(), grad);
        }
    }
}

/// Scaled products of a chunk's queries with another's keys.
fn score(s: &mut [f32], qkv: &[f32], kv: &[f32], chunk: &Chunk, column: usize, shape: Heads) {
    let (width, size) = (shape.width, shape.width / shape.heads);
    let Chunk { rows, columns, len, .. } = *chunk;
    let q = Mat::new(&qkv[rows * 3 * width + column..], len, size, 3 * width);
    let k = Mat::new(&kv[columns * 2 * width + column..], len, size, 2 * width);
    let scale = 1.0 / (size as f32).sqrt();
    product(MatMut::new(s, len, len, len), Old::Replace, scale, q, k.t());
}
