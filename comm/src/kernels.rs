//! What happens to elements: fold and scale, chosen once when a plan is made.
//!
//! Each operation is one Rust loop over one element type, compiled for each instruction set; the
//! compiler turns it into vectors. Only f16 is written with intrinsics, because its conversion is
//! one instruction that no plain Rust asks for. The kernels know neither ranks nor collectives, and
//! [`crate::naive`], which knows nothing of them, is their judge.
//!
//! The bits of a result never depend on the instruction set: nothing is contracted or reassociated,
//! and every NaN is replaced by the canonical one, which also makes `fold(a, b)` and `fold(b, a)`
//! the same bytes.

mod bfloat16;
mod codec;
mod float16;
mod fold;
mod isa;
mod lane;
mod scale;

use half::{bf16, f16};

use crate::{Dtype, F8e4m3, F8e5m2, Op};
use bfloat16::Twos;
use float16::Half;
use fold::{And, Folds, Kernel, Largest, Least, Loop, Or, Product, Total, Xor};
use lane::{Bits, Number, Truth};

pub use fold::Fold;
pub use isa::Isa;
pub use scale::Scale;

/// The kernel that folds elements of `dtype` by `op` on this machine.
///
/// `Avg` and `PreMulSum` fold like `Sum`: their scaling is [`divide`] and [`premultiply`]. `None`
/// for custom operators, which bring their own function, and where the operator makes no sense.
pub fn fold(dtype: Dtype, op: &Op) -> Option<Fold> {
    fold_on(Isa::best(), dtype, op)
}

/// [`fold`] for one instruction set; `None` also if this machine lacks it.
pub fn fold_on(isa: Isa, dtype: Dtype, op: &Op) -> Option<Fold> {
    isa.is_available().then(|| folds(dtype, op))?.map(|folds| folds[isa as usize])
}

/// The kernel that divides by its factor, a whole number from 1 to 2^31: floats are rounded once
/// (in f32 for narrow ones, which are then rounded to their own format), integers truncate. `None`
/// for booleans.
pub fn divide(dtype: Dtype) -> Option<Scale> {
    divide_on(Isa::best(), dtype)
}

/// The kernel that multiplies by its factor, which is converted to f32 for narrow floats and f32,
/// and truncated to an i64 for integers (whose product wraps). `None` for booleans.
pub fn premultiply(dtype: Dtype) -> Option<Scale> {
    premultiply_on(Isa::best(), dtype)
}

/// [`divide`] for one instruction set; `None` also if this machine lacks it.
pub fn divide_on(isa: Isa, dtype: Dtype) -> Option<Scale> {
    isa.is_available().then(|| scale::divisions(dtype))?.map(|scales| scales[isa as usize])
}

/// [`premultiply`] for one instruction set; `None` also if this machine lacks it.
pub fn premultiply_on(isa: Isa, dtype: Dtype) -> Option<Scale> {
    isa.is_available().then(|| scale::multiplications(dtype))?.map(|scales| scales[isa as usize])
}

/// A fold for every instruction set.
fn folds(dtype: Dtype, op: &Op) -> Option<Folds> {
    match dtype {
        Dtype::I8 => integer::<i8, u8>(op),
        Dtype::U8 => integer::<u8, u8>(op),
        Dtype::I16 => integer::<i16, u16>(op),
        Dtype::I32 => integer::<i32, u32>(op),
        Dtype::U32 => integer::<u32, u32>(op),
        Dtype::I64 => integer::<i64, u64>(op),
        Dtype::U64 => integer::<u64, u64>(op),
        Dtype::F16 => match op {
            Op::Sum | Op::Avg | Op::PreMulSum(_) => of::<Half<false>>(),
            Op::Prod => of::<Half<true>>(),
            _ => float::<f16>(op),
        },
        Dtype::Bf16 => match op {
            Op::Sum | Op::Avg | Op::PreMulSum(_) => of::<Twos<Total>>(),
            Op::Prod => of::<Twos<Product>>(),
            _ => float::<bf16>(op),
        },
        Dtype::F32 => float::<f32>(op),
        Dtype::F64 => float::<f64>(op),
        Dtype::F8e4m3 => float::<F8e4m3>(op),
        Dtype::F8e5m2 => float::<F8e5m2>(op),
        Dtype::Bool => truth(op),
    }
}

/// `Signed` and `Unsigned` have the same size: the sign matters to order alone, so everything else
/// shares the unsigned kernel.
fn integer<Signed, Unsigned>(op: &Op) -> Option<Folds>
where
    Signed: Number + 'static,
    Unsigned: Number + Bits + 'static,
{
    match op {
        Op::Sum | Op::Avg | Op::PreMulSum(_) => of::<Loop<Total, Unsigned>>(),
        Op::Prod => of::<Loop<Product, Unsigned>>(),
        Op::Min => of::<Loop<Least, Signed>>(),
        Op::Max => of::<Loop<Largest, Signed>>(),
        Op::Band => of::<Loop<And, Unsigned>>(),
        Op::Bor => of::<Loop<Or, Unsigned>>(),
        Op::Bxor => of::<Loop<Xor, Unsigned>>(),
        Op::Custom(_) => None,
    }
}

fn float<L: Number + 'static>(op: &Op) -> Option<Folds> {
    match op {
        Op::Sum | Op::Avg | Op::PreMulSum(_) => of::<Loop<Total, L>>(),
        Op::Prod => of::<Loop<Product, L>>(),
        Op::Min => of::<Loop<Least, L>>(),
        Op::Max => of::<Loop<Largest, L>>(),
        Op::Band | Op::Bor | Op::Bxor | Op::Custom(_) => None,
    }
}

fn truth(op: &Op) -> Option<Folds> {
    match op {
        Op::Sum | Op::Max | Op::Bor => of::<Loop<Or, Truth>>(),
        Op::Prod | Op::Min | Op::Band => of::<Loop<And, Truth>>(),
        Op::Bxor => of::<Loop<Xor, Truth>>(),
        Op::Avg | Op::PreMulSum(_) | Op::Custom(_) => None,
    }
}

fn of<K: Kernel>() -> Option<Folds> {
    Some(K::FOLDS)
}
