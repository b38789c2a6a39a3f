//! Scaling in place: the division of an average and the factor of a pre-multiplied sum.

use half::{bf16, f16};

use super::lane::Float;
use crate::{Dtype, F8e4m3, F8e5m2};

/// `data[i] = scaled(data[i], factor)` for `count` elements: data, count, factor.
///
/// # Safety
/// `data` is valid for reads and writes of `count` elements, at any alignment, and nobody else
/// touches them during the call.
pub type Scale = unsafe fn(*mut u8, usize, f64);

/// One scale for each [`super::Isa`], in its order.
pub(super) type Scales = [Scale; 3];

/// The divisions of one element type.
pub(super) fn divisions(dtype: Dtype) -> Option<Scales> {
    of_type::<Divide>(dtype)
}

/// The multiplications of one element type.
pub(super) fn multiplications(dtype: Dtype) -> Option<Scales> {
    of_type::<Multiply>(dtype)
}

struct Divide;
struct Multiply;

/// How an element is scaled.
trait Rescale<L>: 'static {
    /// The factor in the type that the arithmetic uses.
    type Factor: Copy;
    /// Convert the factor, once per call.
    fn prepare(factor: f64) -> Self::Factor;
    fn rescale(element: L, factor: Self::Factor) -> L;
}

/// Everything that has a scale.
trait Scaling:
    Rescale<i8>
    + Rescale<u8>
    + Rescale<i16>
    + Rescale<i32>
    + Rescale<u32>
    + Rescale<i64>
    + Rescale<u64>
    + Rescale<f16>
    + Rescale<bf16>
    + Rescale<f32>
    + Rescale<f64>
    + Rescale<F8e4m3>
    + Rescale<F8e5m2>
{
}

impl Scaling for Divide {}
impl Scaling for Multiply {}

fn of_type<R: Scaling>(dtype: Dtype) -> Option<Scales> {
    Some(match dtype {
        Dtype::I8 => scales::<R, i8>(),
        Dtype::U8 => scales::<R, u8>(),
        Dtype::I16 => scales::<R, i16>(),
        Dtype::I32 => scales::<R, i32>(),
        Dtype::U32 => scales::<R, u32>(),
        Dtype::I64 => scales::<R, i64>(),
        Dtype::U64 => scales::<R, u64>(),
        Dtype::F16 => scales::<R, f16>(),
        Dtype::Bf16 => scales::<R, bf16>(),
        Dtype::F32 => scales::<R, f32>(),
        Dtype::F64 => scales::<R, f64>(),
        Dtype::F8e4m3 => scales::<R, F8e4m3>(),
        Dtype::F8e5m2 => scales::<R, F8e5m2>(),
        Dtype::Bool => return None,
    })
}

/// Small integers are divided as `$wide`, which holds every divisor.
macro_rules! integers {
    ($($lane:ty, $wide:ty;)*) => {$(
        impl Rescale<$lane> for Divide {
            type Factor = $wide;

            #[inline(always)]
            fn prepare(factor: f64) -> $wide {
                debug_assert!((1.0..=2147483648.0).contains(&factor), "divisor {factor}");
                (factor as $wide).max(1)
            }

            #[inline(always)]
            fn rescale(element: $lane, factor: $wide) -> $lane {
                (element as $wide / factor) as $lane
            }
        }

        impl Rescale<$lane> for Multiply {
            type Factor = $lane;

            #[inline(always)]
            fn prepare(factor: f64) -> $lane {
                factor as i64 as $lane
            }

            #[inline(always)]
            fn rescale(element: $lane, factor: $lane) -> $lane {
                element.wrapping_mul(factor)
            }
        }
    )*};
}

integers! {
    i8, i64;
    u8, u64;
    i16, i64;
    i32, i64;
    u32, u64;
    i64, i64;
    u64, u64;
}

macro_rules! floats {
    ($($lane:ty, $wide:ty;)*) => {$(
        impl Rescale<$lane> for Divide {
            type Factor = $wide;

            #[inline(always)]
            fn prepare(factor: f64) -> $wide {
                factor as $wide
            }

            #[inline(always)]
            fn rescale(element: $lane, factor: $wide) -> $lane {
                <$lane>::narrow(element.widen() / factor)
            }
        }

        impl Rescale<$lane> for Multiply {
            type Factor = $wide;

            #[inline(always)]
            fn prepare(factor: f64) -> $wide {
                factor as $wide
            }

            #[inline(always)]
            fn rescale(element: $lane, factor: $wide) -> $lane {
                <$lane>::narrow(element.widen() * factor)
            }
        }
    )*};
}

floats! {
    f16, f32;
    bf16, f32;
    f32, f32;
    f64, f64;
    F8e4m3, f32;
    F8e5m2, f32;
}

#[cfg(target_arch = "x86_64")]
fn scales<R: Rescale<L>, L: Copy>() -> Scales {
    [portable::<R, L>, avx2::<R, L>, avx512::<R, L>]
}

#[cfg(not(target_arch = "x86_64"))]
fn scales<R: Rescale<L>, L: Copy>() -> Scales {
    [portable::<R, L>; 3]
}

/// # Safety
/// See [`Scale`].
unsafe fn portable<R: Rescale<L>, L: Copy>(data: *mut u8, count: usize, factor: f64) {
    // SAFETY: the caller's promise is passed on.
    unsafe { each::<R, L>(data, count, factor) }
}

/// # Safety
/// See [`Scale`]; the machine has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<R: Rescale<L>, L: Copy>(data: *mut u8, count: usize, factor: f64) {
    // SAFETY: the caller's promise is passed on.
    unsafe { each::<R, L>(data, count, factor) }
}

/// # Safety
/// See [`Scale`]; the machine has AVX-512 F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn avx512<R: Rescale<L>, L: Copy>(data: *mut u8, count: usize, factor: f64) {
    // SAFETY: the caller's promise is passed on.
    unsafe { each::<R, L>(data, count, factor) }
}

/// # Safety
/// See [`Scale`].
#[inline(always)]
unsafe fn each<R: Rescale<L>, L: Copy>(data: *mut u8, count: usize, factor: f64) {
    let data = data.cast::<L>();
    let factor = R::prepare(factor);
    for i in 0..count {
        // SAFETY: the caller vouches for `count` elements.
        unsafe {
            let element = data.add(i).read_unaligned();
            data.add(i).write_unaligned(R::rescale(element, factor));
        }
    }
}
