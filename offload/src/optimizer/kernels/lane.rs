//! One element of an array: widened to f32, narrowed from f32, without branches, so that a loop
//! over it becomes vectors.

use half::{bf16, f16};

/// An element of some format. Arithmetic happens in f32.
pub(in crate::optimizer) trait Lane: Copy + Send + Sync {
    /// Exact, but for the payload of NaN.
    fn widen(self) -> f32;

    /// The nearest element, ties to even, of a number or the canonical NaN.
    fn narrow(value: f32) -> Self;
}

const INFINITY: u32 = 0x7f80_0000;

/// The same number; NaN becomes the canonical one, because which payload survives an addition
/// depends on how a compiler ordered its operands.
#[inline(always)]
pub(super) fn canonical(value: f32) -> f32 {
    f32::from_bits(if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() })
}

impl Lane for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

impl Lane for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Adding just under half a step, and one more if the last kept bit is odd, rounds as asked;
    /// infinity and the canonical NaN have nothing to round.
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        Self::from_bits((bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16)
    }
}

impl Lane for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let (sign, magnitude) = (bits >> 15 << 31, bits & 0x7fff);
        let moved = magnitude << 13;
        let normal = moved + ((127 - 15) << 23);
        // Subnormal numbers are whole multiples of 2^-24. The conversion goes through i32 because
        // that one is a single instruction.
        let tiny = (magnitude as i32 as f32) * f32::from_bits((127 - 24) << 23);
        let finite = if magnitude < 0x0400 { tiny.to_bits() } else { normal };
        f32::from_bits(sign | if magnitude >= 0x7c00 { moved | INFINITY } else { finite })
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let (sign, magnitude) = (bits >> 31 << 15, bits & 0x7fff_ffff);
        let rounded = (magnitude + 0x0fff + ((magnitude >> 13) & 1)) >> 13;
        let normal = rounded.wrapping_sub((127 - 15) << 10);
        // In the binade of 0.5 the spacing of f32 is the least subnormal of f16, so this addition
        // itself rounds, and the low bits are the answer.
        let tiny = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
        let finite = if magnitude < (127 - 14) << 23 { tiny } else { normal.min(0x7c00) };
        Self::from_bits((if magnitude > INFINITY { 0x7e00 } else { sign | finite }) as u16)
    }
}

/// An array that is not there: zeros to read, nothing to write, no memory.
impl Lane for () {
    #[inline(always)]
    fn widen(self) -> f32 {
        0.0
    }

    #[inline(always)]
    fn narrow(_: f32) -> Self {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_narrow_number_widens_as_the_half_crate_says() {
        for bits in 0..=u16::MAX {
            for (ours, theirs) in [
                (Lane::widen(f16::from_bits(bits)), f16::from_bits(bits).to_f32()),
                (Lane::widen(bf16::from_bits(bits)), bf16::from_bits(bits).to_f32()),
            ] {
                assert!(same(ours, theirs), "{bits:#06x}: {ours} {theirs}");
            }
        }
    }

    #[test]
    fn numbers_narrow_as_the_half_crate_says() {
        // Every upper half with the lower halves in which rounding decides.
        for upper in 0..=u16::MAX {
            for lower in [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0xffff] {
                let value = canonical(f32::from_bits(u32::from(upper) << 16 | lower));
                let (ours, theirs) = (<f16 as Lane>::narrow(value), f16::from_f32(value));
                let is_nan = ours.is_nan() && theirs.is_nan();
                assert!(is_nan || ours.to_bits() == theirs.to_bits(), "{value:e}: {ours} {theirs}");
                let (ours, theirs) = (<bf16 as Lane>::narrow(value), bf16::from_f32(value));
                let is_nan = ours.is_nan() && theirs.is_nan();
                assert!(is_nan || ours.to_bits() == theirs.to_bits(), "{value:e}: {ours} {theirs}");
            }
        }
    }

    #[test]
    fn nan_is_the_canonical_one() {
        for bits in [0x7f80_0001, 0xff80_0001, 0x7fff_ffff, 0xffc0_0000] {
            let nan = canonical(f32::from_bits(bits));
            assert_eq!(<f32 as Lane>::narrow(nan).to_bits(), 0x7fc0_0000);
            assert_eq!(<bf16 as Lane>::narrow(nan).to_bits(), 0x7fc0);
            assert_eq!(<f16 as Lane>::narrow(nan).to_bits(), 0x7e00);
        }
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }
}
