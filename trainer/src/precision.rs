//! Weights of 16 bits that the model computes with, beside masters of 32 that the update moves.
//!
//! Kernels compute in f32, from weights that were widened: what is halved is memory for weights and
//! what ranks send of them, not arithmetic. Gradients are added in f32. With f16 each lane's
//! gradient is rounded to f16 first, so that it overflows as it would in a device that computes in
//! f16; the loss is scaled so that it does not, and when it does, no rank makes that step.

use brigade_offload::optimizer::Narrowed;
use clap::ValueEnum;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use serde::{Deserialize, Serialize};

/// What the model computes with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// The weights themselves
    #[default]
    #[value(alias = "float32")]
    F32,
    /// Weights rounded to bf16
    #[value(alias = "bfloat16")]
    Bf16,
    /// Weights and gradients rounded to f16, with a loss scale that follows overflows
    #[value(alias = "float16")]
    F16,
}

impl Precision {
    /// As it is written.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no precision is hidden").get_name().to_string()
    }

    /// Round numbers to their 16 bits.
    pub(crate) fn narrow(self, from: &[f32], to: &mut [i16]) {
        match self {
            Precision::F16 => cast_mut::<f16>(to).convert_from_f32_slice(from),
            _ => cast_mut::<bf16>(to).convert_from_f32_slice(from),
        }
    }

    /// What numbers of 16 bits stand for.
    pub(crate) fn widen(self, from: &[i16], to: &mut [f32]) {
        match self {
            Precision::F16 => bytemuck::cast_slice::<_, f16>(from).convert_to_f32_slice(to),
            _ => bytemuck::cast_slice::<_, bf16>(from).convert_to_f32_slice(to),
        }
    }

    /// Where an update leaves its weights, if it shall.
    pub(crate) fn narrowed(self, to: &mut [i16]) -> Narrowed<'_> {
        match self {
            _ if to.is_empty() => Narrowed::None,
            Precision::F16 => Narrowed::F16(cast_mut(to)),
            _ => Narrowed::Bf16(cast_mut(to)),
        }
    }

    /// Round a gradient as a device that computes in f16 does.
    pub(crate) fn round(self, gradient: &mut [f32]) {
        if self == Precision::F16 {
            gradient.iter_mut().for_each(|number| *number = f16::from_f32(*number).to_f32());
        }
    }
}

/// What the loss is multiplied by, a power of two: halved after an overflow, doubled after so many
/// steps without one (Micikevicius et al. 2018).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    scale: f32,
    /// Steps since it changed.
    steps: u32,
    /// Steps in all that made no update. Files of before this was counted say nothing of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    skipped: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl LossScale {
    const LARGEST: f32 = (1u32 << 24) as f32;
    const PATIENCE: u32 = 200;

    /// The scale of a first step; it goes on from there only for f16.
    pub fn new(precision: Precision) -> LossScale {
        let scale = if precision == Precision::F16 { 65536.0 } else { 1.0 };
        LossScale { scale, steps: 0, skipped: 0 }
    }

    /// As a rank tells others: three numbers, the first of which is not zero.
    pub(crate) fn numbers(self) -> [u32; 3] {
        [self.scale.to_bits(), self.steps, self.skipped]
    }

    /// From these; none if there was none.
    pub(crate) fn of_numbers([scale, steps, skipped]: [u32; 3]) -> Option<LossScale> {
        (scale != 0).then_some(LossScale { scale: f32::from_bits(scale), steps, skipped })
    }

    /// Whether it can have come about in so many steps.
    pub(crate) fn is_sound(self, steps: usize) -> bool {
        let is_power = self.scale.log2().fract() == 0.0;
        let is_within = (1.0..=LossScale::LARGEST).contains(&self.scale);
        is_power && is_within && self.steps < LossScale::PATIENCE && self.skipped() <= steps
    }

    /// Now.
    pub fn scale(self) -> f32 {
        self.scale
    }

    /// Steps in all that made no update.
    pub(crate) fn skipped(self) -> usize {
        self.skipped as usize
    }

    /// After a step of f16, made or not.
    pub fn after(self, is_made: bool) -> LossScale {
        let LossScale { scale, steps, skipped } = self;
        let (scale, steps) = match is_made {
            false => ((scale / 2.0).max(1.0), 0),
            true if steps + 1 < LossScale::PATIENCE => (scale, steps + 1),
            true => ((scale * 2.0).min(LossScale::LARGEST), 0),
        };
        LossScale { scale, steps, skipped: skipped.saturating_add(u32::from(!is_made)) }
    }
}

fn cast_mut<T: bytemuck::Pod>(numbers: &mut [i16]) -> &mut [T] {
    bytemuck::cast_slice_mut(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_16_bits_come_back_and_others_are_rounded() {
        for (precision, exact, rounded) in [
            (Precision::Bf16, [1.0, -0.15625, 3.0e38], (1.001, 1.0)),
            (Precision::F16, [1.0, -0.15625, 65504.0], (1e5, f32::INFINITY)),
        ] {
            let (mut bits, mut back) = ([0; 4], [0.0; 4]);
            precision.narrow(&[exact[0], exact[1], exact[2], rounded.0], &mut bits);
            precision.widen(&bits, &mut back);
            assert_eq!(back[..2], exact[..2], "{precision:?}");
            assert!((back[2] / exact[2] - 1.0).abs() < 0.004, "{precision:?}");
            assert_eq!(back[3], rounded.1, "{precision:?}");
        }
    }

    #[test]
    fn the_scale_falls_at_once_and_grows_slowly() {
        let mut scale = LossScale::new(Precision::F16);
        scale = scale.after(false);
        assert_eq!(scale.scale(), 32768.0);
        for _ in 0..LossScale::PATIENCE - 1 {
            scale = scale.after(true);
        }
        assert_eq!(scale.scale(), 32768.0);
        assert_eq!(scale.after(true).scale(), 65536.0);
        assert_eq!((0..99).fold(scale, |scale, _| scale.after(false)).scale(), 1.0);
        assert!(scale.is_sound(1) && scale.after(true).is_sound(1));
        assert!(scale.skipped() == 1 && !scale.is_sound(0), "of more steps than there were");
        assert_eq!(LossScale::of_numbers(scale.numbers()), Some(scale));
    }

    #[test]
    fn a_scale_that_no_run_comes_to_is_not_sound() {
        let odd = [(0.0, 0), (0.5, 0), (3.0, 0), (f32::NAN, 0), (f32::INFINITY, 0), (1.0, 200)];
        for (scale, steps) in odd.into_iter().chain([(1.0, u32::MAX)]) {
            let odd = LossScale { scale, steps, skipped: 0 };
            assert!(!odd.is_sound(1000), "{scale} since {steps}");
        }
    }
}
