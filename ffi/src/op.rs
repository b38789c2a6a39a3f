//! Operators: those that everybody has, and those that users bring.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use brigade_comm::{CustomOp, Dtype, Op};

use crate::dtype::brigade_dtype_t;
use crate::error::{Failure, Outcome, brigade_result_t, enter};
use crate::thread::Folding;
use brigade_wall::handle::{close, pin, register};
use brigade_wall::pointer::{Out, text};

/// How two elements become one: one of the constants below, or a handle of brigade_op_create or
/// brigade_op_create_pre_mul_sum. Operators that NCCL knows have NCCL's numbers.
pub type brigade_op_t = u64;

/// The sum. Integers wrap around; of booleans it is "or".
pub const BRIGADE_SUM: brigade_op_t = 0;
/// The product; of booleans "and".
pub const BRIGADE_PROD: brigade_op_t = 1;
/// The greatest; NaN if one is NaN.
pub const BRIGADE_MAX: brigade_op_t = 2;
/// The least; NaN if one is NaN.
pub const BRIGADE_MIN: brigade_op_t = 3;
/// The sum divided by the number of ranks, truncated for integers. A sum that the type does not
/// hold is infinite before it is divided, or the largest number of eight bits: where that may be,
/// brigade_op_create_pre_mul_sum divides first.
pub const BRIGADE_AVG: brigade_op_t = 4;
/// Bitwise and, of integers and booleans.
pub const BRIGADE_BAND: brigade_op_t = 5;
/// Bitwise or, of integers and booleans.
pub const BRIGADE_BOR: brigade_op_t = 6;
/// Bitwise exclusive or, of integers and booleans.
pub const BRIGADE_BXOR: brigade_op_t = 7;

/// An operator of the user's: accumulator[i] = accumulator[i] (op) arriving[i] for `count`
/// elements, both aligned to their type. It must be associative, give the same bytes for the same
/// bytes, and also be commutative unless BRIGADE_ORDERED is set. It runs on a thread that is inside
/// a call, maybe on several at once: it must not call functions of this library that wait, and must
/// neither throw nor jump out.
pub type brigade_fold_t = Option<
    unsafe extern "C" fn(
        arriving: *const c_void,
        accumulator: *mut c_void,
        count: usize,
        dtype: brigade_dtype_t,
        user: *mut c_void,
    ),
>;

/// Make an operator of a function. `user` is handed to it as it is. Ranks whose operators have
/// different names nearly always notice.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_op_create(
    op: *mut brigade_op_t,
    name: *const c_char,
    fold: brigade_fold_t,
    user: *mut c_void,
) -> brigade_result_t {
    enter(|| {
        let out = Out::new(op, "op")?;
        // SAFETY: C passes text.
        let name = unsafe { text(name, "name") }?.to_owned();
        let fold = fold.ok_or_else(|| Failure::argument("fold is NULL"))?;
        let custom = UserOp { name, fold, user };
        let handle = register(Arc::new(Op::Custom(Arc::new(custom))))?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(handle) };
        Ok(())
    })
}

/// Make the operator that multiplies each rank's input by `factor` and then sums. Ranks may give
/// different factors. The factor is converted to float for types up to 32 bits, and truncated for
/// integers.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_op_create_pre_mul_sum(
    op: *mut brigade_op_t,
    factor: f64,
) -> brigade_result_t {
    enter(|| {
        let out = Out::new(op, "op")?;
        if !factor.is_finite() {
            return Err(Failure::argument(format!("factor {factor} is not a finite number")));
        }
        let handle = register(Arc::new(Op::PreMulSum(factor)))?;
        // SAFETY: C passes a place for it.
        unsafe { out.put(handle) };
        Ok(())
    })
}

/// End an operator that was made. Calls that were begun with it may still use its function.
///
/// Threads: from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn brigade_op_destroy(op: brigade_op_t) -> brigade_result_t {
    enter(|| match op {
        BRIGADE_SUM..=BRIGADE_BXOR => {
            Err(Failure::argument(format!("operator {op} was not made, and stays")))
        }
        handle => close::<Op>(handle),
    })
}

/// The operator that C means.
#[inline(always)]
pub(crate) fn parse(op: brigade_op_t) -> Outcome<Op> {
    Ok(match op {
        BRIGADE_SUM => Op::Sum,
        BRIGADE_PROD => Op::Prod,
        BRIGADE_MAX => Op::Max,
        BRIGADE_MIN => Op::Min,
        BRIGADE_AVG => Op::Avg,
        BRIGADE_BAND => Op::Band,
        BRIGADE_BOR => Op::Bor,
        BRIGADE_BXOR => Op::Bxor,
        // No handle is as small: it was meant for one of these.
        8..=255 => return Err(unknown(op)),
        handle => made(handle)?,
    })
}

#[cold]
fn unknown(op: brigade_op_t) -> Box<Failure> {
    Failure::argument(format!(
        "no operator has the number {op}; there are BRIGADE_SUM ({BRIGADE_SUM}) to BRIGADE_BXOR \
         ({BRIGADE_BXOR}), and those that brigade_op_create makes"
    ))
}

