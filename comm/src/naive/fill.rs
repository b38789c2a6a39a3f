//! Test data whose reduction has one right answer, to the bit, in every order of folding.
//!
//! Integers and booleans wrap, so any bits will do. Floats do not: here their values are chosen so
//! that no partial result ever needs rounding (the idea of nccl-tests' verifiable data).
//!
//! * Sum: at each position only so many ranks bring something other than zero, and only integers so
//!   small, that all of them together still fit the significand. For f8e5m2 that is eight ranks
//!   with plus or minus one; for f32 it is all ranks with up to 127.
//! * Product: at each position at most four ranks bring something other than plus or minus one: a
//!   small odd or even integer times a half, one or two, so that significand and exponent both fit.
//! * Minimum and maximum round nothing: any finite bits.
//!
//! Which rank brings what is a hash of seed, position and rank, so a chunk that is left out, in the
//! wrong place, or added twice changes the result.

use half::{bf16, f16};

use crate::{Dtype, F8e4m3, F8e5m2, Op};

/// `count` elements that `rank` of `ranks` brings to a reduction by `op`.
///
/// The reduction over all ranks is exact, so it is the same bytes in any order. A pre-multiplied
/// sum is exact if its factor is a power of two from 1/8 to 8 (for integers: always). Custom
/// operators get data for sums. Cost: a few nanoseconds per element. Panics if `rank` is not below
/// `ranks`.
pub fn fill(dtype: Dtype, op: &Op, rank: u32, ranks: u32, seed: u64, count: usize) -> Vec<u8> {
    assert!(rank < ranks, "rank {rank} of {ranks}");
    let own_seed = hash(!seed, rank as usize);
    let draw = Draw { rank, ranks, seed, own_seed };
    match dtype {
        Dtype::I8 | Dtype::U8 => integers(op, draw, count, |bits| [bits as u8]),
        Dtype::I16 => integers(op, draw, count, |bits| (bits as u16).to_le_bytes()),
        Dtype::I32 | Dtype::U32 => integers(op, draw, count, |bits| (bits as u32).to_le_bytes()),
        Dtype::I64 | Dtype::U64 => integers(op, draw, count, u64::to_le_bytes),
        Dtype::Bool => booleans(op, draw, count),
        Dtype::F16 => {
            floats(op, draw, count, 11, |value| f16::from_f32(value as f32).to_le_bytes())
        }
        Dtype::Bf16 => {
            floats(op, draw, count, 8, |value| bf16::from_f32(value as f32).to_le_bytes())
        }
        Dtype::F32 => floats(op, draw, count, 24, |value| (value as f32).to_le_bytes()),
        Dtype::F64 => floats(op, draw, count, 53, f64::to_le_bytes),
        Dtype::F8e4m3 => floats(op, draw, count, 4, |value| [F8e4m3::from_f32(value as f32).0]),
        Dtype::F8e5m2 => floats(op, draw, count, 3, |value| [F8e5m2::from_f32(value as f32).0]),
    }
}

/// Who draws.
#[derive(Clone, Copy)]
struct Draw {
    rank: u32,
    ranks: u32,
    seed: u64,
    own_seed: u64,
}

impl Draw {
    /// A hash of the position that all ranks share.
    #[inline(always)]
    fn shared(self, position: usize) -> u64 {
        hash(self.seed, position)
    }

    /// A hash of the position that this rank alone has.
    #[inline(always)]
    fn own(self, position: usize) -> u64 {
        hash(self.own_seed, position)
    }

