//! The function in the middle of a reducing collective, chosen once per plan.

use std::sync::Arc;

use brigade_transports::copy_past_caches;

use crate::call::Call;
use crate::inside::Inside;
use crate::kernels::{self, Fold};
use crate::op::CustomOp;
use crate::{Dtype, Op};

/// What takes two steps goes through a block of this size.
const BLOCK_BYTES: usize = 4096;

/// How arriving elements are folded.
pub(crate) enum Reduction {
    /// A kernel of ours.
    Kernel(Fold),
    /// The user's function.
    Custom(Arc<dyn CustomOp>, Dtype),
    /// Nothing is folded in this call.
    None,
}

impl Reduction {
    /// How a call that makes sense folds, unless by a function of the user's.
    pub(crate) fn built_in(call: &Call) -> Self {
        match &call.op {
            Op::Custom(_) => Self::None,
            _ => Self::of(call),
        }
    }

    /// How a call that makes sense folds.
    pub(crate) fn of(call: &Call) -> Self {
        match &call.op {
            _ if !call.collective.folds() => Self::None,
            Op::Custom(custom) => Self::Custom(Arc::clone(custom), call.dtype),
            op => kernels::fold(call.dtype, op).map_or(Self::None, Self::Kernel),
        }
    }

    /// `result = operand ⊕ arriving` for `count` elements.
    ///
    /// # Safety
    ///
    /// Operand and arriving can be read, and result written, for `count` elements. Result may be
    /// operand; otherwise none of the three overlap. Nobody else touches them meanwhile.
    pub(crate) unsafe fn fold(
        &self,
        operand: *const u8,
        arriving: *const u8,
        result: *mut u8,
        count: usize,
    ) {
        match self {
            // SAFETY: the caller's promise is the kernel's demand.
            Self::Kernel(kernel) => unsafe { kernel(operand, arriving, result, count) },
            Self::Custom(custom, dtype) => {
                let bytes = count * dtype.size();
                // SAFETY: the caller vouches for `count` elements at each pointer, and for result
                // being operand or apart from it; so the copy and the two slices are sound.
                let (arriving, result) = unsafe {
                    if operand != result.cast_const() {
                        std::ptr::copy_nonoverlapping(operand, result, bytes);
                    }
                    (
                        std::slice::from_raw_parts(arriving, bytes),
                        std::slice::from_raw_parts_mut(result, bytes),
                    )
                };
                let _inside = Inside::any_call();
                custom.fold(arriving, result, *dtype);
            }
            Self::None => unreachable!("a call that folds has a reduction"),
        }
    }

    /// The same, with a result that goes past the caches: `count` elements of `granule` bytes.
    ///
    /// # Safety
    ///
    /// As for [`Reduction::fold`].
    pub(crate) unsafe fn fold_past(
        &self,
        operand: *const u8,
        arriving: *const u8,
        result: *mut u8,
        (count, granule): (usize, usize),
    ) {
        let mut block = [0; BLOCK_BYTES];
        for first in (0..count).step_by(BLOCK_BYTES / granule) {
            let count = (count - first).min(BLOCK_BYTES / granule);
            let (at, bytes) = (first * granule, count * granule);
            // SAFETY: the caller vouches for these elements at each pointer, and the block holds
            // `count` of them.
            unsafe {
                self.fold(operand.add(at), arriving.add(at), block.as_mut_ptr(), count);
                let result = std::slice::from_raw_parts_mut(result.add(at), bytes);
                copy_past_caches(&block[..bytes], result);
            }
        }
    }

    /// `into = from ⊕ own` for `count` elements, in this order also where it matters.
    ///
    /// # Safety
    ///
    /// All three hold `count` elements; `into` may be `own`, and otherwise none of them overlap.
    /// Nobody else touches them meanwhile.
    pub(crate) unsafe fn merge(
        &self,
        from: *const u8,
        own: *const u8,
        into: *mut u8,
        count: usize,
    ) {
        let Self::Custom(custom, dtype) = self else {
            // SAFETY: the caller's promise. The operators of ours commute to the last bit.
            return unsafe { self.fold(own, from, into, count) };
        };
        let size = dtype.size();
        let mut block = [0; BLOCK_BYTES];
        for first in (0..count).step_by(BLOCK_BYTES / size) {
            let (at, bytes) = (first * size, (count - first).min(BLOCK_BYTES / size) * size);
            // SAFETY: the caller vouches for `count` elements at each pointer, and the block holds
            // `bytes`; what is read of `own` here is written over only afterwards.
            unsafe {
                std::ptr::copy_nonoverlapping(from.add(at), block.as_mut_ptr(), bytes);
                let own = std::slice::from_raw_parts(own.add(at), bytes);
                let _inside = Inside::any_call();
                custom.fold(own, &mut block[..bytes], *dtype);
                std::ptr::copy_nonoverlapping(block.as_ptr(), into.add(at), bytes);
            }
        }
    }
}
