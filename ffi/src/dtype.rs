//! Element types, as C numbers them.

use std::ffi::c_int;

use brigade_comm::Dtype;

use brigade_wall::{Failure, Outcome};

/// The type of one element. Types that NCCL knows have NCCL's numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum brigade_dtype_t {
    /// Signed 8-bit integer.
    BRIGADE_INT8 = 0,
    /// Unsigned 8-bit integer.
    BRIGADE_UINT8 = 1,
    /// Signed 32-bit integer.
    BRIGADE_INT32 = 2,
    /// Unsigned 32-bit integer.
    BRIGADE_UINT32 = 3,
    /// Signed 64-bit integer.
    BRIGADE_INT64 = 4,
    /// Unsigned 64-bit integer.
    BRIGADE_UINT64 = 5,
    /// IEEE 754 binary16; folded in 32 bits, rounded once per fold.
    BRIGADE_FLOAT16 = 6,
    /// IEEE 754 binary32.
    BRIGADE_FLOAT32 = 7,
    /// IEEE 754 binary64.
    BRIGADE_FLOAT64 = 8,
    /// The upper half of a binary32; folded in 32 bits, rounded once per fold.
    BRIGADE_BFLOAT16 = 9,
    /// OCP FP8, 4 exponent and 3 mantissa bits.
    BRIGADE_FLOAT8E4M3 = 10,
    /// OCP FP8, 5 exponent and 2 mantissa bits.
    BRIGADE_FLOAT8E5M2 = 11,
    /// Signed 16-bit integer.
    BRIGADE_INT16 = 12,
    /// One byte: zero is false, anything else is true; results are 0 or 1, but what calls on
    /// devices only move stays as it is.
    BRIGADE_BOOL = 13,
}

use brigade_dtype_t::*;

/// By number.
const TABLE: [(brigade_dtype_t, Dtype); 14] = [
    (BRIGADE_INT8, Dtype::I8),
    (BRIGADE_UINT8, Dtype::U8),
    (BRIGADE_INT32, Dtype::I32),
    (BRIGADE_UINT32, Dtype::U32),
    (BRIGADE_INT64, Dtype::I64),
    (BRIGADE_UINT64, Dtype::U64),
    (BRIGADE_FLOAT16, Dtype::F16),
    (BRIGADE_FLOAT32, Dtype::F32),
    (BRIGADE_FLOAT64, Dtype::F64),
    (BRIGADE_BFLOAT16, Dtype::Bf16),
    (BRIGADE_FLOAT8E4M3, Dtype::F8e4m3),
    (BRIGADE_FLOAT8E5M2, Dtype::F8e5m2),
    (BRIGADE_INT16, Dtype::I16),
    (BRIGADE_BOOL, Dtype::Bool),
];

const _: () = {
    let mut number = 0;
    while number < TABLE.len() {
        let (c, rust) = TABLE[number];
        assert!(c as usize == number && rust.code() as usize == number);
        number += 1;
    }
};

impl From<Dtype> for brigade_dtype_t {
    fn from(dtype: Dtype) -> Self {
        TABLE[usize::from(dtype.code())].0
    }
}

/// Any number where C says `brigade_dtype_t`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct DtypeCode(c_int);

impl DtypeCode {
    #[inline]
    pub(crate) fn parse(self) -> Outcome<Dtype> {
        match TABLE.get(self.0 as usize) {
            Some((_, dtype)) => Ok(*dtype),
            None => Err(self.unknown()),
        }
    }

    #[cold]
    fn unknown(self) -> Box<Failure> {
        Failure::argument(format!("no element type has the number {}", self.0))
    }
}

/// Bytes of one element; 0 for what is no element type.
///
/// Threads: from any thread, at any time.
#[unsafe(no_mangle)]
pub extern "C" fn brigade_dtype_size(dtype: DtypeCode) -> usize {
    dtype.parse().map_or(0, Dtype::size)
}
