//! The loops over a shard, each written once and compiled for every instruction set.

use super::Isa;
use super::lane::{Lane, canonical};
use super::rule::{Measure, Rule};

/// Sums of squares over one part: of its weights, and of the updates they are about to get.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::optimizer) struct PartSums {
    pub(in crate::optimizer) weights: f64,
    pub(in crate::optimizer) updates: f64,
}

/// In how many interleaved sums a reduction runs: enough to keep the adders of any machine busy.
const SUMS: usize = 32;

/// Update every element by `rule`. All slices are as long as `weights`.
pub(in crate::optimizer) fn update<R: Rule, P: Lane, G: Lane, M: Lane, V: Lane, N: Lane>(
    (isa, rule): (Isa, &R),
    weights: &mut [P],
    gradients: &[G],
    mean: &mut [M],
    square: &mut [V],
    narrowed: &mut [N],
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` comes from a `Crew`, which takes none that this machine lacks.
        Isa::Avx512 => unsafe { avx512(rule, weights, gradients, mean, square, narrowed) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2(rule, weights, gradients, mean, square, narrowed) },
        _ => each(rule, weights, gradients, mean, square, narrowed),
    }
}

/// Update both moments by `rule`, and sum up the squares of weights and updates.
pub(in crate::optimizer) fn measure<R: Measure, P: Lane, G: Lane, M: Lane, V: Lane>(
    (isa, rule): (Isa, &R),
    weights: &[P],
    gradients: &[G],
    mean: &mut [M],
    square: &mut [V],
) -> PartSums {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` comes from a `Crew`, which takes none that this machine lacks.
        Isa::Avx512 => unsafe { avx512_measure(rule, weights, gradients, mean, square) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2_measure(rule, weights, gradients, mean, square) },
        _ => each_measured::<false, _, _, _, _, _>(rule, weights, gradients, mean, square),
    }
}