    /// Whether this rank is one of the `chosen` ranks of the position: a window of neighbours that
    /// starts anywhere.
    #[inline(always)]
    fn is_chosen(self, position: usize, chosen: u32) -> bool {
        if chosen == self.ranks {
            return true;
        }
        let start = ((self.shared(position) >> 32) * u64::from(self.ranks)) >> 32;
        let distance = u64::from(self.rank).wrapping_sub(start);
        // Less than zero, seen unsigned, is greater than any distance.
        distance.min(distance.wrapping_add(u64::from(self.ranks))) < u64::from(chosen)
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014), at any place of its sequence.
#[inline(always)]
fn hash(seed: u64, position: usize) -> u64 {
    let mut bits = seed.wrapping_add((position as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Write `count` elements, the one at each position made by `element`.
fn write<const N: usize>(count: usize, element: impl Fn(usize) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; count * N];
    for (position, slot) in bytes.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        *slot = element(position);
    }
    bytes
}

/// Any bits, but odd factors (even ones would soon make every product zero), and bits that one rank
/// alone sets or clears (or else every *or* would be all ones, and every *and* zero).
fn integers<const N: usize>(
    op: &Op,
    draw: Draw,
    count: usize,
    low_bytes: impl Fn(u64) -> [u8; N],
) -> Vec<u8> {
    let any = |position: usize| draw.own(position);
    let owned = |position| if draw.is_chosen(position, 1) { any(position) } else { 0 };
    match op {
        Op::Prod => write(count, |position| low_bytes(any(position) | 1)),
        Op::Bor => write(count, |position| low_bytes(owned(position))),
        Op::Band => write(count, |position| low_bytes(!owned(position))),
        _ => write(count, |position| low_bytes(any(position))),
    }
}

/// One rank at each position decides, half of the time, what the others do not.
fn booleans(op: &Op, draw: Draw, count: usize) -> Vec<u8> {
    let decides = |position: usize| draw.is_chosen(position, 1) && draw.own(position) & 1 == 1;
    match op {
        Op::Bxor => write(count, |position| [draw.own(position) as u8 & 1]),
        Op::Prod | Op::Min | Op::Band => write(count, |position| [u8::from(!decides(position))]),
        _ => write(count, |position| [u8::from(decides(position))]),
    }
}

/// Floats whose significand has `precision` bits, the implied one included.
fn floats<const N: usize>(
    op: &Op,
    draw: Draw,
    count: usize,
    precision: u32,
    encode: impl Fn(f64) -> [u8; N],
) -> Vec<u8> {
    if matches!(op, Op::Min | Op::Max) {
        return write(count, |position| finite::<N>(draw.own(position)));
    }
    let (chosen, values) = match op {
        Op::Prod => factors(draw.ranks, precision),
        _ => summands(draw.ranks, precision),
    };
    let idle = if matches!(op, Op::Prod) { [1.0, -1.0] } else { [0.0, 0.0] };
    let table: Vec<[u8; N]> = values.iter().chain(&idle).map(|&value| encode(value)).collect();
    write(count, |position| {
        // The chosen draw from all values but the two idle ones at the end, the others from those.
        // A branch would be mispredicted half of the time.
        let choices = [2, values.len() as u64];
        let starts = [values.len() as u64, 0];
        let chosen = usize::from(draw.is_chosen(position, chosen));
        let index = starts[chosen] + (((draw.own(position) >> 32) * choices[chosen]) >> 32);
        table[index as usize]
    })
}

/// How many ranks may add at one position, and what: integers that all together stay below
/// 2^`precision`, where every integer is exact.
fn summands(ranks: u32, precision: u32) -> (u32, Vec<f64>) {
    let budget = 1u64 << precision;
    let chosen = u64::from(ranks).min(budget);
    let most = (budget / chosen).min(127) as i32;
    (chosen as u32, (-most..=most).filter(|&value| value != 0).map(f64::from).collect())
}

/// How many ranks may multiply at one position by more than a sign, and by what: integers whose
/// product needs at most `precision` bits, times a half, one or two.
fn factors(ranks: u32, precision: u32) -> (u32, Vec<f64>) {
    let chosen = ranks.min(4);
    let most = 1i32 << (precision / chosen).min(4);
    let magnitudes = (1..=most).flat_map(|i| [0.5, 1.0, 2.0].map(|power| f64::from(i) * power));
    (chosen, magnitudes.flat_map(|magnitude| [magnitude, -magnitude]).collect())
}

/// Bits whose topmost exponent bit is cleared: finite in every format.
#[inline(always)]
fn finite<const N: usize>(bits: u64) -> [u8; N] {
    let mut element = [0; N];
    element.copy_from_slice(&bits.to_le_bytes()[..N]);
    element[N - 1] &= 0xbf;
    element
}
