//! Layer normalisation (Ba, Kiros and Hinton 2016), one row at a time.

use super::simd::{sum, sum3, widened};

const EPS: f32 = 1e-5;

widened! {
    /// y, x: [rows × width], stats: [rows × 2] as (mean, inverse deviation).
    fn forward(y: &mut [f32], stats: &mut [f32], x: &[f32], gain: &[f32], bias: &[f32]) {
        let width = gain.len();
        let rows = y.chunks_exact_mut(width).zip(x.chunks_exact(width));
        for ((y, x), stats) in rows.zip(stats.chunks_exact_mut(2)) {
            let mean = sum(x, |x| x) / width as f32;
            let variance = sum(x, |x| (x - mean) * (x - mean)) / width as f32;
            let inverse = 1.0 / (variance + EPS).sqrt();
            for (((y, x), gain), bias) in y.iter_mut().zip(x).zip(gain).zip(bias) {
                *y = (x - mean) * inverse * gain + bias;
            }
            stats.copy_from_slice(&[mean, inverse]);
        }
    }
}

widened! {
    /// dx += inverse · (g − mean(g) − x̂ · mean(g · x̂)) with g = dy · gain and x̂ the normalised
    /// x.
    fn backward(dx: &mut [f32], dy: &[f32], x: &[f32], stats: &[f32], gain: &[f32]) {
        let width = gain.len();
        let given = dy.chunks_exact(width).zip(x.chunks_exact(width));
        let rows = dx.chunks_exact_mut(width).zip(given);
        for ((dx, (dy, x)), stats) in rows.zip(stats.chunks_exact(2)) {
            let (mean, inverse) = (stats[0], stats[1]);
            let g_mean = sum3(dy, gain, gain, |dy, gain, _| dy * gain) / width as f32;
            let gx_mean = sum3(dy, gain, x, |dy, gain, x| dy * gain * ((x - mean) * inverse));
            let gx_mean = gx_mean / width as f32;
            for (((dx, dy), x), gain) in dx.iter_mut().zip(dy).zip(x).zip(gain) {
                let normal = (x - mean) * inverse;
                *dx += inverse * (dy * gain - g_mean - normal * gx_mean);
            }
        }
    }
}

widened! {
    /// Gradients of gain and bias for the columns from `column` on; the rows are summed in order.
    fn backward_columns(
        dgain: &mut [f32],
        dbias: &mut [f32],
        dy: &[f32],
        x: &[f32],
        stats: &[f32],
        column: usize,
        width: usize,
    ) {
        let columns = column..column + dgain.len();
        dgain.fill(0.0);
        dbias.fill(0.0);
        let rows = dy.chunks_exact(width).zip(x.chunks_exact(width));
        for ((dy, x), stats) in rows.zip(stats.chunks_exact(2)) {
            let (mean, inverse) = (stats[0], stats[1]);
            let operands = dy[columns.clone()].iter().zip(&x[columns.clone()]);
            for ((dgain, dbias), (dy, x)) in dgain.iter_mut().zip(&mut *dbias).zip(operands) {
                *dgain += dy * ((x - mean) * inverse);
                *dbias += dy;
            }
        }
    }
}
