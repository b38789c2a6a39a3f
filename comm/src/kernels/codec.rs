//! Floating-point formats narrower than f32, converted without branches or tables, so that a loop
//! over the conversion becomes vector instructions.
//!
//! The plain version of an 8-bit format is in `float8.rs`, that of f16 and bf16 in the `half`
//! crate; the tests compare them on every bit pattern.

use half::f16;

use crate::{F8e4m3, F8e5m2};

/// A sign, some exponent bits and some mantissa bits, laid out as in IEEE 754.
pub(super) trait Narrow {
    /// Bits in all.
    const WIDTH: u32;
    /// Mantissa bits.
    const MANTISSA: u32;
    /// Exponent bias.
    const BIAS: u32;
    /// The least magnitude that is not finite.
    const SPECIAL: u32;
    /// What a result that is too large becomes.
    const LIMIT: u32;
    /// The canonical NaN.
    const NAN: u32;
}

impl Narrow for f16 {
    const WIDTH: u32 = 16;
    const MANTISSA: u32 = 10;
    const BIAS: u32 = 15;
    const SPECIAL: u32 = 0x7c00;
    const LIMIT: u32 = 0x7c00;
    const NAN: u32 = 0x7e00;
}

impl Narrow for F8e4m3 {
    const WIDTH: u32 = 8;
    const MANTISSA: u32 = 3;
    const BIAS: u32 = 7;
    const SPECIAL: u32 = 0x7f;
    const LIMIT: u32 = 0x7e;
    const NAN: u32 = 0x7f;
}

impl Narrow for F8e5m2 {
    const WIDTH: u32 = 8;
    const MANTISSA: u32 = 2;
    const BIAS: u32 = 15;
    const SPECIAL: u32 = 0x7c;
    const LIMIT: u32 = 0x7b;
    const NAN: u32 = 0x7e;
}

const F32_BIAS: u32 = 127;
const F32_MANTISSA: u32 = 23;
const F32_INFINITY: u32 = 0x7f80_0000;

/// The number that `bits` stand for; exact.
#[inline(always)]
pub(super) fn decode<N: Narrow>(bits: u32) -> f32 {
    let sign = bits >> (N::WIDTH - 1) << 31;
    let magnitude = bits & ((1 << (N::WIDTH - 1)) - 1);
    let moved = magnitude << (F32_MANTISSA - N::MANTISSA);
    let normal = moved + ((F32_BIAS - N::BIAS) << F32_MANTISSA);
    // Subnormal numbers are whole multiples of the least one. The conversion goes through i32
    // because that one is a single instruction.
    let tiny = (magnitude as i32 as f32) * power_of_two(1 - N::BIAS as i32 - N::MANTISSA as i32);
    let finite = if magnitude < 1 << N::MANTISSA { tiny.to_bits() } else { normal };
    // Setting all exponent bits keeps infinity infinite and NaN NaN.
    f32::from_bits(sign | if magnitude >= N::SPECIAL { moved | F32_INFINITY } else { finite })
}

/// The bits of the nearest number, ties to even; what is too large becomes `LIMIT`.
#[inline(always)]
pub(super) fn encode<N: Narrow>(value: f32) -> u32 {
    let shift = F32_MANTISSA - N::MANTISSA;
    let sign = value.to_bits() >> 31 << (N::WIDTH - 1);
    let magnitude = value.to_bits() & 0x7fff_ffff;
    // Adding just under half a step, and one more if the last kept bit is odd, rounds as asked; a
    // carry out of the mantissa lands in the exponent, where it belongs.
    let rounded = (magnitude + ((1 << (shift - 1)) - 1) + ((magnitude >> shift) & 1)) >> shift;
    let normal = rounded.wrapping_sub((F32_BIAS - N::BIAS) << N::MANTISSA);
    // In the binade of this magic number the spacing of f32 is the least subnormal of the format,
    // so the addition itself rounds, and the low bits are the answer.
    let magic = power_of_two(F32_MANTISSA as i32 + 1 - N::BIAS as i32 - N::MANTISSA as i32);
    let tiny = (f32::from_bits(magnitude) + magic).to_bits().wrapping_sub(magic.to_bits());
    let is_tiny = magnitude < (F32_BIAS + 1 - N::BIAS) << F32_MANTISSA;
    let finite = if is_tiny { tiny } else { normal.min(N::LIMIT) };
    if magnitude > F32_INFINITY { N::NAN } else { sign | finite }
}

/// The nearest bf16, ties to even, in the upper half of the result; its lower half is rubbish. (A
/// bf16 is the upper half of an f32, so there is nothing to decode.)
#[inline(always)]
pub(super) fn encode_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    if bits & 0x7fff_ffff > F32_INFINITY { 0x7fc0_0000 } else { rounded }
}

/// 2 to a power that is a normal f32.
const fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + F32_BIAS as i32) as u32) << F32_MANTISSA)
}
