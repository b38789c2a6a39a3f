//! Arrays of floats that C passes, of whichever type.

use std::ffi::c_void;

use brigade_comm::Dtype;
use brigade_offload::optimizer::Gradients;
use half::{bf16, f16};

use crate::error::{Failure, Outcome};
use brigade_wall::pointer::{list, list_mut};

/// Where copies of the weights go.
pub(crate) enum Copied<'a> {
    None,
    F32(&'a mut [f32]),
    Bf16(&'a mut [bf16]),
    F16(&'a mut [f16]),
}

/// # Safety
///
/// There are so many gradients.
pub(crate) unsafe fn parse_gradients<'a>(
    gradients: *const c_void,
    count: usize,
    dtype: Dtype,
) -> Outcome<Gradients<'a>> {
    // SAFETY: the caller's promise.
    unsafe {
        Ok(match dtype {
            Dtype::F32 => Gradients::F32(list(gradients.cast(), count, "gradients")?),
            Dtype::Bf16 => Gradients::Bf16(list(gradients.cast(), count, "gradients")?),
            Dtype::F16 => Gradients::F16(list(gradients.cast(), count, "gradients")?),
            other => return Err(no_float("gradients", other)),
        })
    }
}

/// # Safety
///
/// There is room for so many weights.
pub(crate) unsafe fn parse_copy<'a>(
    copy: *mut c_void,
    count: usize,
    dtype: Dtype,
) -> Outcome<Copied<'a>> {
    // SAFETY: the caller's promise.
    unsafe {
        Ok(match dtype {
            Dtype::F32 => Copied::F32(list_mut(copy.cast(), count, "copy")?),
            Dtype::Bf16 => Copied::Bf16(list_mut(copy.cast(), count, "copy")?),
            Dtype::F16 => Copied::F16(list_mut(copy.cast(), count, "copy")?),
            other => return Err(no_float("copy", other)),
        })
    }
}

/// Threads write copies of some elements while others read gradients of other ones: nothing that is
/// read may be written, not even in place.
pub(crate) fn lie_apart(
    gradients: *const c_void,
    copy: *const c_void,
    count: usize,
    (read, written): (Dtype, Dtype),
) -> Outcome {
    let (read_bytes, written_bytes) = (count * read.size(), count * written.size());
    let (from, to) = (gradients.addr(), copy.addr());
    if to.wrapping_sub(from) >= read_bytes && from.wrapping_sub(to) >= written_bytes {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "the {read_bytes} bytes of gradients ({gradients:p}) and the {written_bytes} bytes of copy \
         ({copy:p}) overlap: give copy memory of its own"
    )))
}

fn no_float(name: &str, dtype: Dtype) -> Box<Failure> {
    Failure::argument(format!("{name} of {dtype}: float32, float16 or bfloat16 will do"))
}
