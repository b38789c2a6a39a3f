//! Matrix products: bounds-checked views over the `gemm` crate.
//!
//! A product is cut into panels of rows whose height depends on the shape only, and each panel is
//! computed by one thread. Threads pick panels; they never change what a panel is.

use crate::sys;
use rayon::prelude::*;

/// A matrix to read: element (i, j) lies at `i · row_stride + j · col_stride`.
#[derive(Clone, Copy)]
pub(super) struct Mat<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Mat<'a> {
    /// A row-major matrix whose rows lie `row_stride` apart.
    pub(super) fn new(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Mat<'a> {
        assert!(fits(data.len(), rows, cols, row_stride), "matrix leaves its slice");
        Mat { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// The same elements, transposed.
    pub(super) fn t(self) -> Mat<'a> {
        Mat {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    fn rows(self, start: usize, count: usize) -> Mat<'a> {
        assert!(start + count <= self.rows);
        Mat { data: &self.data[start * self.row_stride..], rows: count, ..self }
    }
}

/// A row-major matrix to write.
pub(super) struct MatMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a> MatMut<'a> {
    /// Rows lie `row_stride` apart.
    pub(super) fn new(
        data: &'a mut [f32],
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) -> MatMut<'a> {
        assert!(fits(data.len(), rows, cols, row_stride), "matrix leaves its slice");
        MatMut { data, rows, cols, row_stride }
    }
}

/// What happens to the elements that were there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Old {
    Replace,
    Keep,
}

/// `out = scale · a · b`, or `out += scale · a · b`, on the calling thread.
pub(super) fn product(out: MatMut<'_>, old: Old, scale: f32, a: Mat<'_>, b: Mat<'_>) {
    assert_eq!((out.rows, out.cols, a.cols), (a.rows, b.cols, b.rows), "shapes of a product");
    // SAFETY: the constructors of the three views checked that every (row, column) lies in its
    // slice, and transposing keeps the set of elements; `out` is borrowed mutably, so it aliases
    // neither `a` nor `b`.
    unsafe {
        ::gemm::gemm(
            out.rows,
            out.cols,
            a.cols,
            out.data.as_mut_ptr(),
            1,
            out.row_stride as isize,
            old == Old::Keep,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            ::gemm::Parallelism::None,
        );
    }
}

/// `out = a · b` over all threads, `out` without gaps between rows. `before` sees each panel of
/// `out` with the index of its first row, just before the product is added to it; without it the
/// product replaces what was there.
pub(super) fn parallel_product<F>(out: &mut [f32], a: Mat<'_>, b: Mat<'_>, before: Option<F>)
where
    F: Fn(&mut [f32], usize) + Sync,
{
    assert_eq!(out.len(), a.rows * b.cols, "shape of the product");
    let cols = b.cols;
    let height = panel_rows(a.rows);
    out.par_chunks_mut(height * cols).enumerate().for_each(|(index, panel)| {
        let (start, rows) = (index * height, panel.len() / cols);
        let old = match &before {
            Some(before) => {
                before(panel, start);
                Old::Keep
            }
            None => Old::Replace,
        };
        product(MatMut::new(panel, rows, cols, cols), old, 1.0, a.rows(start, rows), b);
    });
}

/// The most bytes that a thread packs matrices into for a panel of one of the products that a
/// linear layer makes of `rows`, forward and backward, and gives back after it. The `gemm` crate
/// sizes them by the caches of the machine, so they are counted, in a thread of their own; 0 where
/// nothing counts.
pub(crate) fn packed_bytes(rows: usize, [ins, outs]: [usize; 2]) -> u64 {
    /// What is longer goes through the same memory piece by piece, on any cache that we know.
    const LONGEST: usize = 4096;
    let most = || {
        let (few, rows) = (panel_rows(rows).min(rows), rows.min(LONGEST));
        let few_outs = panel_rows(outs).min(outs);
        let zeros = vec![0.0; (rows.max(few) * ins.max(outs)).max(ins * outs)];
        let matrix = |rows: usize, cols: usize| Mat::new(&zeros[..rows * cols], rows, cols, cols);
        let forward = packed_by(matrix(few, ins), matrix(outs, ins).t());
        let of_input = packed_by(matrix(few, outs), matrix(outs, ins));
        let of_weight = packed_by(matrix(rows, few_outs).t(), matrix(rows, ins));
        forward.max(of_input).max(of_weight)
    };
    std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, most) {
        Ok(thread) => thread.join().expect("products of zeros"),
        // Where no more threads can be made, this one keeps what its own products will want.
        Err(_) => most(),
    })
}

fn packed_by(a: Mat<'_>, b: Mat<'_>) -> u64 {
    let (rows, cols) = (a.rows, b.cols);
    let mut y = vec![0.0; rows * cols];
    let mut run = || product(MatMut::new(&mut y, rows, cols, cols), Old::Replace, 1.0, a, b);
    // What a thread keeps from its first product on is no part of a step.
    run();
    sys::most_of(run)
}

/// Eight panels, but none so low that packing `b` for it costs more than the arithmetic it feeds.
fn panel_rows(rows: usize) -> usize {
    rows.div_ceil(8).next_multiple_of(32).max(128)
}

fn fits(len: usize, rows: usize, cols: usize, row_stride: usize) -> bool {
    rows == 0 || cols == 0 || (cols <= row_stride && (rows - 1) * row_stride + cols <= len)
}
