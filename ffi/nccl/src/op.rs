//! Operators: NCCL's five, and those that scale before they sum.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use brigade_comm::{Dtype, Op};
use brigade_wall::handle::pin;
use brigade_wall::pointer::Out;
use brigade_wall::sight::is_out_of_reach;
use brigade_wall::{Failure, Outcome};

use crate::comm::{Comm, ncclComm_t};
use crate::result::{enter, ncclResult_t};

/// The number of an operator; from 5 on they are made, each for one communicator.
pub type ncclRedOp_t = c_int;

const BUILT_IN: ncclRedOp_t = 5;
/// More are a mistake.
const FACTORS_MAX: usize = 1 << 16;

/// What an operator that was made scales by.
#[derive(Clone, Copy)]
pub(crate) struct Factor {
    /// Of what: of the number, and of the elements.
    dtype: Dtype,
    number: Number,
}

#[derive(Clone, Copy)]
enum Number {
    /// Read when it was made.
    Known(f64),
    /// To be read with each call, where it lies.
    At(usize),
}

/// An element type, as NCCL numbers them: the first twelve of ours.
pub(crate) fn dtype(number: c_int) -> Outcome<Dtype> {
    let known = u8::try_from(number).ok().filter(|code| *code < 12).and_then(Dtype::from_code);
    known.ok_or_else(|| Failure::argument(format!("no element type has the number {number}")))
}

/// The operator with this number on this communicator, for elements of a type.
///
/// # Safety
///
/// A factor that is read with each call is still where it was.
pub(crate) unsafe fn parse(op: ncclRedOp_t, dtype: Dtype, comm: &Comm) -> Outcome<Op> {
    Ok(match op {
        0 => Op::Sum,
        1 => Op::Prod,
        2 => Op::Max,
        3 => Op::Min,
        4 => Op::Avg,
        made => {
            let factors = comm.factors.lock().unwrap_or_else(PoisonError::into_inner);
            let place = usize::try_from(made.wrapping_sub(BUILT_IN)).ok();
            let factor = place.and_then(|place| factors.get(place).copied().flatten());
            let Factor { dtype: own, number } = factor.ok_or_else(|| unknown(op))?;
            if own != dtype {
                let (own, dtype) = (own.name(), dtype.name());
                return Err(Failure::argument(format!(
                    "operator {op} was made for elements of type {own}, and the call is on {dtype}"
                )));
            }
            match number {
                Number::Known(factor) => Op::PreMulSum(factor),
                Number::At(address) => {
                    let scalar = std::ptr::with_exposed_provenance(address);
                    // SAFETY: the caller's promise.
                    Op::PreMulSum(unsafe { scalar_at(scalar, dtype) }?)
                }
            }
        }
    })
}

fn unknown(op: ncclRedOp_t) -> Box<Failure> {
    Failure::argument(format!("no operator of this communicator has the number {op}"))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpCreatePreMulSum(
    op: *mut ncclRedOp_t,
    scalar: *mut c_void,
    datatype: c_int,
    residence: c_int,
    comm: ncclComm_t,
) -> ncclResult_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let out = Out::new(op, "op")?;
        let dtype = dtype(datatype)?;
        let scalar = scalar.cast_const();
        if is_out_of_reach(scalar.addr() as u64) {
            return Err(Failure::usage(
                "a factor in memory of a device is not read here: pass it from the host, as \
                 ncclScalarHostImmediate",
            ));
        }
        // SAFETY: C passes a number of this type.
        let now = unsafe { scalar_at(scalar, dtype) }?;
        let number = match residence {
            0 => Number::At(scalar.expose_provenance()),
            1 => Number::Known(now),
            _ => return Err(Failure::argument(format!("residence {residence}: 0 or 1"))),
        };
        let mut factors = comm.factors.lock().unwrap_or_else(PoisonError::into_inner);
        let place = factors.iter().position(Option::is_none).unwrap_or(factors.len());
        if place == FACTORS_MAX {
            return Err(Failure::usage(format!("{FACTORS_MAX} operators: destroy some")));
        }
        if place == factors.len() {
            factors.push(None);
        }
        factors[place] = Some(Factor { dtype, number });
        // SAFETY: C passes a place for it.
        unsafe { out.put(BUILT_IN + place as ncclRedOp_t) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t {
    enter(|| {
        let comm = pin::<Comm>(comm.addr() as u64)?;
        let mut factors = comm.factors.lock().unwrap_or_else(PoisonError::into_inner);
        let place = usize::try_from(op.wrapping_sub(BUILT_IN)).ok();
        let factor = place.and_then(|place| factors.get_mut(place)?.take());
        factor.map(drop).ok_or_else(|| unknown(op))
    })
}

/// A number of some type, in host memory.
///
/// Errors: no call multiplies by this one exactly.
///
/// # Safety
///
/// The pointer is NULL or leads to one.
unsafe fn scalar_at(scalar: *const c_void, dtype: Dtype) -> Outcome<f64> {
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
