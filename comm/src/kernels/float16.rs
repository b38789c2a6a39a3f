//! Sum and product of f16 with the conversion instructions of F16C and AVX-512.
//!
//! Plainly: `narrow(widen(a) + widen(b))`, element by element. Deviation: whole vectors at a time,
//! and a tail that is copied into a vector of zeros; worth a factor of several over converting with
//! integer instructions.

use half::f16;

#[cfg(target_arch = "x86_64")]
use super::fold::Folds;
use super::fold::{Kernel, Product, Total, each};

/// The sum of f16 elements, or their product.
pub(super) struct Half<const PRODUCT: bool>;

impl<const PRODUCT: bool> Kernel for Half<PRODUCT> {
    #[cfg(target_arch = "x86_64")]
    const FOLDS: Folds = [Self::fold, x86::avx2::<PRODUCT>, x86::avx512::<PRODUCT>];

    unsafe fn fold(operand: *const u8, arriving: *const u8, result: *mut u8, count: usize) {
        // SAFETY: the caller's promise is passed on.
        unsafe {
            if PRODUCT {
                each::<Product, f16>(operand, arriving, result, count);
            } else {
                each::<Total, f16>(operand, arriving, result, count);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// # Safety
    /// See [`crate::kernels::Fold`]; the machine has AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn avx2<const PRODUCT: bool>(
        operand: *const u8,
        arriving: *const u8,
        result: *mut u8,
        count: usize,
    ) {
        // SAFETY: `vectors` touches no element past `count`, and this function has its features.
        unsafe {
            vectors::<8>(operand, arriving, result, count, |a, b, to| {
                let a = _mm256_cvtph_ps(_mm_loadu_si128(a.cast()));
                let b = _mm256_cvtph_ps(_mm_loadu_si128(b.cast()));
                let wide = if PRODUCT { _mm256_mul_ps(a, b) } else { _mm256_add_ps(a, b) };
                let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(wide, wide);
                let wide = _mm256_blendv_ps(wide, _mm256_set1_ps(f32::NAN), nan);
                let narrow = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm_storeu_si128(to.cast(), narrow);
            });
        }
    }

    /// # Safety
    /// See [`crate::kernels::Fold`]; the machine has AVX-512 F, BW, DQ and VL.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub(super) unsafe fn avx512<const PRODUCT: bool>(
        operand: *const u8,
        arriving: *const u8,
        result: *mut u8,
        count: usize,
    ) {
        // SAFETY: `vectors` touches no element past `count`, and this function has its features.
        unsafe {
            vectors::<16>(operand, arriving, result, count, |a, b, to| {
                let a = _mm512_cvtph_ps(_mm256_loadu_si256(a.cast()));
                let b = _mm512_cvtph_ps(_mm256_loadu_si256(b.cast()));
                let wide = if PRODUCT { _mm512_mul_ps(a, b) } else { _mm512_add_ps(a, b) };
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(wide, wide);
                let wide = _mm512_mask_mov_ps(wide, nan, _mm512_set1_ps(f32::NAN));
                let narrow = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(wide);
                _mm256_storeu_si256(to.cast(), narrow);
            });
        }
    }

    /// Call `vector(a, b, to)` for each `LANES` elements, and once more for what is left, in copies
    /// padded with zeros.
    ///
    /// # Safety
    /// See [`crate::kernels::Fold`]; `vector` reads and writes `LANES` elements, each read before
    /// its write.
    #[inline(always)]
    unsafe fn vectors<const LANES: usize>(
        operand: *const u8,
        arriving: *const u8,
        result: *mut u8,
        count: usize,
        vector: impl Fn(*const u16, *const u16, *mut u16),
    ) {
        let (operand, arriving) = (operand.cast::<u16>(), arriving.cast::<u16>());
        let result = result.cast::<u16>();
        let whole = count / LANES * LANES;
        for at in (0..whole).step_by(LANES) {
            // SAFETY: `at + LANES` is at most `count`.
            unsafe { vector(operand.add(at), arriving.add(at), result.add(at)) };
        }
        let rest = count - whole;
        if rest == 0 {
            return;
        }
        let (mut a, mut b, mut to) = ([0u16; LANES], [0u16; LANES], [0u16; LANES]);
        let bytes = rest * size_of::<u16>();
        // SAFETY: `whole + rest` is `count`, and the three arrays have `LANES > rest` elements.
        unsafe {
            let (tail_a, tail_b) = (operand.add(whole).cast::<u8>(), arriving.add(whole).cast());
            a.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(tail_a, bytes);
            b.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(tail_b, bytes);
            vector(a.as_ptr(), b.as_ptr(), to.as_mut_ptr());
            let tail = result.add(whole).cast::<u8>();
            tail.copy_from_nonoverlapping(to.as_ptr().cast(), bytes);
        }
    }
}
