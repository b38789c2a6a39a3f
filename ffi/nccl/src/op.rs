//! Operators: NCCL's five, and those that scale before they sum.

use std::ffi::{c_int, c_void};
use std::sync::PoisonError;

use brigade_comm::{Dtype, Op};
use brigade_wall::handle::pin;
use brigade_wall::pointer::Out;
use brigade_wall::sight::is_out_of_reach;
use brigade_wall::{Failure, Outcome};

use crate::comm::{Comm, ncclComm_t};
use crate::factor::{Factor, Number, scalar_at};
use crate::result::{enter, ncclResult_t};

/// The number of an operator; from 5 on they are made, each for one communicator.
pub type ncclRedOp_t = c_int;

const BUILT_IN: ncclRedOp_t = 5;
/// More are a mistake.
const FACTORS_MAX: usize = 1 << 16;

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
