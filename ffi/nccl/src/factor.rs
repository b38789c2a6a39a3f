//! What an operator that was made scales by, and how that is read.

use std::ffi::c_void;

use brigade_comm::Dtype;
use brigade_wall::{Failure, Outcome};

/// What an operator that was made scales by.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    /// Of what: of the number, and of the elements.
    pub(crate) dtype: Dtype,
    pub(crate) number: Number,
}

#[derive(Clone, Copy)]
pub(crate) enum Number {
    /// Read when it was made.
    Known(f64),
    /// To be read with each call, where it lies.
    At(usize),
}

/// A number of some type, in host memory.
///
/// Errors: no call multiplies by this one exactly.
///
/// # Safety
///
/// The pointer is NULL or leads to one.
pub(crate) unsafe fn scalar_at(scalar: *const c_void, dtype: Dtype) -> Outcome<f64> {
    if scalar.is_null() {
        return Err(Failure::argument("scalar is NULL"));
    }
    let mut bytes = [0; 8];
    // SAFETY: the caller's promise; no type has more bytes than these.
    unsafe {
        std::ptr::copy_nonoverlapping(scalar.cast::<u8>(), bytes.as_mut_ptr(), dtype.size());
    }
    let [one, two, three, four, ..] = bytes;
    let (half, word) = ([one, two], [one, two, three, four]);
    Ok(match dtype {
        Dtype::I8 => f64::from(one as i8),
        Dtype::U8 => f64::from(one),
        Dtype::I32 => f64::from(i32::from_ne_bytes(word)),
        Dtype::U32 => f64::from(u32::from_ne_bytes(word)),
        Dtype::I64 => exact(i64::from_ne_bytes(bytes).into())?,
        Dtype::U64 => exact(u64::from_ne_bytes(bytes).into())?,
        Dtype::F16 => half::f16::from_ne_bytes(half).to_f64(),
        Dtype::Bf16 => half::bf16::from_ne_bytes(half).to_f64(),
        Dtype::F32 => f64::from(f32::from_ne_bytes(word)),
        Dtype::F64 => f64::from_ne_bytes(bytes),
        other => return Err(Failure::usage(format!("no factor of type {}", other.name()))),
    })
}

/// A factor of 64 bits, as far as calls have it exactly.
fn exact(number: i128) -> Outcome<f64> {
    const MOST: u128 = 1 << f64::MANTISSA_DIGITS;
    match number.unsigned_abs() <= MOST {
        true => Ok(number as f64),
        false => Err(Failure::usage(format!("a factor of {number}: from -2^53 to 2^53 will do"))),
    }
}
