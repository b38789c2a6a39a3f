//! Attention of some rows to some others' keys and values, a chunk of each at a time, with a
//! softmax that is put right as more chunks come: what ranks that divide tokens do. Products for
//! every head of every sample, and what `chunks.cu` does between them.

use super::attention::Across;
use super::launch::{launch, narrow};
use super::{Device, Product, View};
use crate::error::Error;
use crate::kernels::{Chunk, Heads};
use brigade_cuda::Arg;

/// What attends: queries, and keys and values that they see, in chunks.
#[derive(Clone, Copy)]
pub struct Attending<'c> {
    /// [rows × 3·width], inside.
    pub qkv: View,
    /// [rows × 2·width], inside, maybe of other rows.
    pub kv: View,
    /// Which of the rows see which of the others.
    pub chunk: &'c Chunk,
    /// Shape of the rows that are here.
    pub heads: Heads,
}

impl Attending<'_> {
    fn samples(&self) -> usize {
        self.qkv.len() / (3 * self.heads.width * self.heads.time)
    }

    /// Rows of all scores.
    fn rows(&self) -> usize {
        self.samples() * self.heads.heads * self.chunk.len
    }

    fn size(&self) -> usize {
        self.heads.width / self.heads.heads
    }

    fn scale(&self) -> f32 {
        1.0 / (self.size() as f32).sqrt()
    }

    /// The chunk's queries, in what is as wide as `third` thirds of [rows × width].
    fn of_rows(&self, view: View, thirds: usize) -> Across {
        let Heads { time, width, .. } = self.heads;
        let apart = thirds * width;
        let view = view.part(self.chunk.rows * apart..view.len());
        Across { view, apart, sample: time * apart, head: self.size() }
    }

    /// The chunk's keys, or `half` = 1 its values.
    fn of_columns(&self, view: View, half: usize) -> Across {
        let Heads { time, width, .. } = self.heads;
        let first = self.chunk.columns * 2 * width + half * width;
        let view = view.part(first..view.len());
        Across { view, apart: 2 * width, sample: time * 2 * width, head: self.size() }
    }

    /// [samples × heads × len × len]
    fn squares(&self, view: View) -> Across {
        let len = self.chunk.len;
        let view = view.first(self.rows() * len);
        Across { view, apart: len, sample: self.heads.heads * len * len, head: len * len }
    }
}

impl Device {
    /// More of attention: adds to y, [rows × width] in f32, of which lse, [samples × heads × time]
    /// in f32, says how much has been seen; nothing yet if it `is_first`, when both are written.
    /// scores: [samples × heads × len × len] inside, written.
    pub fn attend(
        &self,
        [y, lse]: [View; 2],
        scores: View,
        of: Attending<'_>,
        is_first: bool,
    ) -> Result<(), Error> {
        let Attending { qkv, kv, chunk, heads } = of;
        let (samples, len, size) = (of.samples(), chunk.len, of.size());
        assert!(y.len() == samples * heads.time * heads.width && y.size() == 4);
        assert!(lse.len() == samples * heads.heads * heads.time);
        let (q, k, v) = (of.of_rows(qkv, 3), of.of_columns(kv, 0), of.of_columns(kv, 1));
        let (s, made) = (of.squares(scores), of.of_rows(y, 1));
        self.across(heads, samples, [s, q, k], |[out, q, k]| {
            Product::new(out, q, k.t(), [len, len, size]).scaled(of.scale())
        })?;
        let flags = u32::from(chunk.is_causal) + 2 * u32::from(is_first);
        let sizes = [len, chunk.rows, heads.time, heads.heads, size].map(narrow);
        let rows = of.rows() as u64;
        launch!(self.chunk_softmax(
            scores.address(), lse.address(), y.address(), sizes[0], sizes[1], sizes[2], sizes[3],
            sizes[4], flags, rows,
        ) as self.rows(of.rows(), len))?;
        self.across(heads, samples, [made, s, v], |[out, p, v]| {
            let product = Product::new(out, p, v, [len, size, len]);
            if is_first { product } else { product.added() }
        })
    }

