//! The judge: every collective on every type and operator, slowly and obviously.
//!
//! Contributions are folded strictly in rank order, one element at a time. Nothing here comes from
//! the kernels, so agreement means something. [`fill`] makes inputs whose result does not depend on
//! the order of folding at all, so that every algorithm must reproduce the judge's bytes.

mod fill;

use brigade_schedule::Collective;
use half::{bf16, f16};

use crate::{Dtype, F8e4m3, F8e5m2, Op};

pub use fill::fill;

/// A collective as all ranks call it.
#[derive(Clone, Debug)]
pub struct NaiveCall {
    /// What is computed.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: Dtype,
    /// How elements are folded; ignored by collectives that only move.
    pub op: Op,
    /// Elements in each block, [`Collective::blocks`] of them: one for all-reduce, broadcast,
    /// reduce and barrier; one per rank for reduce-scatter, all-gather, gather and scatter; and for
    /// all-to-all `counts[source * ranks + target]`.
    pub counts: Vec<usize>,
}

/// What each rank holds at the end: its output blocks one after another, or `None` for a rank that
/// gets nothing (not the root).
///
/// `inputs[rank]` holds that rank's input blocks one after another; it is empty for a rank that
/// brings nothing. Panics if a length is not what the call says.
pub fn expected(call: &NaiveCall, inputs: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    let ranks = inputs.len() as u32;
    let collective = call.collective;
    let blocks = collective.blocks(ranks);
    assert_eq!(call.counts.len(), blocks as usize, "one count per block of {collective:?}");
    for rank in 0..ranks {
        let elements: usize = (0..blocks)
            .filter(|&b| collective.has_input(ranks, rank, b))
            .map(|b| call.len(b))
            .sum();
        assert_eq!(inputs[rank as usize].len(), elements, "input bytes of rank {rank}");
    }
    let results: Vec<Vec<u8>> = (0..blocks).map(|block| result(call, inputs, block)).collect();
    (0..ranks)
        .map(|rank| {
            let mine: Vec<u32> =
                (0..blocks).filter(|&b| collective.has_output(ranks, rank, b)).collect();
            let bytes = mine.iter().flat_map(|&b| results[b as usize].iter().copied());
            (!mine.is_empty()).then(|| bytes.collect())
        })
        .collect()
}

impl NaiveCall {
    /// Bytes in a block.
    fn len(&self, block: u32) -> usize {
        self.counts[block as usize] * self.dtype.size()
    }

    /// The bytes that `rank` brings for `block`, if it brings any.
    fn input<'a>(&self, inputs: &'a [Vec<u8>], rank: u32, block: u32) -> Option<&'a [u8]> {
        let brings = |b: u32| self.collective.has_input(inputs.len() as u32, rank, b);
        let start: usize = (0..block).filter(|&b| brings(b)).map(|b| self.len(b)).sum();
        brings(block).then(|| &inputs[rank as usize][start..start + self.len(block)])
    }
}

/// The final value of a block.
fn result(call: &NaiveCall, inputs: &[Vec<u8>], block: u32) -> Vec<u8> {
    let ranks = inputs.len() as u32;
    let mut contributions = (0..ranks).filter_map(|rank| call.input(inputs, rank, block));
    let first = contributions.next().unwrap_or_default();
    if !call.collective.folds() {
        return first.to_vec();
    }
    let (dtype, op) = (call.dtype, &call.op);
    assert!(op.supports(dtype), "{op} of {dtype}");
    let scaled = |bytes: &[u8]| match op {
        Op::PreMulSum(factor) => scale(dtype, bytes, *factor, Scaling::Multiply),
        _ => bytes.to_vec(),
    };
    let mut accumulator = scaled(first);
    for arriving in contributions {
        fold(dtype, op, &scaled(arriving), &mut accumulator);
    }
    match op {
        Op::Avg => scale(dtype, &accumulator, f64::from(ranks), Scaling::Divide),
        _ => accumulator,
    }
}

