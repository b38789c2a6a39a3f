//! Loops that the compiler can widen, and the run-time choice of how wide.
//!
//! Rust never fuses or reorders float operations, so one body compiled for three instruction sets
//! gives the same bits on each of them. Sums are kept in sixteen explicit lanes for the same
//! reason.

/// Compile one loop for AVX-512, for AVX2 and for the build's own target, and pick at run time.
macro_rules! widened {
    ($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments, reason = "the operands of the formula")]
        pub(super) fn $name($($arg: $ty),*) {
            #[inline(always)]
            fn body($($arg: $ty),*) $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw")]
                fn avx512($($arg: $ty),*) {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) {
                    body($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512vl")
                    && std::arch::is_x86_feature_detected!("avx512dq")
                    && std::arch::is_x86_feature_detected!("avx512bw")
                {
                    // SAFETY: all four features of `avx512` were detected on this processor just
                    // now.
                    return unsafe { avx512($($arg),*) };
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the feature of `avx2` was detected on this processor just now.
                    return unsafe { avx2($($arg),*) };
                }
            }
            body($($arg),*)
        }
    };
}
pub(super) use widened;

const LANES: usize = 16;

/// Sum of `f` over three slices of equal length, in an order that depends on the length only.
#[inline(always)]
pub(super) fn sum3(a: &[f32], b: &[f32], c: &[f32], f: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    let (c, c_tail) = c.as_chunks::<LANES>();
    let mut lanes = [0.0f32; LANES];
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for lane in 0..LANES {
            lanes[lane] += f(a[lane], b[lane], c[lane]);
        }
    }
    let tail = a_tail.iter().zip(b_tail).zip(c_tail).map(|((a, b), c)| f(*a, *b, *c));
    lanes.into_iter().chain(tail).sum()
}

/// Sum of `f` over one slice.
#[inline(always)]
pub(super) fn sum(a: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    sum3(a, a, a, |a, _, _| f(a))
}

/// Largest element; minus infinity for none.
#[inline(always)]
pub(super) fn max(a: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let (whole, tail) = a.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for a in whole {
        for lane in 0..LANES {
            lanes[lane] = larger(a[lane], lanes[lane]);
        }
    }
    lanes.iter().chain(tail).copied().fold(f32::NEG_INFINITY, larger)
}

/// eˣ to about 2 units in the last place; saturates where f32 would overflow or vanish.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2. Adding 1.5·2²³ leaves n in the low bits of the sum, from
/// where a shift carries it into the exponent. The polynomial is the Taylor series of eʳ to degree
/// 7, whose error here is below 6e-9.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r * r + r + 1.0;
    p * f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// Hyperbolic tangent by `exp`.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_to_the_standard_one() {
        let mut worst = 0.0f64;
        for i in -86_000..88_000 {
            let x = i as f32 * 1e-3;
            let want = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - want).abs() / want);
        }
        assert!(worst < 3e-7, "worst relative error {worst:e}");
    }

    #[test]
    fn tanh_is_close_to_the_standard_one() {
        for i in -20_000..20_000 {
            let x = i as f32 * 1e-3;
            assert!((tanh(x) - x.tanh()).abs() < 3e-7, "tanh({x})");
        }
    }

    #[test]
    fn sums_and_maxima_include_the_tail() {
        for len in 0..70 {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            assert_eq!(sum(&values, |x| x), values.iter().sum::<f32>());
            assert_eq!(max(&values), values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        }
    }
}
