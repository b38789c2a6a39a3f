//! Loops over elements and rows: GELU, softmax, cross-entropy, column sums.

use super::simd::{exp, max, sum, sum3, tanh, widened};

/// √(2/π), of GELU's tanh form.
const ROOT: f32 = 0.797_884_6;
const CUBE: f32 = 0.044_715;

widened! {
    /// y = x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))
    fn gelu(y: &mut [f32], x: &[f32]) {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = 0.5 * x * (1.0 + tanh(ROOT * (x + CUBE * x * x * x)));
        }
    }
}

widened! {
    /// dy becomes dx.
    fn gelu_backward(dy: &mut [f32], x: &[f32]) {
        for (dy, &x) in dy.iter_mut().zip(x) {
            let t = tanh(ROOT * (x + CUBE * x * x * x));
            let slope = ROOT * (1.0 + 3.0 * CUBE * x * x);
            *dy *= 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope;
        }
    }
}

widened! {
    /// Softmax in place over the first `first + 1`, `first + 2`, ... elements of the rows; the rest
    /// of each row becomes zero. rows: [any × stride], of which `used` columns count.
    fn causal_softmax(rows: &mut [f32], stride: usize, used: usize, first: usize) {
        for (index, row) in rows.chunks_mut(stride).enumerate() {
            let (past, future) = row[..used].split_at_mut(first + index + 1);
            let top = max(past);
            for p in past.iter_mut() {
                *p = exp(*p - top);
            }
            let scale = 1.0 / sum(past, |p| p);
            for p in past.iter_mut() {
                *p *= scale;
            }
            future.fill(0.0);
        }
    }
}

widened! {
    /// ds = p · (dp − Σ dp·p) · scale, in place of dp. dp: [rows × used] without gaps; the rows of
    /// `probs` lie `stride` apart.
    fn softmax_backward(dp: &mut [f32], probs: &[f32], stride: usize, used: usize, scale: f32) {
        for (dp, p) in dp.chunks_exact_mut(used).zip(probs.chunks(stride)) {
            let p = &p[..used];
            let dot = sum3(dp, p, p, |dp, p, _| dp * p);
            for (dp, p) in dp.iter_mut().zip(p) {
                *dp = p * (*dp - dot) * scale;
            }
        }
    }
}

widened! {
    /// Scores of as many rows as columns become their share of a softmax over all columns seen so
    /// far; rows of `y`, `size` numbers each and `stride` apart, shrink to theirs.
    fn chunk_softmax(
        scores: &mut [f32],
        lse: &mut [f32],
        y: &mut [f32],
        is_causal: bool,
        size: usize,
        stride: usize,
    ) {
        let len = lse.len();
        let rows = scores.chunks_exact_mut(len).zip(y.chunks_mut(stride)).zip(lse);
        for (row, ((scores, y), lse)) in rows.enumerate() {
            let (seen, future) = scores.split_at_mut(if is_causal { row + 1 } else { len });
            let top = max(seen).max(*lse);
            // Before the first chunk `lse` is minus infinity, which `exp` would only make small.
            let before = if lse.is_finite() { exp(*lse - top) } else { 0.0 };
            for s in seen.iter_mut() {
                *s = exp(*s - top);
            }
            let total = before + sum(seen, |s| s);
            let scale = 1.0 / total;
            for s in seen.iter_mut() {
                *s *= scale;
            }
            for y in &mut y[..size] {
                *y *= before * scale;
            }
            future.fill(0.0);
            *lse = top + total.ln();
        }
    }
}

widened! {
    /// Scores become p = exp(score − lse) again, and dp becomes ds = p · (dp − Σ dy·y) · scale.
    fn chunk_backward(
        dp: &mut [f32],
        scores: &mut [f32],
        lse: &[f32],
        y: &[f32],
        dy: &[f32],
        is_causal: bool,
        size: usize,
        stride: usize,
        scale: f32,
    ) {
        let len = lse.len();
        let given = y.chunks(stride).zip(dy.chunks(stride)).zip(lse);
        let rows = dp.chunks_exact_mut(len).zip(scores.chunks_exact_mut(len)).zip(given);
        for (row, ((dp, p), ((y, dy), lse))) in rows.enumerate() {
            let (y, dy) = (&y[..size], &dy[..size]);
            let dot = sum3(y, dy, dy, |y, dy, _| y * dy);
            let seen = if is_causal { row + 1 } else { len };
            for (dp, p) in dp[..seen].iter_mut().zip(&mut p[..seen]) {
                *p = exp(*p - lse);
                *dp = *p * (*dp - dot) * scale;
            }
            dp[seen..].fill(0.0);
            p[seen..].fill(0.0);
        }
    }
}

widened! {
    /// Logits become `scale · (softmax − one-hot)`; losses take −log softmax at the target.
    fn cross_entropy(
        logits: &mut [f32],
        losses: &mut [f32],
        targets: &[u32],
        scale: f32,
        vocab: usize,
    ) {
        let rows = logits.chunks_exact_mut(vocab).zip(losses);
        for ((row, loss), &target) in rows.zip(targets) {
            let top = max(row);
            let wanted = row[target as usize] - top;
            for p in row.iter_mut() {
                *p = exp(*p - top);
            }
            let total = sum(row, |p| p);
            *loss = total.ln() - wanted;
            let each = scale / total;
            for p in row.iter_mut() {
                *p *= each;
            }
            row[target as usize] -= scale;
        }
    }
}

widened! {
    /// Sum over all rows of the columns from `column` on, in row order.
    fn column_sums(sums: &mut [f32], rows: &[f32], column: usize, width: usize) {
        sums.fill(0.0);
        for row in rows.chunks_exact(width) {
            for (sum, x) in sums.iter_mut().zip(&row[column..]) {
                *sum += x;
            }
        }
    }
}

widened! {
    /// y = onto + bias, row by row, either of which may be missing.
    fn start_rows(y: &mut [f32], onto: Option<&[f32]>, bias: &[f32], width: usize) {
        match onto {
            Some(onto) => y.copy_from_slice(onto),
            None => y.fill(0.0),
        }
        if bias.is_empty() {
            return;
        }
        for row in y.chunks_exact_mut(width) {
            for (y, b) in row.iter_mut().zip(bias) {
                *y += b;
            }
        }
    }
}

widened! {
    /// total += part.
    fn add(total: &mut [f32], part: &[f32]) {
        for (total, part) in total.iter_mut().zip(part) {
            *total += part;
        }
    }
}