/// `accumulator = accumulator ⊕ arriving`, element by element; averages and pre-multiplied sums are
/// only added. Panics if the operator does not fit the type or the lengths differ.
pub fn fold(dtype: Dtype, op: &Op, arriving: &[u8], accumulator: &mut [u8]) {
    assert!(op.supports(dtype), "{op} of {dtype}");
    assert_eq!(arriving.len(), accumulator.len());
    if let Op::Custom(op) = op {
        return op.fold(arriving, accumulator, dtype);
    }
    let elements = accumulator.chunks_exact_mut(dtype.size());
    for (a, b) in elements.zip(arriving.chunks_exact(dtype.size())) {
        match dtype {
            Dtype::F64 => write_f64(a, float_f64(op, read_f64(a), read_f64(b))),
            Dtype::Bool => a[0] = u8::from(truth(op, a[0] != 0, b[0] != 0)),
            _ if dtype.is_integer() => {
                write_integer(a, integer(op, read_integer(dtype, a), read_integer(dtype, b)));
            }
            _ => fold_narrow(dtype, op, b, a),
        }
    }
}

/// Formats up to f32. The least and the greatest are one of the two operands, unless one is NaN, so
/// they are not rounded (an f8e5m2 infinity would not survive that).
fn fold_narrow(dtype: Dtype, op: &Op, b: &[u8], a: &mut [u8]) {
    let (left, right) = (read_f32(dtype, a), read_f32(dtype, b));
    let nan = left.is_nan() || right.is_nan();
    match op {
        Op::Min | Op::Max if !nan => {
            let right_wins = match op {
                Op::Min => right.total_cmp(&left).is_lt(),
                _ => right.total_cmp(&left).is_gt(),
            };
            if right_wins {
                a.copy_from_slice(b);
            }
        }
        Op::Prod => write_f32(dtype, a, left * right),
        _ => write_f32(dtype, a, left + right),
    }
}

fn float_f64(op: &Op, a: f64, b: f64) -> f64 {
    match op {
        Op::Min | Op::Max if a.is_nan() || b.is_nan() => f64::NAN,
        Op::Min if b.total_cmp(&a).is_lt() => b,
        Op::Max if b.total_cmp(&a).is_gt() => b,
        Op::Min | Op::Max => a,
        Op::Prod => a * b,
        _ => a + b,
    }
}

/// Wide enough that no 64-bit result loses its low bits, and those are all that is kept.
fn integer(op: &Op, a: i128, b: i128) -> i128 {
    match op {
        Op::Prod => a.wrapping_mul(b),
        Op::Min => a.min(b),
        Op::Max => a.max(b),
        Op::Band => a & b,
        Op::Bor => a | b,
        Op::Bxor => a ^ b,
        _ => a + b,
    }
}

