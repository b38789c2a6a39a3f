//! Norms of tensors whose parts lie with several ranks, with the same bits however they are cut.
//!
//! The square of an f32 is a whole multiple of 2⁻²⁹⁸ with 48 digits, so squares are added as whole
//! numbers (Kulisch 1971): in any order, on any number of threads and ranks, the sum is the same.
//! It becomes an f64 at the end only, from digits that say nothing of how it came about.

use brigade_offload::optimizer::{SquareSum, TensorNorms};
use rayon::prelude::*;

/// Digits in base 2³², and how many numbers were not finite.
const DIGITS: usize = 19;
/// Elements that a thread adds at a time.
const ELEMENTS: usize = 1 << 14;

/// A sum of squares that has not been rounded. Sums of these are added digit by digit, and digits
/// have 64 bits, so 2³² of them fit, once they are `carried`, and as many elements where each is
/// added by itself, as on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExactSum([u64; DIGITS]);

impl ExactSum {
    pub(crate) const ZERO: ExactSum = ExactSum([0; DIGITS]);

    /// How many numbers ranks tell each other of one.
    pub(crate) const NUMBERS: usize = DIGITS;

    /// Of so many numbers. Cost: about a nanosecond for each, on all threads.
    pub(crate) fn of(count: usize, number: impl Fn(usize) -> f32 + Sync) -> ExactSum {
        let parts = (0..count.div_ceil(ELEMENTS)).into_par_iter().map(|part| {
            let mut squares = Squares::NONE;
            for index in part * ELEMENTS..((part + 1) * ELEMENTS).min(count) {
                squares.add(index, number(index));
            }
            squares.sum()
        });
        parts.reduce(|| ExactSum::ZERO, ExactSum::plus)
    }

    /// The sum of both.
    pub(crate) fn plus(mut self, other: ExactSum) -> ExactSum {
        for (digit, more) in self.0.iter_mut().zip(other.0) {
            *digit += more;
        }
        self
    }

    /// Of these halves of its numbers, the lower ones first, as a device adds them up.
    pub(crate) fn of_words(words: &[u32; 2 * DIGITS]) -> ExactSum {
        let mut sum = ExactSum::ZERO;
        for (number, [low, high]) in sum.0.iter_mut().zip(words.as_chunks::<2>().0) {
            *number = u64::from(*low) | u64::from(*high) << 32;
        }
        sum.carried()
    }

    /// The same sum with no more than 32 bits in each digit but the highest: there is one such
    /// form, however the sum came about.
    fn carried(mut self) -> ExactSum {
        for digit in 0..DIGITS - 2 {
            self.0[digit + 1] += self.0[digit] >> 32;
            self.0[digit] &= 0xffff_ffff;
        }
        self
    }

    /// What is to be added over ranks, number by number.
    pub(crate) fn numbers_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }

    /// What was added; no number if some of it was none.
    pub(crate) fn rounded(self) -> SquareSum {
        if self.0[DIGITS - 1] > 0 {
            return SquareSum(f64::NAN);
        }
        let carried = self.carried();
        let digits = carried.0[..DIGITS - 1].iter().enumerate().rev();
        SquareSum(digits.fold(0.0, |sum, (digit, &value)| {
            sum + value as f64 * (32.0 * digit as f64 - 298.0).exp2()
        }))
    }
}

/// Of each exponent, the squares of the fractions that had it, 48 bits each, so that `ELEMENTS` of
/// them fit; of the last one, how many numbers were not finite. Neighbours often have the same
/// exponent: they have tables of their own, so that none waits for the one before.
struct Squares([[u64; 256]; 4]);

impl Squares {
    const NONE: Squares = Squares([[0; 256]; 4]);

    #[inline]
    fn add(&mut self, index: usize, number: f32) {
        let bits = number.to_bits();
        let (exponent, fraction) = (bits >> 23 & 0xff, u64::from(bits & 0x7f_ffff));
        // Numbers without an exponent have no leading one either.
        let whole = if exponent == 0 { fraction } else { fraction | 1 << 23 };
        let square = if exponent == 0xff { 1 } else { whole * whole };
        self.0[index % 4][exponent as usize] += square;
    }

