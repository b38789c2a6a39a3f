//! The element types a collective can carry, and the Rust types that stand for them.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

use crate::{F8e4m3, F8e5m2};

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
    /// OCP FP8 with 4 exponent and 3 mantissa bits, finite values and NaN only.
    F8e4m3,
    /// OCP FP8 with 5 exponent and 2 mantissa bits.
    F8e5m2,
    /// One byte: zero is false, anything else is true; results are 0 or 1, but what calls on
    /// devices only move stays as it is.
    Bool,
}

impl Dtype {
    /// Every type, in the order of the documentation.
    pub const ALL: [Self; 14] = [
        Self::I8,
        Self::U8,
        Self::I16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::F16,
        Self::Bf16,
        Self::F32,
        Self::F64,
        Self::F8e4m3,
        Self::F8e5m2,
        Self::Bool,
    ];

    /// Bytes per element.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8e4m3 | Self::F8e5m2 | Self::Bool => 1,
            Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// The name used on the command line, in settings and in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F8e4m3 => "f8e4m3",
            Self::F8e5m2 => "f8e5m2",
            Self::Bool => "bool",
        }
    }

    /// What Python calls it, as in `brigade.Communicator`: `bfloat16` for `bf16`.
    pub fn long_name(self) -> String {
        let name = self.name();
        let (kind, bits) = name.split_at(name.find(|c: char| c.is_ascii_digit()).unwrap_or(0));
        let kind = match kind {
            "i" => "int",
            "u" => "uint",
            "f" => "float",
            "bf" => "bfloat",
            other => other,
        };
        format!("{kind}{bits}")
    }

    /// The number that stands for the type on the wire; it never changes.
    ///
    /// The types that NCCL knows have NCCL's numbers.
    pub const fn code(self) -> u8 {
        match self {
            Self::I8 => 0,
            Self::U8 => 1,
            Self::I32 => 2,
            Self::U32 => 3,
            Self::I64 => 4,
            Self::U64 => 5,
            Self::F16 => 6,
            Self::F32 => 7,
            Self::F64 => 8,
            Self::Bf16 => 9,
            Self::F8e4m3 => 10,
            Self::F8e5m2 => 11,
            Self::I16 => 12,
            Self::Bool => 13,
        }
    }

    /// The type that a [`code`](Self::code) stands for, if it stands for one.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.code() == code)
    }

    /// Whether elements are integers (booleans are not).
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::I8 | Self::U8 | Self::I16 | Self::I32 | Self::U32 | Self::I64 | Self::U64
        )
    }

    /// Whether elements are floating-point numbers.
    pub const fn is_float(self) -> bool {
        !self.is_integer() && !matches!(self, Self::Bool)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = UnknownDtype;

    /// By its name, or by that which it has in Python: `f32` is `float32`, too.
    fn from_str(name: &str) -> Result<Self, UnknownDtype> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == name || dtype.long_name() == name)
            .ok_or_else(|| UnknownDtype { name: name.to_owned() })
    }
}

/// A name that no element type has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no element type is named {name:?}; there are i8 u8 i16 i32 u32 i64 u64 f16 bf16 f32 f64 \
     f8e4m3 f8e5m2 bool, and the same as int8, bfloat16, float32 and so on"
)]
pub struct UnknownDtype {
    /// What was asked for.
    pub name: String,
}

/// A Rust type that a slice of elements may have. Sealed: [`Dtype`] lists them all.
pub trait Element: Copy + Send + Sync + 'static + sealed::Sealed {
    /// The element type it stands for.
    const DTYPE: Dtype;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: Dtype = Dtype::$dtype;
        }
        const _: () = assert!(size_of::<$rust>() == Dtype::$dtype.size());
    )*};
}

elements! {
    i8 => I8,
    u8 => U8,
    i16 => I16,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    f16 => F16,
    bf16 => Bf16,
    f32 => F32,
    f64 => F64,
    F8e4m3 => F8e4m3,
    F8e5m2 => F8e5m2,
    bool => Bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back_to_their_type() {
        for dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(dtype.long_name().parse(), Ok(dtype));
            assert_eq!(Dtype::from_code(dtype.code()), Some(dtype));
        }
        let long = [Dtype::Bf16, Dtype::F8e4m3, Dtype::U8, Dtype::Bool].map(Dtype::long_name);
        assert_eq!(long, ["bfloat16", "float8e4m3", "uint8", "bool"]);
        assert_eq!(Dtype::from_code(14), None);
        assert!("f12".parse::<Dtype>().unwrap_err().to_string().contains("bf16"));
    }
}
