//! The fold loop and its three compilations.

use std::marker::PhantomData;

use super::lane::{Bits, Number};

/// `result[i] = operand[i] ⊕ arriving[i]` for `count` elements, in this order of arguments:
/// operand, arriving, result, count.
///
/// # Safety
/// Each pointer is valid for `count` elements (`result` for writes), at any alignment. `result` may
/// be `operand` or `arriving` or both; it may not overlap them otherwise. Nobody else writes the
/// inputs or touches the result during the call.
pub type Fold = unsafe fn(*const u8, *const u8, *mut u8, usize);

/// One fold for each [`super::Isa`], in its order.
pub(super) type Folds = [Fold; 3];

/// A fold of one element type.
pub(super) trait Kernel: Sized + 'static {
    /// This fold for each instruction set.
    #[cfg(target_arch = "x86_64")]
    const FOLDS: Folds = [portable::<Self>, avx2::<Self>, avx512::<Self>];

    /// This fold for each instruction set.
    #[cfg(not(target_arch = "x86_64"))]
    const FOLDS: Folds = [portable::<Self>; 3];

    /// The fold in plain Rust; inlined into a function for each instruction set.
    ///
    /// # Safety
    /// See [`Fold`].
    unsafe fn fold(operand: *const u8, arriving: *const u8, result: *mut u8, count: usize);
}

/// How two elements of type `L` become one, the same bits in either order.
pub(super) trait Combine<L>: 'static {
    fn combine(a: L, b: L) -> L;
}

macro_rules! combinations {
    ($($name:ident: $bound:ident::$function:ident;)*) => {$(
        pub(super) struct $name;

        impl<L: $bound> Combine<L> for $name {
            #[inline(always)]
            fn combine(a: L, b: L) -> L {
                a.$function(b)
            }
        }
    )*};
}

combinations! {
    Total: Number::sum;
    Product: Number::product;
    Least: Number::least;
    Largest: Number::largest;
    And: Bits::and;
    Or: Bits::or;
    Xor: Bits::xor;
}

/// The kernel that combines elements one by one and leaves vectors to the compiler.
pub(super) struct Loop<C, L>(PhantomData<(C, L)>);

impl<C: Combine<L>, L: Copy + 'static> Kernel for Loop<C, L> {
    #[inline(always)]
    unsafe fn fold(operand: *const u8, arriving: *const u8, result: *mut u8, count: usize) {
        // SAFETY: the caller's promise is passed on.
        unsafe { each::<C, L>(operand, arriving, result, count) }
    }
}

/// The loop, written twice: compilers guard a loop over three pointers by an overlap test, which a
/// result that *is* an input would fail, and then run it element by element. With two pointers, one
/// of them read and written, the same guard passes.
///
/// # Safety
/// See [`Fold`].
#[inline(always)]
pub(super) unsafe fn each<C: Combine<L>, L: Copy>(
    operand: *const u8,
    arriving: *const u8,
    result: *mut u8,
    count: usize,
) {
    let (operand, arriving) = (operand.cast::<L>(), arriving.cast::<L>());
    let result = result.cast::<L>();
    if !std::ptr::eq(result, operand) && !std::ptr::eq(result, arriving) {
        for i in 0..count {
            // SAFETY: the caller vouches for `count` elements behind each pointer.
            unsafe {
                let (a, b) = (operand.add(i).read_unaligned(), arriving.add(i).read_unaligned());
                result.add(i).write_unaligned(C::combine(a, b));
            }
        }
        return;
    }
    // Combining is commutative, so it does not matter which of the two inputs the result is.
    let other = if std::ptr::eq(result, operand) { arriving } else { operand };
    for i in 0..count {
        // SAFETY: as above; both elements are read before the result is written.
        unsafe {
            let (a, b) = (result.add(i).read_unaligned(), other.add(i).read_unaligned());
            result.add(i).write_unaligned(C::combine(a, b));
        }
    }
}

/// # Safety
/// See [`Fold`].
unsafe fn portable<K: Kernel>(
    operand: *const u8,
    arriving: *const u8,
    result: *mut u8,
    count: usize,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe { K::fold(operand, arriving, result, count) }
}

/// # Safety
/// See [`Fold`]; the machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<K: Kernel>(operand: *const u8, arriving: *const u8, result: *mut u8, count: usize) {
    // SAFETY: the caller's promise is passed on.
    unsafe { K::fold(operand, arriving, result, count) }
}

/// # Safety
/// See [`Fold`]; the machine has AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<K: Kernel>(
    operand: *const u8,
    arriving: *const u8,
    result: *mut u8,
    count: usize,
) {
    // SAFETY: the caller's promise is passed on.
    unsafe { K::fold(operand, arriving, result, count) }
}
