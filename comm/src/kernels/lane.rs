//! What one element can do: the arithmetic that the loops repeat.

use half::{bf16, f16};

use super::codec::{decode, encode, encode_bf16};
use crate::{F8e4m3, F8e5m2};

/// Elements that can be added, multiplied and ordered. Each function is commutative to the last
/// bit.
pub(super) trait Number: Copy {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
    fn least(self, other: Self) -> Self;
    fn largest(self, other: Self) -> Self;
}

/// Elements whose bits can be combined.
pub(super) trait Bits: Copy {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
}

/// Floating-point elements: computed in `Wide`, rounded once.
pub(super) trait Float: Number {
    /// f32, or f64 for f64.
    type Wide: Copy;
    /// Exact.
    fn widen(self) -> Self::Wide;
    /// Rounded to nearest even; NaN becomes the canonical one.
    fn narrow(wide: Self::Wide) -> Self;
}

/// A boolean as it arrives from anywhere: any byte but zero is true.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Truth(u8);

impl Bits for Truth {
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        Self(u8::from((self.0 != 0) & (other.0 != 0)))
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self(u8::from((self.0 | other.0) != 0))
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        Self(u8::from((self.0 != 0) != (other.0 != 0)))
    }
}

macro_rules! integers {
    ($($lane:ty),*) => {$(
        impl Number for $lane {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }

            #[inline(always)]
            fn largest(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )*};
}

integers!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! bits {
    ($($lane:ty),*) => {$(
        impl Bits for $lane {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }

            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }

            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
        }
    )*};
}

bits!(u8, u16, u32, u64);

/// Order is decided on the bits: with the magnitude bits of negative numbers inverted, floats are
/// ordered as integers, and minus zero comes right before plus zero.
macro_rules! floats {
    ($($lane:ty, $bits:ty, $signed:ty, $to:expr, $from:expr, $last:expr, $nan:expr;)*) => {$(
        impl Number for $lane {
            #[inline(always)]
            fn sum(self, other: Self) -> Self {
                Self::narrow(self.widen() + other.widen())
            }

            #[inline(always)]
            fn product(self, other: Self) -> Self {
                Self::narrow(self.widen() * other.widen())
            }

            #[inline(always)]
            fn least(self, other: Self) -> Self {
                let (a, b) = ($to(self) as $signed, $to(other) as $signed);
                let magnitude = <$signed>::MAX;
                let key = |x: $signed| x ^ ((x >> (<$bits>::BITS - 1)) & magnitude);
                let least = key(key(a).min(key(b))) as $bits;
                let nan = (a & magnitude).max(b & magnitude) > $last;
                $from(if nan { $nan } else { least })
            }

            #[inline(always)]
            fn largest(self, other: Self) -> Self {
                let (a, b) = ($to(self) as $signed, $to(other) as $signed);
                let magnitude = <$signed>::MAX;
                let key = |x: $signed| x ^ ((x >> (<$bits>::BITS - 1)) & magnitude);
                let largest = key(key(a).max(key(b))) as $bits;
                let nan = (a & magnitude).max(b & magnitude) > $last;
                $from(if nan { $nan } else { largest })
            }
        }
    )*};
}

floats! {
    F8e4m3, u8, i8, |x: F8e4m3| x.0, F8e4m3, 0x7e, 0x7f;
    F8e5m2, u8, i8, |x: F8e5m2| x.0, F8e5m2, 0x7c, 0x7e;
    f16, u16, i16, f16::to_bits, f16::from_bits, 0x7c00, 0x7e00;
    bf16, u16, i16, bf16::to_bits, bf16::from_bits, 0x7f80, 0x7fc0;
    f32, u32, i32, f32::to_bits, f32::from_bits, 0x7f80_0000, 0x7fc0_0000;
    f64, u64, i64, f64::to_bits, f64::from_bits, 0x7ff0_0000_0000_0000, 0x7ff8_0000_0000_0000;
}

impl Float for f32 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(wide: f32) -> f32 {
        f32::from_bits(if wide.is_nan() { 0x7fc0_0000 } else { wide.to_bits() })
    }
}

impl Float for f64 {
    type Wide = f64;

    #[inline(always)]
    fn widen(self) -> f64 {
        self
    }

    #[inline(always)]
    fn narrow(wide: f64) -> f64 {
        f64::from_bits(if wide.is_nan() { 0x7ff8_0000_0000_0000 } else { wide.to_bits() })
    }
}

impl Float for bf16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self::from_bits((encode_bf16(wide) >> 16) as u16)
    }
}

impl Float for f16 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        decode::<Self>(u32::from(self.to_bits()))
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self::from_bits(encode::<Self>(wide) as u16)
    }
}

impl Float for F8e4m3 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        decode::<Self>(u32::from(self.0))
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self(encode::<Self>(wide) as u8)
    }
}

impl Float for F8e5m2 {
    type Wide = f32;

    #[inline(always)]
    fn widen(self) -> f32 {
        decode::<Self>(u32::from(self.0))
    }

    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self(encode::<Self>(wide) as u8)
    }
}
