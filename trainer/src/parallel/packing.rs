//! Narrower forms of f32 numbers for the way between ranks.
//!
//! | packing | bytes of n numbers | off by at most |
//! |---|---|---|
//! | `f32` | 4n | nothing |
//! | `bf16` | 2n | 1/256 of the number |
//! | `f16` | 2n | 1/2048 of the number, if it is no smaller than 2⁻¹⁴ |
//! | `int8` | n + 4⌈n/128⌉ | 1/254 of the largest of its block |
//! | `int4` | ⌈n/2⌉ + 4⌈n/128⌉ | 1/14 of the largest of its block |
//!
//! The integers are ZeRO++'s (Wang et al. 2023): each block of 128 numbers has a scale of its own,
//! so that one large number spoils its neighbours only. A block with a number that is none comes
//! back as no numbers at all, so that an overflow is seen wherever it has been.

use clap::ValueEnum;
use half::{bf16, f16};
use serde::Serialize;

/// Numbers that share a scale.
const BLOCK: usize = 128;

/// How numbers are written while they travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// As they are
    #[default]
    #[value(alias = "float32")]
    F32,
    /// Rounded to bf16
    #[value(alias = "bfloat16")]
    Bf16,
    /// Rounded to f16
    #[value(alias = "float16")]
    F16,
    /// 255 levels, with a scale for each 128 numbers
    Int8,
    /// 15 levels, with a scale for each 128 numbers
    Int4,
}

impl Packing {
    /// As it is written.
    pub fn name(self) -> String {
        self.to_possible_value().expect("no packing is hidden").get_name().to_string()
    }

    /// Whether a number's packed form depends on its neighbours'.
    pub fn has_blocks(self) -> bool {
        matches!(self, Packing::Int8 | Packing::Int4)
    }

    /// Bytes that so many numbers take.
    pub fn bytes(self, numbers: usize) -> usize {
        let scales = 4 * numbers.div_ceil(BLOCK);
        match self {
            Packing::F32 => 4 * numbers,
            Packing::Bf16 | Packing::F16 => 2 * numbers,
            Packing::Int8 => scales + numbers,
            Packing::Int4 => scales + numbers.div_ceil(2),
        }
    }

    /// Round numbers to what they come back as, where that depends on each number alone.
    pub fn round(self, numbers: &mut [f32]) {
        match self {
            Packing::Bf16 => numbers.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            Packing::F16 => numbers.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
            Packing::F32 | Packing::Int8 | Packing::Int4 => {}
        }
    }

    /// Write numbers. to: [`bytes`](Packing::bytes) of them.
    ///
    /// Panics: if `to` has another length.
    pub fn pack(self, numbers: &[f32], to: &mut [u8]) {
        assert_eq!(to.len(), self.bytes(numbers.len()), "room for {} numbers", numbers.len());
        match self {
            Packing::F32 => each(numbers, to, f32::to_le_bytes),
            Packing::Bf16 => each(numbers, to, |x| bf16::from_f32(x).to_le_bytes()),
            Packing::F16 => each(numbers, to, |x| f16::from_f32(x).to_le_bytes()),
            Packing::Int8 => blocks(numbers, to, 127.0, 1, |levels, bytes| {
                bytes.iter_mut().zip(levels).for_each(|(byte, level)| *byte = *level as u8);
            }),
            Packing::Int4 => blocks(numbers, to, 7.0, 2, |levels, bytes| {
                let low = |level: i8| level as u8 & 15;
                for (byte, pair) in bytes.iter_mut().zip(levels.chunks(2)) {
                    *byte = low(pair[0]) | pair.get(1).map_or(0, |level| low(*level) << 4);
                }
            }),
        }
    }

    /// Read as many numbers as `onto` has, and hand each with its place to `take`.
    ///
    /// Panics: if `from` has another length than so many numbers have.
    pub fn unpack(self, from: &[u8], onto: &mut [f32], take: impl Fn(&mut f32, f32)) {
        assert_eq!(from.len(), self.bytes(onto.len()), "bytes of {} numbers", onto.len());
        let scales = 4 * onto.len().div_ceil(BLOCK);
        let half = |bytes: &[u8]| [bytes[0], bytes[1]];
        match self {
            Packing::F32 => {
                let numbers = from.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x));
                onto.iter_mut().zip(numbers).for_each(|(to, x)| take(to, x));
            }
            Packing::Bf16 => {
                let numbers = from.chunks_exact(2).map(|x| bf16::from_le_bytes(half(x)).to_f32());
                onto.iter_mut().zip(numbers).for_each(|(to, x)| take(to, x));
            }
            Packing::F16 => {
                let numbers = from.chunks_exact(2).map(|x| f16::from_le_bytes(half(x)).to_f32());
                onto.iter_mut().zip(numbers).for_each(|(to, x)| take(to, x));
            }
            Packing::Int8 | Packing::Int4 => {
                let (scales, levels) = from.split_at(scales);
                let per_byte = if self == Packing::Int8 { 1 } else { 2 };
                let blocks = onto.chunks_mut(BLOCK).zip(levels.chunks(BLOCK / per_byte));
                for ((onto, levels), scale) in blocks.zip(scales.as_chunks::<4>().0) {
                    let scale = f32::from_le_bytes(*scale);
                    for (at, to) in onto.iter_mut().enumerate() {
                        take(to, f32::from(level(levels, at, per_byte)) * scale);
                    }
                }
            }
        }
    }
}

