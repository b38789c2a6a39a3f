//! The loops over a shard, each written once and compiled for every instruction set.

use super::Isa;
use super::lane::Lane;
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
        _ => each_measured(rule, weights, gradients, mean, square),
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
        _ => each_squared(values),
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
        weights[i] = P::narrow(weight);
        narrowed[i] = N::narrow(weight);
        if R::MOVES_MOMENTS {
            mean[i] = M::narrow(moments.0);
            square[i] = V::narrow(moments.1);
        }
    }
}

#[inline(always)]
fn each_measured<R: Measure, P: Lane, G: Lane, M: Lane, V: Lane>(
    rule: &R,
    weights: &[P],
    gradients: &[G],
    mean: &mut [M],
    square: &mut [V],
) -> PartSums {
    let count = weights.len();
    let gradients = &gradients[..count];
    let (mean, square) = (&mut mean[..count], &mut square[..count]);
    let (mut of_weights, mut of_updates) = ([0.0; SUMS], [0.0; SUMS]);
    let mut element = |i: usize, sum: usize| {
        let moments = (mean[i].widen(), square[i].widen());
        let moments = rule.moments(gradients[i].widen(), moments);
        mean[i] = M::narrow(moments.0);
        square[i] = V::narrow(moments.1);
        // From what was stored: the pass that applies the update sees nothing else.
        let (weight, stored) = (weights[i].widen(), (mean[i].widen(), square[i].widen()));
        let update = f64::from(rule.update(weight, stored));
        of_weights[sum] += f64::from(weight) * f64::from(weight);
        of_updates[sum] += update * update;
    };
    let whole = count / SUMS * SUMS;
    for first in (0..whole).step_by(SUMS) {
        for sum in 0..SUMS {
            element(first + sum, sum);
        }
    }
    for i in whole..count {
        element(i, i - whole);
    }
    PartSums { weights: total(of_weights), updates: total(of_updates) }
}

#[inline(always)]
fn each_squared<L: Lane>(values: &[L]) -> f64 {
    let mut sums = [0.0; SUMS];
    let (chunks, rest) = values.as_chunks::<SUMS>();
    // The square of an f32 is exact in f64, so multiplying and adding rounds once.
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            let value = f64::from(value.widen());
            *sum += value * value;
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        let value = f64::from(value.widen());
        *sum += value * value;
    }
    total(sums)
}

#[inline(always)]
fn total(mut sums: [f64; SUMS]) -> f64 {
    let mut width = SUMS / 2;
    while width > 0 {
        for sum in 0..width {
            sums[sum] += sums[sum + width];
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
            each_measured(rule, weights, gradients, mean, square)
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = $features)]
        fn $squares<L: Lane>(values: &[L]) -> f64 {
            each_squared(values)
        }
    )*};
}

compiled! {
    "avx2": avx2, avx2_measure, avx2_squares;
    "avx512f,avx512bw,avx512dq,avx512vl": avx512, avx512_measure, avx512_squares;
}