    fn sum(&self) -> ExactSum {
        let mut sum = ExactSum::ZERO;
        let of = |exponent: usize| self.0.iter().map(|table| table[exponent]).sum::<u64>();
        for exponent in 0..0xff {
            let place = 2 * (exponent.max(1) - 1);
            let squares = u128::from(of(exponent)) << (place % 32);
            for (digit, sum) in sum.0[place / 32..][..3].iter_mut().enumerate() {
                *sum += (squares >> (32 * digit)) as u64 & 0xffff_ffff;
            }
        }
        sum.0[DIGITS - 1] = of(0xff);
        sum.carried()
    }
}

/// Two sums for each tensor of a model.
pub(crate) struct Sums(Vec<u64>);

impl Sums {
    /// How many numbers ranks tell each other for so many tensors.
    pub(crate) fn numbers(tensors: usize) -> usize {
        2 * DIGITS * tensors
    }

    pub(crate) fn new(tensors: usize) -> Sums {
        Sums(vec![0; Sums::numbers(tensors)])
    }

    /// Add a part of a tensor: its weights, and what its norm is compared with.
    pub(crate) fn add(&mut self, tensor: usize, parts: [ExactSum; 2]) {
        let all = &mut self.0[2 * DIGITS * tensor..][..2 * DIGITS];
        for (sum, part) in all.iter_mut().zip(parts.iter().flat_map(|part| part.0)) {
            *sum += part;
        }
    }

    /// What is to be added over ranks, number by number.
    pub(crate) fn numbers_mut(&mut self) -> &mut [u64] {
        &mut self.0
    }

    pub(crate) fn norms(&self) -> Vec<TensorNorms> {
        let (digits, _) = self.0.as_chunks::<DIGITS>();
        let of = |pair: &[[u64; DIGITS]]| {
            let [weights, updates] = [pair[0], pair[1]].map(|sum| ExactSum(sum).rounded());
            TensorNorms { weights, updates }
        };
        digits.chunks_exact(2).map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(numbers: &[f32]) -> f64 {
        ExactSum::of(numbers.len(), |index| numbers[index]).rounded().0
    }

    #[test]
    fn sums_are_those_of_f64_where_that_is_exact() {
        let whole: Vec<f32> = (0..50_000).map(|n| (n % 4001) as f32 - 2000.0).collect();
        assert_eq!(sum(&whole), whole.iter().map(|n| f64::from(*n) * f64::from(*n)).sum::<f64>());
        for one in [0.0, -0.0, 1.0, -3.5, f32::MAX, f32::MIN_POSITIVE, 1e-45, 1.2e-39] {
            assert_eq!(sum(&[one]), f64::from(one) * f64::from(one), "{one}");
        }
        assert!(sum(&[1.0, f32::INFINITY]).is_nan() && sum(&[f32::NAN]).is_nan());
    }

    /// One number after the other, each split into digits by itself: as a device adds them up.
    fn one_by_one(numbers: &[f32]) -> ExactSum {
        let mut sum = ExactSum::ZERO;
        for number in numbers {
            let mut squares = Squares::NONE;
            squares.add(0, *number);
            sum = sum.plus(squares.sum());
        }
        sum
    }

    #[test]
    fn parts_in_any_order_have_the_bits_of_the_whole() {
        for seed in 0..300 {
            let mut rng = fastrand::Rng::with_seed(seed);
            // Numbers of like size, as gradients are, or of all sizes.
            let spread = if seed % 3 == 0 { 60 } else { 0 };
            let number = |rng: &mut fastrand::Rng| {
                (rng.f32() + rng.f32() + rng.f32() - 1.5)
                    * f32::from(rng.i8(-spread..=spread)).exp2()
            };
            let len = if seed == 0 { 100_003 } else { 3001 };
            let numbers: Vec<f32> = (0..len).map(|_| number(&mut rng)).collect();
            let whole = ExactSum::of(numbers.len(), |index| numbers[index]);
            for parts in [2, 3, 7] {
                let mut all = Sums::new(1);
                for part in numbers.chunks(numbers.len().div_ceil(parts)).rev() {
                    let sum = ExactSum::of(part.len(), |index| part[index]);
                    all.add(0, [sum, ExactSum::ZERO]);
                }
                assert_eq!(all.norms()[0].weights, whole.rounded(), "seed {seed}, {parts} parts");
            }
            assert_eq!(one_by_one(&numbers).rounded(), whole.rounded(), "seed {seed}");
            assert_eq!(one_by_one(&numbers).carried(), whole.carried(), "seed {seed}");
            let naive: f64 = numbers.iter().map(|n| f64::from(*n) * f64::from(*n)).sum();
            assert!((whole.rounded().0 / naive - 1.0).abs() < 1e-12, "seed {seed}");
        }
    }
}