    /// Adds to dq, [rows × width], and dkv, [rows × 2·width], both in f32, what some columns give
    /// of dy, [rows × width] inside. lse: when all had been seen; delta: of `chunk_deltas`;
    /// scratch: two as long as scores.
    pub fn attend_backward(
        &self,
        [dq, dkv]: [View; 2],
        [scores, scratch]: [View; 2],
        [dy, lse, delta]: [View; 3],
        of: Attending<'_>,
    ) -> Result<(), Error> {
        let Attending { qkv, kv, chunk, heads } = of;
        let (samples, len, size) = (of.samples(), chunk.len, of.size());
        assert!(lse.len() == samples * heads.heads * heads.time && delta.len() == lse.len());
        let (q, k, v) = (of.of_rows(qkv, 3), of.of_columns(kv, 0), of.of_columns(kv, 1));
        let (p, ds, dy) = (of.squares(scores), of.squares(scratch), of.of_rows(dy, 1));
        self.across(heads, samples, [p, q, k], |[out, q, k]| {
            Product::new(out, q, k.t(), [len, len, size]).scaled(of.scale())
        })?;
        self.across(heads, samples, [ds, dy, v], |[out, dy, v]| {
            Product::new(out, dy, v.t(), [len, len, size])
        })?;
        let sizes = [len, chunk.rows, heads.time].map(narrow);
        let (rows, causal) = (of.rows() as u64, u32::from(chunk.is_causal));
        let scale = of.scale();
        launch!(self.chunk_backward(
            scratch.address(), scores.address(), lse.address(), delta.address(), sizes[0],
            sizes[1], sizes[2], scale, causal, rows,
        ) as self.elements(of.rows() * len))?;
        let sum = |[out, a, b]: [super::Matrix; 3], inner: usize| {
            Product::new(out, a, b, [len, size, inner]).added()
        };
        self.across(heads, samples, [of.of_rows(dq, 1), ds, k], |[out, ds, k]| {
            sum([out, ds, k], len)
        })?;
        self.across(heads, samples, [of.of_columns(dkv, 0), ds, q], |[out, ds, q]| {
            sum([out, ds.t(), q], len)
        })?;
        self.across(heads, samples, [of.of_columns(dkv, 1), p, dy], |[out, p, dy]| {
            sum([out, p.t(), dy], len)
        })
    }

    /// Of each row and head the sum of dy · y, which backward needs. delta: [samples × heads ×
    /// time] in f32; dy and y: [rows × width] inside.
    pub fn chunk_deltas(&self, delta: View, dy: View, y: View, heads: Heads) -> Result<(), Error> {
        let Heads { time, heads: count, width } = heads;
        assert!(dy.len() == y.len() && delta.len() == y.len() / width * count);
        let (sizes, len) = ([time, count, width / count].map(narrow), delta.len() as u64);
        launch!(self.chunk_deltas(
            delta.address(), dy.address(), y.address(), sizes[0], sizes[1], sizes[2], len,
        ) as self.elements(delta.len()))
    }

    /// Columns of x from `first` on, which has `apart` of them, as rows of `width` without gaps.
    pub fn take_columns(
        &self,
        y: View,
        x: View,
        [first, width, apart]: [usize; 3],
    ) -> Result<(), Error> {
        assert!(y.len() / width == x.len() / apart && first + width <= apart);
        let (x, len) = (x.part(first..x.len()), y.len() as u64);
        let [width, apart] = [width, apart].map(narrow);
        launch!(self.take_columns(y.address(), x.address(), width, apart, len)
            as self.elements(y.len()))
    }

    /// Rows of `width` without gaps, in f32, as columns of y, which is inside.
    pub fn put_columns(
        &self,
        y: View,
        x: View,
        [first, width, apart]: [usize; 3],
    ) -> Result<(), Error> {
        assert!(y.len() / apart == x.len() / width && first + width <= apart && x.size() == 4);
        let (y, len) = (y.part(first..y.len()), x.len() as u64);
        let [width, apart] = [width, apart].map(narrow);
        launch!(self.put_columns(y.address(), x.address(), width, apart, len)
            as self.elements(x.len()))
    }

    /// A matrix whose tiles lie one after the other, row of tiles by row of tiles, `across` to
    /// each: all f32, added to what is there, or not.
    pub fn join_tiles(
        &self,
        y: View,
        tiles: View,
        [rows, width, across]: [usize; 3],
        is_added: bool,
    ) -> Result<(), Error> {
        assert!(y.len() == tiles.len() && y.len().is_multiple_of(rows * width * across));
        assert_eq!([y.size(), tiles.size()], [4; 2], "sums are in f32");
        let (len, is_added) = (y.len() as u64, u32::from(is_added));
        let [rows, width, across] = [rows, width, across].map(narrow);
        launch!(self.join_tiles(y.address(), tiles.address(), rows, width, across, is_added, len)
            as self.elements(y.len()))
    }
}
