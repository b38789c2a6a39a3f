//! The two 8-bit floating-point formats of the OCP specification "8-bit Floating Point" (OFP8,
//! revision 1.0, 2023), converted one number at a time in the most obvious way.
//!
//! Results are rounded to nearest, ties to even. Of the specification's two modes for values that
//! are too large this is the one that *saturates*, as NCCL's reductions do: infinities and
//! everything above the largest finite number become that number, so only NaN becomes NaN.

use std::cmp::Ordering;
use std::fmt;

/// 1 sign, 4 exponent (bias 7), 3 mantissa bits. Largest 448, no infinity, NaN is `S.1111.111`.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F8e4m3(pub u8);

/// 1 sign, 5 exponent (bias 15), 2 mantissa bits. Largest 57344, infinity and NaN as in IEEE 754.
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct F8e5m2(pub u8);

/// What tells one format from another.
struct Format {
    mantissa_bits: i32,
    bias: i32,
    /// The magnitude bits of the largest finite number.
    largest: u8,
    /// The infinity; where there is none, the NaN.
    infinity: u8,
    /// The NaN that conversions and folds produce.
    nan: u8,
}

const E4M3: Format = Format { mantissa_bits: 3, bias: 7, largest: 0x7e, infinity: 0x7f, nan: 0x7f };
const E5M2: Format =
    Format { mantissa_bits: 2, bias: 15, largest: 0x7b, infinity: 0x7c, nan: 0x7e };

macro_rules! float8 {
    ($name:ident, $format:ident) => {
        impl $name {
            /// The NaN that conversions and folds produce.
            pub const NAN: Self = Self($format.nan);
            /// The largest finite number.
            pub const MAX: Self = Self($format.largest);

            /// The nearest number, ties to even; what is too large becomes the largest finite one.
            pub fn from_f32(value: f32) -> Self {
                Self(encode(value, &$format))
            }

            /// The same number; exact.
            pub fn to_f32(self) -> f32 {
                decode(self.0, &$format)
            }
        }

        /// As numbers: zeros are equal, NaN equals nothing.
        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.to_f32().fmt(f)
            }
        }

        impl From<$name> for f32 {
            fn from(value: $name) -> f32 {
                value.to_f32()
            }
        }
    };
}

float8!(F8e4m3, E4M3);
float8!(F8e5m2, E5M2);

fn decode(bits: u8, format: &Format) -> f32 {
    let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
    let magnitude = bits & 0x7f;
    if magnitude > format.largest {
        let infinite = magnitude == format.infinity && format.infinity != format.nan;
        return if infinite { sign * f32::INFINITY } else { f32::NAN };
    }
    let implied = 1 << format.mantissa_bits;
    let exponent = i32::from(magnitude) / implied;
    let mantissa = i32::from(magnitude) % implied;
    let (exponent, mantissa) =
        if exponent == 0 { (1, mantissa) } else { (exponent, mantissa + implied) };
    sign * mantissa as f32 * power_of_two(exponent - format.bias - format.mantissa_bits) as f32
}

fn encode(value: f32, format: &Format) -> u8 {
    if value.is_nan() {
        return format.nan;
    }
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_infinite() {
        return sign | format.largest;
    }
    let size = f64::from(value.abs());
    // Below the smallest normal number the spacing stays what it is there.
    let least_exponent = 1 - format.bias;
    let mut exponent = least_exponent;
    while size >= power_of_two(exponent + 1) {
        exponent += 1;
    }
    let spacing = power_of_two(exponent - format.mantissa_bits);
    let steps = (size / spacing).round_ties_even() as i32;
    // A mantissa that rounds up to the next power of two carries into the exponent by itself.
    let implied = 1 << format.mantissa_bits;
    let magnitude = (exponent - least_exponent) * implied + steps;
    sign | magnitude.min(format.largest.into()) as u8
}

/// 2 to a power between -1022 and 1023.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn landmarks_of_the_specification() {
        assert_eq!(F8e4m3(0x7e).to_f32(), 448.0);
        assert_eq!(F8e4m3(0x08).to_f32(), 2f32.powi(-6));
        assert_eq!(F8e4m3(0x01).to_f32(), 2f32.powi(-9));
        assert!(F8e4m3(0x7f).to_f32().is_nan() && F8e4m3(0xff).to_f32().is_nan());
        assert_eq!(F8e5m2(0x7b).to_f32(), 57344.0);
        assert_eq!(F8e5m2(0x04).to_f32(), 2f32.powi(-14));
        assert_eq!(F8e5m2(0x81).to_f32(), -(2f32.powi(-16)));
        assert_eq!(F8e5m2(0xfc).to_f32(), f32::NEG_INFINITY);
        assert!(F8e5m2(0x7d).to_f32().is_nan());
    }

    #[test]
    fn what_is_too_large_saturates() {
        // 464 lies half way between 448 and the 480 that would come next.
        assert_eq!(F8e4m3::from_f32(464.1).0, 0x7e);
        assert_eq!(F8e4m3::from_f32(-1e30).0, 0xfe);
        assert_eq!(F8e4m3::from_f32(f32::INFINITY).0, 0x7e);
        assert_eq!(F8e5m2::from_f32(f32::INFINITY).0, 0x7b);
        assert_eq!(F8e5m2::from_f32(-61440.0).0, 0xfb);
        assert_eq!(F8e5m2::from_f32(f32::NAN).0, 0x7e);
    }

    /// Every number comes back, and every value between two neighbours goes to the nearer one, or,
    /// half way, to the even one.
    #[test]
    fn conversions_round_to_nearest_even() {
        for bits in 0..0x7eu8 {
            check(bits, F8e4m3::from_f32, |b| F8e4m3(b).to_f32());
        }
        for bits in 0..0x7bu8 {
            check(bits, F8e5m2::from_f32, |b| F8e5m2(b).to_f32());
        }

        fn check<F: Bits>(bits: u8, from: fn(f32) -> F, to: fn(u8) -> f32) {
            let (low, high) = (to(bits), to(bits + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(from(low).bits(), bits);
            assert_eq!(from(-low).bits(), bits | 0x80);
            assert_eq!(from(middle.next_down()).bits(), bits);
            assert_eq!(from(middle.next_up()).bits(), bits + 1);
            assert_eq!(from(middle).bits(), bits + (bits & 1));
        }
        trait Bits {
            fn bits(self) -> u8;
        }
        impl Bits for F8e4m3 {
            fn bits(self) -> u8 {
                self.0
            }
        }
        impl Bits for F8e5m2 {
            fn bits(self) -> u8 {
                self.0
            }
        }
    }
}