/// The sum of squares, in f64. Element `i` goes to sum `i mod 32`; at the end the upper half of the
/// sums is added to the lower half until one is left.
pub(in crate::optimizer) fn squares<L: Lane>(isa: Isa, values: &[L]) -> f64 {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` comes from a `Crew`, which takes none that this machine lacks.
        Isa::Avx512 => unsafe { avx512_squares(values) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 => unsafe { avx2_squares(values) },
        _ => each_squared::<false, _>(values),
    }
}

/// The slices stay arguments of their own down to here: that is how the compiler knows that they
/// do not overlap, without which it would not make vectors of five arrays.
#[inline(always)]
fn each<R: Rule, P: Lane, G: Lane, M: Lane, V: Lane, N: Lane>(
    rule: &R,
    weights: &mut [P],
    gradients: &[G],
    mean: &mut [M],
    square: &mut [V],
    narrowed: &mut [N],
) {
    let count = weights.len();
    let (gradients, narrowed) = (&gradients[..count], &mut narrowed[..count]);
    let (mean, square) = (&mut mean[..count], &mut square[..count]);
    for i in 0..count {
        let moments = (mean[i].widen(), square[i].widen());
        let (weight, moments) = rule.step(weights[i].widen(), gradients[i].widen(), moments);
        let weight = canonical(weight);
        weights[i] = P::narrow(weight);
        narrowed[i] = N::narrow(weight);
        if R::MOVES_MOMENTS {
            mean[i] = M::narrow(canonical(moments.0));
            square[i] = V::narrow(canonical(moments.1));
        }
    }
}

/// Loops of a fixed length inside one over chunks, because the compiler makes no vectors of a loop
/// that also adds up.
#[inline(always)]
fn each_measured<const FUSED: bool, R: Measure, P: Lane, G: Lane, M: Lane, V: Lane>(
    rule: &R,
    weights: &[P],
    gradients: &[G],
    mean: &mut [M],
    square: &mut [V],
) -> PartSums {
    let (mut of_weights, mut of_updates) = ([0.0; SUMS], [0.0; SUMS]);
    let (weights, last_weights) = weights.as_chunks::<SUMS>();
    let (gradients, last_gradients) = gradients.as_chunks::<SUMS>();
    let (mean, last_mean) = mean.as_chunks_mut::<SUMS>();
    let (square, last_square) = square.as_chunks_mut::<SUMS>();
    for (((weights, gradients), mean), square) in
        weights.iter().zip(gradients).zip(mean).zip(square)
    {
        let (mut wide, mut updates) = ([0.0; SUMS], [0.0; SUMS]);
        for i in 0..SUMS {
            wide[i] = weights[i].widen();
            updates[i] = measured(rule, wide[i], gradients[i], &mut mean[i], &mut square[i]);
        }
        add_squares::<FUSED, f32>(&mut of_weights, &wide);
        add_squares::<FUSED, f32>(&mut of_updates, &updates);
    }
    let mut updates = [0.0; SUMS];
    for i in 0..last_weights.len() {
        let (weight, gradient) = (last_weights[i].widen(), last_gradients[i]);
        updates[i] = measured(rule, weight, gradient, &mut last_mean[i], &mut last_square[i]);
    }
    add_squares::<FUSED, P>(&mut of_weights, last_weights);
    add_squares::<FUSED, f32>(&mut of_updates, &updates[..last_weights.len()]);
    PartSums { weights: total(&mut of_weights), updates: total(&mut of_updates) }
}

/// The update of one element, from its moments as they are stored: the pass that applies it sees
/// nothing else.
#[inline(always)]
fn measured<R: Measure, G: Lane, M: Lane, V: Lane>(
    rule: &R,
    weight: f32,
    gradient: G,
    mean: &mut M,
    square: &mut V,
) -> f32 {
    let moments = rule.moments(gradient.widen(), (mean.widen(), square.widen()));
    *mean = M::narrow(canonical(moments.0));
    *square = V::narrow(canonical(moments.1));
    rule.update(weight, (mean.widen(), square.widen()))
}

#[inline(always)]
fn each_squared<const FUSED: bool, L: Lane>(values: &[L]) -> f64 {
    let mut sums = [0.0; SUMS];
    let (chunks, rest) = values.as_chunks::<SUMS>();
    for chunk in chunks {
        add_squares::<FUSED, L>(&mut sums, chunk);
    }
    add_squares::<FUSED, L>(&mut sums, rest);
    total(&mut sums)
}

/// Add the square of each value to the sum in its place. The square of an f32 is exact in f64, so
/// a fused multiply-add rounds as often as the other form, which is for machines without one.
#[inline(always)]
fn add_squares<const FUSED: bool, L: Lane>(sums: &mut [f64; SUMS], values: &[L]) {
    for (sum, value) in sums.iter_mut().zip(values) {
        let value = f64::from(value.widen());
        *sum = if FUSED { value.mul_add(value, *sum) } else { *sum + value * value };
    }
}

/// Not inlined: its few additions would tear apart the vectors of the loop before.
#[inline(never)]
fn total(sums: &mut [f64; SUMS]) -> f64 {
    let mut width = SUMS / 2;
    while width > 0 {
        let (lower, upper) = sums[..2 * width].split_at_mut(width);
        for (sum, other) in lower.iter_mut().zip(upper) {
            *sum += *other;
        }
        width /= 2;
    }
    sums[0]
}

macro_rules! compiled {
    ($($features:literal: $update:ident, $measure:ident, $squares:ident;)*) => {$(
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        fn $update<R: Rule, P: Lane, G: Lane, M: Lane, V: Lane, N: Lane>(
            rule: &R,
            weights: &mut [P],
            gradients: &[G],
            mean: &mut [M],
            square: &mut [V],
            narrowed: &mut [N],
        ) {
            each(rule, weights, gradients, mean, square, narrowed);
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        fn $measure<R: Measure, P: Lane, G: Lane, M: Lane, V: Lane>(
            rule: &R,
            weights: &[P],
            gradients: &[G],
            mean: &mut [M],
            square: &mut [V],
        ) -> PartSums {
            each_measured::<true, _, _, _, _, _>(rule, weights, gradients, mean, square)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        fn $squares<L: Lane>(values: &[L]) -> f64 {
            each_squared::<true, _>(values)
        }
    )*};
}

compiled! {
    "avx2,fma": avx2, avx2_measure, avx2_squares;
    "fma,avx512f,avx512bw,avx512dq,avx512vl": avx512, avx512_measure, avx512_squares;
}
