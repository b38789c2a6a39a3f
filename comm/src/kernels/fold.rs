//! The fold loop, its three compilations, and its streaming form.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::lane::{Bits, Number};
use super::{Fold, copy};

/// One fold for each [`super::Isa`], in its order.
pub(super) type Folds = [Fold; 3];

/// A fold of one element type.
pub(super) trait Kernel: Sized + 'static {
    /// Bytes per element.
    const SIZE: usize;

    /// With plain stores.
    #[cfg(target_arch = "x86_64")]
    const FOLDS: Folds = [portable::<Self>, avx2::<Self>, avx512::<Self>];

    /// With plain stores.
    #[cfg(not(target_arch = "x86_64"))]
    const FOLDS: Folds = [portable::<Self>; 3];

    /// With stores that pass the caches by.
    const STREAMING: Folds = [streaming::<Self, 0>, streaming::<Self, 1>, streaming::<Self, 2>];

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
    const SIZE: usize = size_of::<L>();

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

/// Bytes folded into the first-level cache before they are streamed out. Small enough to stay there
/// beside both inputs, large enough that the call around it costs nothing.
const BLOCK_BYTES: usize = 2048;

/// A tile with the alignment of a cache line.
#[repr(align(64))]
struct Tile(MaybeUninit<[u8; BLOCK_BYTES]>);

/// Fold a block into a tile, stream the tile to the result, repeat.
///
/// # Safety
/// See [`Fold`]; the machine has the instruction set number `ISA`.
unsafe fn streaming<K: Kernel, const ISA: usize>(
    operand: *const u8,
    arriving: *const u8,
    result: *mut u8,
    count: usize,
) {
    let mut tile = Tile(MaybeUninit::uninit());
    let tile = tile.0.as_mut_ptr().cast::<u8>();
    let bytes = count * K::SIZE;
    let mut done = 0;
    while done < bytes {
        // A first block that ends at a cache line lets all others be whole lines.
        let ragged = (result as usize + done) % copy::LINE_BYTES / K::SIZE * K::SIZE;
        let block = (BLOCK_BYTES - ragged).min(bytes - done);
        // SAFETY: `done + block` is at most the bytes the caller vouches for, and the tile has
        // `BLOCK_BYTES`. The tile overlaps nothing; the block is read before it is written.
        unsafe {
            K::FOLDS[ISA](operand.add(done), arriving.add(done), tile, block / K::SIZE);
            copy::stream(tile, result.add(done), block);
        }
        done += block;
    }
    copy::fence();
}
