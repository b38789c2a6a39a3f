//! The operators a reduction can fold with.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::Dtype;

/// How two elements become one.
///
/// Integers wrap around. Booleans: sum, max and bor are *or*; prod, min and band are *and*.
/// Floating point: narrow formats are folded in f32 and rounded once per fold; every NaN result is
/// the canonical NaN of its format, minus zero is less than plus zero, and a minimum or maximum
/// with a NaN is NaN. With that, every built-in operator is commutative to the last bit.
#[derive(Clone)]
pub enum Op {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The least.
    Min,
    /// The greatest.
    Max,
    /// The sum divided by the number of ranks, truncated for integers. A sum that the type does not
    /// hold is infinite before it is divided, or the largest number of eight bits: where that may
    /// be, [`Op::PreMulSum`] divides first.
    Avg,
    /// Bitwise and.
    Band,
    /// Bitwise or.
    Bor,
    /// Bitwise exclusive or.
    Bxor,
    /// The sum of inputs that are first multiplied by this factor, which is converted to f32 for
    /// narrow floats and f32, and truncated to an i64 for integers. Each rank multiplies a copy of
    /// its input, for which the communicator keeps as much memory as the longest takes.
    PreMulSum(f64),
    /// The user's own function, on the host.
    Custom(Arc<dyn CustomOp>),
}

/// A reduction that the user brings. It must give the same bytes for the same bytes, and be
/// associative; it need be commutative only where the chosen algorithm is not `ordered`.
pub trait CustomOp: Send + Sync {
    /// The name used in messages; ranks whose operators have different names nearly always notice.
    fn name(&self) -> &str;

    /// `accumulator = accumulator ⊕ arriving`, element by element.
    ///
    /// Both slices have the same length, a multiple of `dtype.size()`, and any alignment. This runs
    /// inside a call, on whichever thread makes progress, so it must neither wait nor panic. Of
    /// communicators it may call what only looks; a call, also one that is only started, is
    /// [`Error::Invalid`](crate::Error::Invalid) there, whichever communicator it is made on.
    fn fold(&self, arriving: &[u8], accumulator: &mut [u8], dtype: Dtype);
}

impl Op {
    /// The operators that need no parameter, in the order of the documentation.
    pub const PLAIN: [Self; 8] =
        [Self::Sum, Self::Prod, Self::Min, Self::Max, Self::Avg, Self::Band, Self::Bor, Self::Bxor];

    /// The name used on the command line and in messages; a custom operator's own name.
    pub fn name(&self) -> &str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::Band => "band",
            Self::Bor => "bor",
            Self::Bxor => "bxor",
            Self::PreMulSum(_) => "premulsum",
            Self::Custom(op) => op.name(),
        }
    }

    /// The number that stands for the operator on the wire; it never changes.
    ///
    /// The operators that NCCL knows have NCCL's numbers. A factor is not in it, and of a custom
    /// operator's name only six bits.
    pub fn code(&self) -> u8 {
        match self {
            Self::Sum => 0,
            Self::Prod => 1,
            Self::Max => 2,
            Self::Min => 3,
            Self::Avg => 4,
            Self::Band => 5,
            Self::Bor => 6,
            Self::Bxor => 7,
            Self::PreMulSum(_) => 8,
            // Different names get different codes, nearly always.
            Self::Custom(op) => CUSTOM | (digest(op.name()) % DIGESTS),
        }
    }

    /// The name that a [`code`](Self::code) stands for (of a custom operator: "custom").
    pub fn code_name(code: u8) -> Option<&'static str> {
        const NAMES: [&str; 9] =
            ["sum", "prod", "max", "min", "avg", "band", "bor", "bxor", "premulsum"];
        if code & CUSTOM != 0 {
            return Some("custom");
        }
        NAMES.get(usize::from(code)).copied()
    }

    /// Whether the operator makes sense for elements of this type.
    pub fn supports(&self, dtype: Dtype) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Min | Self::Max | Self::Custom(_) => true,
            Self::Avg | Self::PreMulSum(_) => dtype != Dtype::Bool,
            Self::Band | Self::Bor | Self::Bxor => !dtype.is_float(),
        }
    }
}

/// The codes of custom operators have this bit; the bits below are a digest of the name.
const CUSTOM: u8 = 0x40;
/// So many digests there are. What a header has for a code is one more, and from 0x80 on a purpose.
const DIGESTS: u8 = CUSTOM - 1;

fn digest(name: &str) -> u8 {
    let mix = |sum: u32, byte: u8| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let sum = name.bytes().fold(0x811c_9dc5, mix);
    (sum >> 24) as u8
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Custom(op) => write!(f, "custom:{}", op.name()),
            _ => fmt::Display::fmt(self, f),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PreMulSum(factor) => write!(f, "premulsum:{factor}"),
            _ => f.pad(self.name()),
        }
    }
}

impl FromStr for Op {
    type Err = UnknownOp;

    /// The plain names, and `premulsum:FACTOR` with a finite factor.
    fn from_str(name: &str) -> Result<Self, UnknownOp> {
        if let Some(factor) = name.strip_prefix("premulsum:")
            && let Ok(factor) = factor.parse::<f64>()
            && factor.is_finite()
        {
            return Ok(Self::PreMulSum(factor));
        }
        let plain = Self::PLAIN.into_iter().find(|op| op.name() == name);
        plain.ok_or_else(|| UnknownOp { name: name.to_owned() })
    }
}

/// A name that no operator has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no operator is named {name:?}; there are sum prod min max avg band bor bxor \
     premulsum:FACTOR"
)]
pub struct UnknownOp {
    /// What was asked for.
    pub name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back_to_their_operator() {
        for op in Op::PLAIN.into_iter().chain([Op::PreMulSum(0.5)]) {
            let back: Op = op.to_string().parse().unwrap();
            assert_eq!(back.to_string(), op.to_string());
            assert_eq!(Op::code_name(op.code()), Some(op.name()));
        }
        assert!("premulsum:nan".parse::<Op>().is_err());
        assert!("sums".parse::<Op>().is_err());
        assert_eq!(Op::code_name(10), None);
    }

    /// What a header has for an operator is one more than its code; purposes come behind all.
    #[test]
    fn no_name_of_an_operator_makes_a_purpose_of_it() {
        let codes = |name: &str| CUSTOM | (digest(name) % DIGESTS);
        let all: Vec<u8> = (0..5000).map(|number| codes(&format!("op-{number}"))).collect();
        assert_eq!((all.iter().min(), all.iter().max()), (Some(&CUSTOM), Some(&0x7e)));
    }

    #[test]
    fn bits_are_no_numbers() {
        assert!(!Op::Bxor.supports(Dtype::F32) && Op::Bxor.supports(Dtype::Bool));
        assert!(!Op::Avg.supports(Dtype::Bool) && Op::Avg.supports(Dtype::I8));
    }
}