/// The level of a number of a block, of which a byte holds one or two.
fn level(levels: &[u8], at: usize, per_byte: usize) -> i8 {
    match (per_byte, at % 2) {
        (1, _) => levels[at] as i8,
        // Shifted up and down again, so that the sign comes along.
        (_, 0) => ((levels[at / 2] << 4) as i8) >> 4,
        _ => (levels[at / 2] as i8) >> 4,
    }
}

/// Write each number as `N` bytes.
fn each<const N: usize>(numbers: &[f32], to: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (to, number) in to.as_chunks_mut::<N>().0.iter_mut().zip(numbers) {
        *to = bytes(*number);
    }
}

/// Write the scale of each block, and behind all scales the levels from −most to most.
fn blocks(
    numbers: &[f32],
    to: &mut [u8],
    most: f32,
    per_byte: usize,
    write: impl Fn(&[i8], &mut [u8]),
) {
    let (scales, bytes) = to.split_at_mut(4 * numbers.len().div_ceil(BLOCK));
    let blocks = numbers.chunks(BLOCK).zip(bytes.chunks_mut(BLOCK / per_byte));
    for ((block, bytes), to) in blocks.zip(scales.as_chunks_mut::<4>().0) {
        let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let is_finite = block.iter().all(|x| x.is_finite());
        // The smallest numbers have no inverse; what is as small as they are may be lost.
        let scale = if is_finite { largest / most } else { f32::NAN };
        let inverse = if scale.is_normal() { scale.recip() } else { 0.0 };
        *to = scale.to_le_bytes();
        let mut levels = [0i8; BLOCK];
        for (level, number) in levels.iter_mut().zip(block) {
            *level = (number * inverse).round_ties_even() as i8;
        }
        write(&levels[..block.len()], bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Packing; 5] =
        [Packing::F32, Packing::Bf16, Packing::F16, Packing::Int8, Packing::Int4];

    fn round_trip(packing: Packing, numbers: &[f32]) -> Vec<f32> {
        let mut bytes = vec![0xA5; packing.bytes(numbers.len())];
        packing.pack(numbers, &mut bytes);
        let mut back = vec![1.0; numbers.len()];
        packing.unpack(&bytes, &mut back, |to, x| *to = x);
        back
    }

    #[test]
    fn numbers_come_back_within_their_bounds() {
        let seed = 7;
        let mut random = fastrand::Rng::with_seed(seed);
        for len in [0, 1, 2, 127, 128, 129, 1000] {
            let size = |random: &mut fastrand::Rng| 10f32.powi(random.i32(-6..3));
            let numbers: Vec<f32> =
                (0..len).map(|_| (random.f32() - 0.5) * size(&mut random)).collect();
            for packing in ALL {
                let back = round_trip(packing, &numbers);
                let blocks = numbers.chunks(BLOCK).zip(back.chunks(BLOCK));
                for (number, got, largest) in blocks.flat_map(|(block, back)| {
                    let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
                    block.iter().zip(back).map(move |(number, got)| (*number, *got, largest))
                }) {
                    let bound = match packing {
                        Packing::F32 => 0.0,
                        Packing::Bf16 => number.abs() / 256.0,
                        Packing::F16 => (number.abs() / 2048.0).max(2f32.powi(-25)),
                        Packing::Int8 => largest / 254.0 * 1.00001,
                        Packing::Int4 => largest / 14.0 * 1.00001,
                    };
                    let off = (number - got).abs();
                    assert!(off <= bound, "{packing:?}, seed {seed}: {number} became {got}");
                }
            }
        }
    }

    #[test]
    fn rounding_is_what_the_way_does() {
        let numbers = [0.1f32, -3.3, 1e-6, 70000.0];
        for packing in [Packing::F32, Packing::Bf16, Packing::F16] {
            let mut rounded = numbers;
            packing.round(&mut rounded);
            assert_eq!(round_trip(packing, &numbers), rounded, "{packing:?}");
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        for packing in ALL {
            for wrong in [f32::NAN, f32::INFINITY] {
                let back = round_trip(packing, &[0.5, wrong, -0.25]);
                assert!(back.iter().any(|x| !x.is_finite()), "{packing:?} {wrong}: {back:?}");
            }
        }
    }

    #[test]
    fn what_comes_is_added_where_that_is_asked_for() {
        let mut bytes = vec![0; Packing::Int4.bytes(3)];
        Packing::Int4.pack(&[7.0, -7.0, 3.0], &mut bytes);
        assert_eq!(bytes.len(), 6);
        let mut sum = [1.0, 1.0, 1.0];
        Packing::Int4.unpack(&bytes, &mut sum, |to, x| *to += x);
        assert_eq!(sum, [8.0, -6.0, 4.0]);
    }
}