fn truth(op: &Op, a: bool, b: bool) -> bool {
    match op {
        Op::Prod | Op::Min | Op::Band => a && b,
        Op::Bxor => a != b,
        _ => a || b,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Scaling {
    Divide,
    Multiply,
}

fn scale(dtype: Dtype, bytes: &[u8], factor: f64, how: Scaling) -> Vec<u8> {
    let mut scaled = bytes.to_vec();
    for element in scaled.chunks_exact_mut(dtype.size()) {
        match (how, dtype.is_integer()) {
            (Scaling::Divide, true) => {
                write_integer(element, read_integer(dtype, element) / factor as i128);
            }
            (Scaling::Multiply, true) => {
                let product = read_integer(dtype, element) * i128::from(factor as i64);
                write_integer(element, product);
            }
            (Scaling::Divide, false) if dtype == Dtype::F64 => {
                write_f64(element, read_f64(element) / factor);
            }
            (Scaling::Multiply, false) if dtype == Dtype::F64 => {
                write_f64(element, read_f64(element) * factor);
            }
            (Scaling::Divide, false) => {
                write_f32(dtype, element, read_f32(dtype, element) / factor as f32);
            }
            (Scaling::Multiply, false) => {
                write_f32(dtype, element, read_f32(dtype, element) * factor as f32);
            }
        }
    }
    scaled
}

fn read_integer(dtype: Dtype, bytes: &[u8]) -> i128 {
    let mut wide = [0u8; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let wide = u64::from_le_bytes(wide);
    match dtype {
        Dtype::I8 => i128::from(wide as i8),
        Dtype::I16 => i128::from(wide as i16),
        Dtype::I32 => i128::from(wide as i32),
        Dtype::I64 => i128::from(wide as i64),
        _ => i128::from(wide),
    }
}

fn write_integer(bytes: &mut [u8], value: i128) {
    bytes.copy_from_slice(&value.to_le_bytes()[..bytes.len()]);
}

fn read_f64(bytes: &[u8]) -> f64 {
    f64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}

fn write_f64(bytes: &mut [u8], value: f64) {
    let value = if value.is_nan() { f64::from_bits(0x7ff8 << 48) } else { value };
    bytes.copy_from_slice(&value.to_le_bytes());
}

fn read_f32(dtype: Dtype, bytes: &[u8]) -> f32 {
    match dtype {
        Dtype::F8e4m3 => F8e4m3(bytes[0]).to_f32(),
        Dtype::F8e5m2 => F8e5m2(bytes[0]).to_f32(),
        Dtype::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        Dtype::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        _ => f32::from_le_bytes(bytes.try_into().expect("four bytes")),
    }
}

/// Round `value` to the type and store it; a NaN of any kind becomes the canonical one.
fn write_f32(dtype: Dtype, bytes: &mut [u8], value: f32) {
    let value = if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value };
    match dtype {
        Dtype::F8e4m3 => bytes[0] = F8e4m3::from_f32(value).0,
        Dtype::F8e5m2 => bytes[0] = F8e5m2::from_f32(value).0,
        Dtype::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        Dtype::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        _ => bytes.copy_from_slice(&value.to_le_bytes()),
    }
}

const _: () = assert!(cfg!(target_endian = "little"), "wire and memory order are little-endian");

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::CustomOp;

    fn check(collective: Collective, op: Op, counts: &[usize], inputs: &[&[u8]]) -> Vec<String> {
        let inputs: Vec<Vec<u8>> = inputs.iter().map(|input| input.to_vec()).collect();
        let call = NaiveCall { collective, dtype: Dtype::U8, op, counts: counts.to_vec() };
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("letters");
        expected(&call, &inputs)
            .into_iter()
            .map(|output| output.map_or_else(|| "-".to_owned(), text))
            .collect()
    }

    #[test]
    fn blocks_of_any_length_land_where_they_belong() {
        let gather = Collective::Gather { root: 1 };
        assert_eq!(check(gather, Op::Sum, &[2, 0, 1], &[b"ab", b"", b"c"]), ["-", "abc", "-"]);
        let all_gather = check(Collective::AllGather, Op::Sum, &[1, 2], &[b"a", b"bc"]);
        assert_eq!(all_gather, ["abc", "abc"]);
        let scatter = Collective::Scatter { root: 0 };
        assert_eq!(check(scatter, Op::Sum, &[1, 2, 0], &[b"abc", b"", b""]), ["a", "bc", ""]);
        let broadcast = Collective::Broadcast { root: 1 };
        assert_eq!(check(broadcast, Op::Sum, &[2], &[b"", b"ab"]), ["ab", "ab"]);
        let swapped = check(Collective::AllToAll, Op::Sum, &[1, 2, 0, 3], &[b"abc", b"xyz"]);
        assert_eq!(swapped, ["a", "bcxyz"]);
    }

    #[test]
    fn folds_reach_the_ranks_that_want_them() {
        let inputs: [&[u8]; 3] = [b"aax", b"bay", b"cza"];
        assert_eq!(check(Collective::AllReduce, Op::Max, &[3], &inputs), ["czy"; 3]);
        let reduce = Collective::Reduce { root: 2 };
        assert_eq!(check(reduce, Op::Min, &[3], &inputs), ["-", "-", "aaa"]);
        let shares = check(Collective::ReduceScatter, Op::Max, &[2, 0, 1], &inputs);
        assert_eq!(shares, ["cz", "", "y"]);
        // 97 + 98 + 99 wraps to 38, a third of which is 12; a factor of 3.9 is 3 for integers.
        let average = check(Collective::AllReduce, Op::Avg, &[1], &[b"a", b"b", b"c"]);
        assert_eq!(average, ["\u{c}"; 3]);
        let tripled = check(Collective::AllReduce, Op::PreMulSum(3.9), &[1], &[b"\x10", b"\x01"]);
        assert_eq!(tripled, ["3"; 2]);
    }

    /// An operator that is not commutative shows the order.
    struct Last;

    impl CustomOp for Last {
        fn name(&self) -> &str {
            "last"
        }

        fn fold(&self, arriving: &[u8], accumulator: &mut [u8], _dtype: Dtype) {
            accumulator.copy_from_slice(arriving);
        }
    }

    #[test]
    fn contributions_are_folded_in_rank_order() {
        let op = Op::Custom(Arc::new(Last));
        assert_eq!(check(Collective::AllReduce, op, &[1], &[b"a", b"b", b"c"]), ["c"; 3]);
    }
}
