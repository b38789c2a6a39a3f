//! Sum and product of bf16, two elements at a time in the halves of a u32.
//!
//! Plainly: `narrow(widen(a) + widen(b))`, element by element. Deviation: widening and narrowing
//! stay inside 32-bit lanes, so no vector is unpacked and packed again.

use std::marker::PhantomData;

use half::bf16;

use super::codec::encode_bf16;
use super::fold::{Combine, Kernel, Product, Total, each};

/// The fold of bf16 elements by [`Total`] or [`Product`].
pub(super) struct Twos<C>(PhantomData<C>);

/// Two neighbouring elements.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Two(u32);

impl<C: Combine<Two> + Combine<bf16>> Kernel for Twos<C> {
    #[inline(always)]
    unsafe fn fold(operand: *const u8, arriving: *const u8, result: *mut u8, count: usize) {
        // SAFETY: the pairs and the single element after them are the `count` elements that the
        // caller vouches for.
        unsafe {
            each::<C, Two>(operand, arriving, result, count / 2);
            let rest = count / 2 * size_of::<Two>();
            let (operand, arriving) = (operand.add(rest), arriving.add(rest));
            each::<C, bf16>(operand, arriving, result.add(rest), count % 2);
        }
    }
}

impl Combine<Two> for Total {
    #[inline(always)]
    fn combine(a: Two, b: Two) -> Two {
        a.zip(b, |a, b| a + b)
    }
}

impl Combine<Two> for Product {
    #[inline(always)]
    fn combine(a: Two, b: Two) -> Two {
        a.zip(b, |a, b| a * b)
    }
}

impl Two {
    #[inline(always)]
    fn zip(self, other: Self, operator: impl Fn(f32, f32) -> f32) -> Self {
        const UPPER: u32 = 0xffff_0000;
        let upper = |two: Self| f32::from_bits(two.0 & UPPER);
        let lower = |two: Self| f32::from_bits(two.0 << 16);
        let high = encode_bf16(operator(upper(self), upper(other)));
        let low = encode_bf16(operator(lower(self), lower(other)));
        Self((high & UPPER) | (low >> 16))
    }
}
