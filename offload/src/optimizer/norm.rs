//! The norm of a shard, and what follows from it: whether to step, and by how much to scale.

use super::apply::{PARTS, part_len};
use super::kernels::{self, Crew, Isa, Lane};
use super::shard::Gradients;

/// A sum of squares, in f64.
///
/// The square of a finite f32 is far below what an f64 holds, so the sum is finite exactly when
/// every element is: looking for overflow needs no pass of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SquareSum(
    /// The sum; NaN or infinite if an element was.
    pub f64,
);

/// The sum of the squares of `gradients` as they are: nothing is unscaled.
///
/// Cost: one pass that reads. The bits depend on the numbers and how many they are, not on threads
/// or instruction sets: the elements are cut into at most 64 parts by their count alone, summed in
/// 32 interleaved sums in each, and the parts added in order. The error is below n · 2⁻⁶³ of it.
pub fn square_sum(crew: &mut Crew, gradients: Gradients<'_>) -> SquareSum {
    let isa = crew.isa();
    match gradients {
        Gradients::F32(values) => sum(crew, values, isa),
        Gradients::Bf16(values) => sum(crew, values, isa),
        Gradients::F16(values) => sum(crew, values, isa),
    }
}

impl SquareSum {
    /// Whether every element was finite. If not, skip the step, and lower the loss scale.
    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }

    /// The norm, had each element been divided by `loss_scale`.
    pub fn norm(self, loss_scale: f32) -> f64 {
        self.0.sqrt() / f64::from(loss_scale)
    }

    /// What a rule multiplies each gradient by: undoes `loss_scale`, and shortens the whole to
    /// `longest` if it is longer. `None` if an element was not finite: skip the step.
    pub fn factor(self, loss_scale: f32, longest: f32) -> Option<f32> {
        let norm = self.is_finite().then(|| self.norm(loss_scale))?;
        // As PyTorch does, to the last digits: 10⁻⁶ keeps the division finite.
        let clip = (f64::from(longest) / (norm + 1e-6)).min(1.0);
        Some((clip / f64::from(loss_scale)) as f32)
    }

    /// The sum over several shards, or several tensors.
    pub fn plus(self, other: Self) -> Self {
        Self::canonical(self.0 + other.0)
    }

    pub(super) fn canonical(sum: f64) -> Self {
        Self(if sum.is_nan() { f64::NAN } else { sum })
    }
}

fn sum<L: Lane>(crew: &mut Crew, values: &[L], isa: Isa) -> SquareSum {
    let mut parts: [(&[L], f64); PARTS] = [(&[], 0.0); PARTS];
    let mut count = 0;
    for (part, values) in parts.iter_mut().zip(values.chunks(part_len(values.len()))) {
        part.0 = values;
        count += 1;
    }
    crew.each(&mut parts[..count], |(values, sum)| *sum = kernels::squares(isa, values));
    SquareSum::canonical(parts.iter().map(|(_, sum)| sum).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_unscale_and_clip() {
        let sum = SquareSum(1024.0_f64 * 1024.0 * 25.0);
        assert_eq!(sum.norm(1024.0), 5.0);
        assert_eq!(sum.factor(1024.0, 10.0), Some(1.0 / 1024.0));
        let clipped = sum.factor(1024.0, 1.0).expect("finite");
        assert!((clipped * 1024.0 - 0.2).abs() < 1e-6, "{clipped}");
        assert_eq!(SquareSum(f64::INFINITY).factor(1.0, 1.0), None);
        assert_eq!(SquareSum(f64::NAN).factor(1.0, 1.0), None);
        assert_eq!(SquareSum(0.0).factor(2.0, 1.0), Some(0.5));
        assert_eq!(SquareSum(9.0).factor(1.0, f32::INFINITY), Some(1.0));
    }
}
