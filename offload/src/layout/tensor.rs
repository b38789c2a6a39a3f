//! A tensor, and the part of it that one state holds.

use thiserror::Error;

/// Most dimensions of a tensor.
pub(super) const RANK_MAX: usize = 16;
/// Most elements of a tensor, so that bytes never overflow.
const ELEMENTS_MAX: u64 = 1 << 56;

/// The type of an element. On disk: its number here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of the types")]
pub enum Dtype {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    F64 = 3,
    I8 = 4,
    U8 = 5,
    I16 = 6,
    U16 = 7,
    I32 = 8,
    U32 = 9,
    I64 = 10,
    U64 = 11,
    Bool = 12,
    F8E4M3 = 13,
    F8E5M2 = 14,
}

impl Dtype {
    /// All of them, in the order of their numbers.
    pub const ALL: [Dtype; 15] = [
        Dtype::F32,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F64,
        Dtype::I8,
        Dtype::U8,
        Dtype::I16,
        Dtype::U16,
        Dtype::I32,
        Dtype::U32,
        Dtype::I64,
        Dtype::U64,
        Dtype::Bool,
        Dtype::F8E4M3,
        Dtype::F8E5M2,
    ];

    /// Of one element. \[bytes\]
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 | Dtype::U16 => 2,
            Dtype::I8 | Dtype::U8 | Dtype::Bool | Dtype::F8E4M3 | Dtype::F8E5M2 => 1,
        }
    }
}

/// Which elements of a tensor are held. Their bytes lie in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hold {
    /// A box: from `start`, `extent` in every dimension. What tensor parallelism holds.
    Box {
        /// The lowest index, for each dimension.
        start: Vec<u64>,
        /// How many, for each dimension.
        extent: Vec<u64>,
    },
    /// A range of the elements in row-major order. What ZeRO and FSDP hold.
    Flat {
        /// The first element.
        start: u64,
        /// How many.
        count: u64,
    },
}

/// A tensor of the model, and the part of it that is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tensor {
    /// Its name. Several parts of one tensor bear the same name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The shape of the whole tensor.
    pub shape: Vec<u64>,
    /// The part that is held.
    pub hold: Hold,
}

/// A part that is not inside its tensor, or a tensor beyond all bounds.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("tensor {name:?} of shape {shape:?} {}", why(shape, hold))]
pub struct BadHold {
    /// The tensor's name.
    pub name: String,
    /// The shape of the whole tensor.
    pub shape: Vec<u64>,
    /// The part that was asked for.
    pub hold: Hold,
}

/// What is wrong with a part, or with the whole.
fn why(shape: &[u64], hold: &Hold) -> String {
    match (elements(shape), hold) {
        (None, _) => {
            format!("is too large: {ELEMENTS_MAX} elements in {RANK_MAX} dimensions at most")
        }
        (Some(all), Hold::Flat { start, count }) => {
            format!("has {all} elements: no {count} from element {start} on")
        }
        (Some(_), Hold::Box { start, extent }) => {
            format!("has no part of {extent:?} from {start:?} on")
        }
    }
}

impl Tensor {
    /// A whole tensor.
    pub fn whole(name: impl Into<String>, dtype: Dtype, shape: &[u64]) -> Self {
        let hold = Hold::Box { start: vec![0; shape.len()], extent: shape.to_vec() };
        Self { name: name.into(), dtype, shape: shape.to_vec(), hold }
    }

    /// A range of a tensor's elements in row-major order.
    pub fn flat(
        name: impl Into<String>,
        dtype: Dtype,
        shape: &[u64],
        start: u64,
        count: u64,
    ) -> Self {
        let hold = Hold::Flat { start, count };
        Self { name: name.into(), dtype, shape: shape.to_vec(), hold }
    }

    /// Check that the part is inside the tensor, and nothing overflows.
    pub fn check(&self) -> Result<(), BadHold> {
        let is_inside = match (elements(&self.shape), &self.hold) {
            (None, _) => false,
            (Some(all), Hold::Flat { start, count }) => {
                start.checked_add(*count).is_some_and(|end| end <= all)
            }
            (Some(_), Hold::Box { start, extent }) => {
                let fits = |((start, extent), size): ((&u64, &u64), &u64)| {
                    start.checked_add(*extent).is_some_and(|end| end <= *size)
                };
                start.len() == self.shape.len()
                    && extent.len() == self.shape.len()
                    && start.iter().zip(extent).zip(&self.shape).all(fits)
            }
        };
        match is_inside {
            true => Ok(()),
            false => {
                let (name, shape) = (self.name.clone(), self.shape.clone());
                Err(BadHold { name, shape, hold: self.hold.clone() })
            }
        }
    }

    /// How many elements are held. The tensor was checked.
    pub fn count(&self) -> u64 {
        match &self.hold {
            Hold::Flat { count, .. } => *count,
            Hold::Box { extent, .. } => extent.iter().product(),
        }
    }

    /// Of what is held. \[bytes\]
    pub fn bytes(&self) -> u64 {
        self.count() * self.dtype.bytes()
    }
}

/// The elements of a whole tensor, unless they are too many or too many-dimensional.
pub(super) fn elements(shape: &[u64]) -> Option<u64> {
    if shape.len() > RANK_MAX {
        return None;
    }
    // Sizes beside a zero must stay in bounds as well: strides are products of them.
    let all = shape.iter().try_fold(1_u64, |all, size| {
        all.checked_mul((*size).max(1)).filter(|all| *all <= ELEMENTS_MAX)
    })?;
    Some(if shape.contains(&0) { 0 } else { all })
}