/// An operator that a handle stands for.
fn made(handle: u64) -> Outcome<Op> {
    Ok(pin::<Op>(handle)?.clone())
}

/// A function of C's with its user's pointer.
struct UserOp {
    name: String,
    fold: unsafe extern "C" fn(*const c_void, *mut c_void, usize, brigade_dtype_t, *mut c_void),
    user: *mut c_void,
}

// SAFETY: the pointer is only handed to the function, which may run on any thread: that is what
// `brigade_fold_t` says.
unsafe impl Send for UserOp {}
// SAFETY: as above.
unsafe impl Sync for UserOp {}

/// What lies askew is folded through aligned blocks of this size.
const BLOCK_BYTES: usize = 2048;

#[repr(align(64))]
struct Block([u8; BLOCK_BYTES]);

impl CustomOp for UserOp {
    fn name(&self) -> &str {
        &self.name
    }

    fn fold(&self, arriving: &[u8], accumulator: &mut [u8], dtype: Dtype) {
        let size = dtype.size();
        let askew = |start: *const u8| !start.addr().is_multiple_of(size);
        if !askew(arriving.as_ptr()) && !askew(accumulator.as_ptr()) {
            return self.call(arriving, accumulator, dtype);
        }
        let (mut left, mut right) = (Block([0; BLOCK_BYTES]), Block([0; BLOCK_BYTES]));
        let pairs = arriving.chunks(BLOCK_BYTES).zip(accumulator.chunks_mut(BLOCK_BYTES));
        for (arriving, accumulator) in pairs {
            let bytes = arriving.len();
            left.0[..bytes].copy_from_slice(arriving);
            right.0[..bytes].copy_from_slice(accumulator);
            self.call(&left.0[..bytes], &mut right.0[..bytes], dtype);
            accumulator.copy_from_slice(&right.0[..bytes]);
        }
    }
}

impl UserOp {
    fn call(&self, arriving: &[u8], accumulator: &mut [u8], dtype: Dtype) {
        let _folding = Folding::begin();
        let count = accumulator.len() / dtype.size();
        let (arriving, accumulator) = (arriving.as_ptr().cast(), accumulator.as_mut_ptr().cast());
        // SAFETY: both are elements of this type, aligned, and as many; the rest is C's promise.
        unsafe { (self.fold)(arriving, accumulator, count, dtype.into(), self.user) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums i32; fails if it is handed anything askew.
    unsafe extern "C" fn add(
        arriving: *const c_void,
        accumulator: *mut c_void,
        count: usize,
        _: brigade_dtype_t,
        user: *mut c_void,
    ) {
        let (arriving, accumulator) = (arriving.cast::<i32>(), accumulator.cast::<i32>());
        assert!(arriving.is_aligned() && accumulator.is_aligned());
        for at in 0..count {
            // SAFETY: both hold `count` elements, and user is the counter of this test.
            unsafe {
                *accumulator.add(at) += *arriving.add(at);
                *user.cast::<usize>() += 1;
            }
        }
    }

    #[test]
    fn a_function_gets_aligned_elements_and_each_of_them_once() {
        for (left_skew, right_skew, count) in [(0, 0, 3), (1, 0, 1000), (0, 3, 513), (2, 2, 1024)] {
            let mut folded = 0_usize;
            let user = (&raw mut folded).cast();
            let op = UserOp { name: "add".into(), fold: add, user };
            let words: Vec<i32> = (0..count).collect();
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let (mut left, mut right) = (vec![0_u64; 1 << 10], vec![0_u64; 1 << 10]);
            // SAFETY: the words are ours, and longer than the bytes with any skew.
            let (left, right) = unsafe {
                (
                    std::slice::from_raw_parts_mut(left.as_mut_ptr().cast::<u8>(), 8 << 10),
                    std::slice::from_raw_parts_mut(right.as_mut_ptr().cast::<u8>(), 8 << 10),
                )
            };
            let left = &mut left[left_skew..left_skew + bytes.len()];
            let right = &mut right[right_skew..right_skew + bytes.len()];
            left.copy_from_slice(&bytes);
            right.copy_from_slice(&bytes);
            op.fold(left, right, Dtype::I32);
            assert_eq!(folded, count as usize);
            for (word, bytes) in words.iter().zip(right.chunks(4)) {
                assert_eq!(i32::from_ne_bytes(bytes.try_into().unwrap()), 2 * word);
            }
        }
    }

    #[test]
    fn constants_mean_what_the_wire_says() {
        for code in 0..8 {
            assert_eq!(u64::from(parse(code).unwrap().code()), code);
        }
        assert!(parse(8).is_err() && parse(u64::MAX).is_err());
    }

    #[test]
    fn a_number_that_no_operator_has_is_told_as_it_was_given() {
        for number in [8, 99, 255] {
            let Err(refused) = parse(number) else { panic!("{number} is none") };
            let said = refused.sentence;
            assert!(said.contains(&format!("no operator has the number {number};")), "{said}");
        }
        assert!(parse(BRIGADE_BXOR).is_ok());
    }
}
