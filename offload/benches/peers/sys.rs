//! AdamW and the norm behind C functions, so that they can be timed on PyTorch's own tensors, in
//! turn with PyTorch and DeepSpeed. Not part of the library: `compare` beside it loads this.

use std::slice::{from_raw_parts, from_raw_parts_mut};

use brigade_offload::optimizer::{
    AdamW, Crew, Gradients, Moment, Narrowed, Shard, Weights, square_sum,
};
use half::bf16;

/// Arrays of `count` elements, in formats that `format` chooses.
#[repr(C)]
pub struct Arrays {
    weights: *mut u8,
    gradients: *const u8,
    mean: *mut u8,
    square: *mut u8,
    narrowed: *mut u8,
    count: usize,
}

/// All f32; nothing narrowed.
const FULL: u32 = 0;
/// bf16 gradients and narrowed weights around f32.
const MIXED: u32 = 1;
/// bf16 weights and gradients, f32 moments; nothing narrowed.
const NARROW: u32 = 2;

/// Start some threads. Null when there are none to be had.
#[unsafe(no_mangle)]
pub extern "C" fn peer_crew(threads: usize) -> *mut Crew {
    Crew::new(threads).map_or(std::ptr::null_mut(), |crew| Box::into_raw(Box::new(crew)))
}

/// A step of AdamW; 0 when it was done.
///
/// # Safety
/// `crew` is one that `peer_crew` made, and no other call uses it. The arrays are valid for `count`
/// elements of the formats that `format` stands for, aligned, and apart from each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_adamw(
    crew: *mut Crew,
    arrays: &Arrays,
    format: u32,
    step: u64,
    scale: f32,
) -> i32 {
    let rule = AdamW { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.01 };
    // SAFETY: the caller's promise.
    let shard = unsafe { shard(arrays, format) };
    // SAFETY: the caller's promise.
    let crew = unsafe { &mut *crew };
    shard.map_or(1, |shard| i32::from(rule.at(step, scale).apply(crew, shard).is_err()))
}

/// The sum of the squares of `count` gradients, f32 or bf16.
///
/// # Safety
/// As for [`peer_adamw`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_square_sum(crew: *mut Crew, arrays: &Arrays, format: u32) -> f64 {
    let (start, count) = (arrays.gradients, arrays.count);
    // SAFETY: the caller's promise.
    let crew = unsafe { &mut *crew };
    let gradients = match format {
        // SAFETY: the caller's promise.
        FULL => Gradients::F32(unsafe { from_raw_parts(start.cast(), count) }),
        // SAFETY: the caller's promise.
        _ => Gradients::Bf16(unsafe { from_raw_parts(start.cast(), count) }),
    };
    square_sum(crew, gradients).0
}

/// # Safety
/// As for [`peer_adamw`].
unsafe fn shard(arrays: &Arrays, format: u32) -> Option<Shard<'_>> {
    // SAFETY: the caller's promise, as this function's.
    let full = |start: *mut u8| unsafe { from_raw_parts_mut(start.cast::<f32>(), arrays.count) };
    // SAFETY: as above.
    let half = |start: *mut u8| unsafe { from_raw_parts_mut(start.cast::<bf16>(), arrays.count) };
    let gradients = arrays.gradients.cast_mut();
    let (mean, square) = (Moment::F32(full(arrays.mean)), Moment::F32(full(arrays.square)));
    let (weights, gradients, narrowed) = match format {
        FULL => {
            let weights = Weights::F32(full(arrays.weights));
            (weights, Gradients::F32(full(gradients)), Narrowed::None)
        }
        MIXED => {
            let weights = Weights::F32(full(arrays.weights));
            let narrowed = Narrowed::Bf16(half(arrays.narrowed));
            (weights, Gradients::Bf16(half(gradients)), narrowed)
        }
        NARROW => {
            let weights = Weights::Bf16(half(arrays.weights));
            (weights, Gradients::Bf16(half(gradients)), Narrowed::None)
        }
        _ => return None,
    };
    Some(Shard { weights, gradients, mean, square, narrowed })
}
