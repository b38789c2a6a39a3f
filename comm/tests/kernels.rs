//! Every kernel, on every instruction set of this machine, against the judge.

use brigade_comm::kernels::{self, Fold, Isa};
use brigade_comm::naive::{self, NaiveCall};
use brigade_comm::{Dtype, F8e4m3, F8e5m2, Op};
use brigade_schedule::Collective;
use half::{bf16, f16};

const SEED: u64 = 0x6b65_726e_656c_7321;

/// Where the result lies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Apart,
    OnOperand,
    OnArriving,
    OnBoth,
}

/// Bytes at any offset from a cache line, with bytes around them that nobody may touch.
struct Guarded {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    const GUARD: u8 = 0xa5;

    fn new(content: &[u8], offset: usize) -> Self {
        let mut bytes = vec![Self::GUARD; content.len() + 256];
        let start = bytes.as_ptr().align_offset(64) + 64 + offset;
        bytes[start..start + content.len()].copy_from_slice(content);
        Self { bytes, start, len: content.len() }
    }

    fn pointer(&mut self) -> *mut u8 {
        self.bytes[self.start..].as_mut_ptr()
    }

    fn content(&self) -> &[u8] {
        let (before, rest) = self.bytes.split_at(self.start);
        let (content, after) = rest.split_at(self.len);
        assert!(before.iter().chain(after).all(|&byte| byte == Self::GUARD), "guard overwritten");
        content
    }
}

/// Run a fold and return the result's bytes.
fn run(fold: Fold, dtype: Dtype, a: &[u8], b: &[u8], place: Place, offsets: [usize; 3]) -> Vec<u8> {
    let mut operand = Guarded::new(a, offsets[0]);
    let mut arriving = Guarded::new(b, offsets[1]);
    let mut apart = Guarded::new(&vec![0x77; a.len()], offsets[2]);
    let (from, with) = match place {
        Place::OnBoth => (operand.pointer(), operand.pointer()),
        _ => (operand.pointer(), arriving.pointer()),
    };
    let result = match place {
        Place::Apart => apart.pointer(),
        Place::OnOperand | Place::OnBoth => from,
        Place::OnArriving => with,
    };
    // SAFETY: all three hold `a.len()` bytes, and the result is apart from the inputs or is one.
    unsafe { fold(from, with, result, a.len() / dtype.size()) };
    let inputs_kept = match place {
        Place::Apart => operand.content() == a && arriving.content() == b,
        Place::OnOperand => arriving.content() == b,
        Place::OnArriving => operand.content() == a,
        Place::OnBoth => true,
    };
    assert!(inputs_kept, "an input was overwritten");
    match place {
        Place::Apart => apart.content().to_vec(),
        Place::OnOperand | Place::OnBoth => operand.content().to_vec(),
        Place::OnArriving => arriving.content().to_vec(),
    }
}

/// What the judge says `a ⊕ b` is.
fn judged(dtype: Dtype, op: &Op, a: &[u8], b: &[u8]) -> Vec<u8> {
    let mut result = a.to_vec();
    naive::fold(dtype, op, b, &mut result);
    result
}

/// Random elements among which every kind of special value is frequent.
fn random_bytes(random: &mut fastrand::Rng, dtype: Dtype, count: usize) -> Vec<u8> {
    let special: &[u64] = match dtype {
        Dtype::F16 => &[0, 0x8000, 0x7c00, 0xfc00, 0x7e01, 0xfd00, 1, 0x83ff, 0x7bff],
        Dtype::Bf16 => &[0, 0x8000, 0x7f80, 0xff80, 0x7fc1, 0xff81, 1, 0x807f, 0x7f7f],
        Dtype::F32 => &[0, 1 << 31, 0x7f80_0000, 0xff80_0000, 0x7fc0_0001, 0xff80_0001, 1],
        Dtype::F64 => &[0, 1 << 63, 0x7ff << 52, 0xfff << 52, (0x7ff << 52) + 1, u64::MAX, 1],
        Dtype::Bool => &[0, 0, 0, 1],
        _ => &[0, u64::MAX],
    };
    (0..count)
        .flat_map(|_| {
            let any = random.u64(..);
            let bits =
                if random.u8(..4) == 0 { special[any as usize % special.len()] } else { any };
            bits.to_le_bytes()[..dtype.size()].to_vec()
        })
        .collect()
}

fn each_kernel(mut check: impl FnMut(Isa, Dtype, &Op)) {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for dtype in Dtype::ALL {
            for op in Op::PLAIN.into_iter().chain([Op::PreMulSum(2.0)]) {
                check(isa, dtype, &op);
            }
        }
    }
}

#[test]
fn a_kernel_exists_exactly_where_the_operator_makes_sense() {
    each_kernel(|isa, dtype, op| {
        assert_eq!(kernels::fold_on(isa, dtype, op).is_some(), op.supports(dtype));
        let scales = Op::Avg.supports(dtype);
        assert_eq!(kernels::divide_on(isa, dtype).is_some(), scales);
        assert_eq!(kernels::premultiply_on(isa, dtype).is_some(), scales);
    });
    assert!(Isa::best().is_available());
}

#[test]
fn folds_agree_with_the_judge_at_every_length_offset_and_place() {
    each_kernel(|isa, dtype, op| {
        let Some(fold) = kernels::fold_on(isa, dtype, op) else { return };
        let mut random = fastrand::Rng::with_seed(SEED);
        let longest = random_bytes(&mut random, dtype, 131);
        let other = random_bytes(&mut random, dtype, 131);
        let want = judged(dtype, op, &longest, &other);
        let own = judged(dtype, op, &longest, &longest);
        for count in 0..=130 {
            let bytes = count * dtype.size();
            let (a, b) = (&longest[..bytes], &other[..bytes]);
            for place in [Place::Apart, Place::OnOperand, Place::OnArriving, Place::OnBoth] {
                for offsets in [[0, 0, 0], [1, 2, 3], [8, 60, 33]] {
                    let got = run(fold, dtype, a, b, place, offsets);
                    let want = if place == Place::OnBoth { &own } else { &want };
                    let what = (isa, dtype, op, count, place, offsets);
                    assert_eq!(got, want[..bytes], "{what:?} seed {SEED}");
                }
            }
        }
    });
}

#[test]
fn operands_may_be_swapped() {
    each_kernel(|isa, dtype, op| {
        let Some(fold) = kernels::fold_on(isa, dtype, op) else { return };
        let mut random = fastrand::Rng::with_seed(SEED ^ 1);
        let a = random_bytes(&mut random, dtype, 5000);
        let b = random_bytes(&mut random, dtype, 5000);
        let forth = run(fold, dtype, &a, &b, Place::Apart, [0; 3]);
        let back = run(fold, dtype, &b, &a, Place::Apart, [0; 3]);
        assert!(forth == back, "{:?} seed {}", (isa, dtype, op), SEED ^ 1);
    });
}

#[test]
fn all_pairs_of_eight_bit_floats() {
    let a: Vec<u8> = (0..=255u8).flat_map(|left| [left; 256]).collect();
    let b: Vec<u8> = (0..256).flat_map(|_| 0..=255u8).collect();
    each_kernel(|isa, dtype, op| {
        let narrow = matches!(dtype, Dtype::F8e4m3 | Dtype::F8e5m2);
        let Some(fold) = kernels::fold_on(isa, dtype, op).filter(|_| narrow) else { return };
        let want = judged(dtype, op, &a, &b);
        assert!(run(fold, dtype, &a, &b, Place::Apart, [0; 3]) == want, "{isa:?} {dtype} {op}");
    });
}

/// x + (-0), x * 1, min(x, x) and max(x, x) are x, for each of the 65536 bit patterns.
#[test]
fn identities_hold_for_every_sixteen_bit_float() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let repeat =
        |bits: u16| -> Vec<u8> { (0..=u16::MAX).flat_map(|_| bits.to_le_bytes()).collect() };
    each_kernel(|isa, dtype, op| {
        let (one, infinity, nan) = match dtype {
            Dtype::F16 => (f16::ONE.to_bits(), 0x7c00, 0x7e00u16),
            Dtype::Bf16 => (bf16::ONE.to_bits(), 0x7f80, 0x7fc0u16),
            _ => return,
        };
        let other = match op {
            Op::Sum => repeat(0x8000),
            Op::Prod => repeat(one),
            Op::Min | Op::Max => all.clone(),
            _ => return,
        };
        let fold = kernels::fold_on(isa, dtype, op).expect("supported");
        let got = run(fold, dtype, &all, &other, Place::Apart, [0; 3]);
        for (bits, got) in (0..=u16::MAX).zip(got.chunks_exact(2)) {
            let want = if bits & 0x7fff > infinity { nan } else { bits };
            assert_eq!(got, want.to_le_bytes(), "{isa:?} {dtype} {op} of {bits:#x}");
        }
    });
}

/// A random partner for each of the 65536 patterns, several times.
#[test]
fn sixteen_bit_floats_round_as_the_judge_does() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut random = fastrand::Rng::with_seed(SEED);
    for _ in 0..4 {
        let other: Vec<u8> = (0..all.len()).map(|_| random.u8(..)).collect();
        each_kernel(|isa, dtype, op| {
            let narrow = matches!(dtype, Dtype::F16 | Dtype::Bf16);
            let Some(fold) = kernels::fold_on(isa, dtype, op).filter(|_| narrow) else { return };
            let want = judged(dtype, op, &all, &other);
            let got = run(fold, dtype, &all, &other, Place::Apart, [0; 3]);
            assert!(got == want, "{isa:?} {dtype} {op} seed {SEED}");
        });
    }
}

/// One rank's pre-multiplied sum is its scaled input, and the average of `ranks` ranks of which all
/// but one bring zeros is that one's divided input.
#[test]
fn scales_agree_with_the_judge() {
    let mut random = fastrand::Rng::with_seed(SEED);
    for dtype in Dtype::ALL.into_iter().filter(|&dtype| Op::Avg.supports(dtype)) {
        for (isa, count) in Isa::ALL.into_iter().flat_map(|isa| [(isa, 0), (isa, 37), (isa, 300)]) {
            let Some(divide) = kernels::divide_on(isa, dtype) else { continue };
            let premultiply = kernels::premultiply_on(isa, dtype).expect("same machine");
            let input = random_bytes(&mut random, dtype, count);
            for factor in [-3.0, 0.1, 1.0, 0.5, 1e4] {
                let want = all_reduced(dtype, Op::PreMulSum(factor), vec![input.clone()]);
                assert_eq!(
                    scaled(premultiply, &input, count, factor),
                    want,
                    "{isa:?} {dtype} {factor}"
                );
            }
            for ranks in [1usize, 2, 3, 7, 200] {
                let mut inputs = vec![vec![0; input.len()]; ranks];
                inputs[0].copy_from_slice(&input);
                let mut sum = input.clone();
                for other in &inputs[1..] {
                    naive::fold(dtype, &Op::Sum, other, &mut sum);
                }
                let want = all_reduced(dtype, Op::Avg, inputs);
                assert_eq!(
                    scaled(divide, &sum, count, ranks as f64),
                    want,
                    "{isa:?} {dtype} {ranks}"
                );
            }
        }
    }

    fn scaled(scale: kernels::Scale, input: &[u8], count: usize, factor: f64) -> Vec<u8> {
        let mut data = Guarded::new(input, 3);
        // SAFETY: the data hold `count` elements.
        unsafe { scale(data.pointer(), count, factor) };
        data.content().to_vec()
    }
}

fn all_reduced(dtype: Dtype, op: Op, inputs: Vec<Vec<u8>>) -> Vec<u8> {
    let counts = vec![inputs[0].len() / dtype.size()];
    let call = NaiveCall { collective: Collective::AllReduce, dtype, op, counts };
    naive::expected(&call, &inputs).swap_remove(0).expect("every rank has the result")
}

/// Fold neighbours chosen at random until one is left: any order of operands, any parentheses.
fn folded_anyhow(
    random: &mut fastrand::Rng,
    fold: Fold,
    dtype: Dtype,
    inputs: &[Vec<u8>],
) -> Vec<u8> {
    let mut left: Vec<Vec<u8>> = inputs.to_vec();
    while left.len() > 1 {
        let mut a = left.swap_remove(random.usize(..left.len()));
        let b = left.swap_remove(random.usize(..left.len()));
        // SAFETY: both hold the same number of elements; the result is the operand.
        unsafe { fold(a.as_ptr(), b.as_ptr(), a.as_mut_ptr(), a.len() / dtype.size()) };
        left.push(a);
    }
    left.remove(0)
}

#[test]
fn filled_data_reduce_to_the_same_bytes_in_any_order() {
    let mut random = fastrand::Rng::with_seed(SEED);
    for dtype in Dtype::ALL {
        for op in Op::PLAIN.into_iter().chain([Op::PreMulSum(0.5), Op::PreMulSum(-2.0)]) {
            let Some(fold) = kernels::fold(dtype, &op) else { continue };
            for ranks in [1, 2, 3, 4, 5, 8, 9, 17, 64, 300] {
                let mut inputs: Vec<Vec<u8>> = (0..ranks)
                    .map(|rank| naive::fill(dtype, &op, rank, ranks, SEED, 200))
                    .collect();
                let mut want = all_reduced(dtype, op.clone(), inputs.clone());
                if let Op::PreMulSum(factor) = op {
                    let scale = kernels::premultiply(dtype).expect("numbers");
                    // SAFETY: each input holds 200 elements.
                    inputs.iter_mut().for_each(|x| unsafe { scale(x.as_mut_ptr(), 200, factor) });
                }
                if let Op::Avg = op {
                    want = all_reduced(dtype, Op::Sum, inputs.clone());
                }
                for _ in 0..3 {
                    let got = folded_anyhow(&mut random, fold, dtype, &inputs);
                    assert!(got == want, "{dtype} {op} of {ranks} ranks, seed {SEED}");
                }
            }
        }
    }
}

/// Data that were zero, or the same everywhere, would let a lost or misplaced chunk pass.
#[test]
fn filled_data_tell_ranks_places_and_seeds_apart() {
    for dtype in Dtype::ALL {
        for op in Op::PLAIN.into_iter().filter(|op| op.supports(dtype)) {
            for ranks in [2, 7, 64] {
                let inputs: Vec<Vec<u8>> = (0..ranks)
                    .map(|rank| naive::fill(dtype, &op, rank, ranks, SEED, 4000))
                    .collect();
                let result = all_reduced(dtype, op.clone(), inputs.clone());
                let changed = |other: &[u8]| {
                    let elements = result.chunks_exact(dtype.size());
                    elements.zip(other.chunks_exact(dtype.size())).filter(|(a, b)| a != b).count()
                };
                let what = format!("{dtype} {op} of {ranks} ranks");
                assert_ne!(inputs[0], inputs[1], "{what}");
                assert!(changed(&result[dtype.size()..]) > 300, "{what}: shifted");
                let last = inputs.len() - 1;
                let without = all_reduced(dtype, op.clone(), inputs[..last].to_vec());
                let least = if op.to_string() == "avg" { 1 } else { 4000 / ranks as usize / 16 };
                assert!(changed(&without) >= least, "{what}: {} without a rank", changed(&without));
                let again = naive::fill(dtype, &op, 0, ranks, SEED, 4000);
                assert_eq!(again, inputs[0]);
                assert_ne!(again, naive::fill(dtype, &op, 0, ranks, SEED + 1, 4000), "{what}");
            }
        }
    }
}

#[test]
fn eight_bit_floats_of_the_judge_and_of_the_kernels_are_the_same_formats() {
    assert_eq!(judged(Dtype::F8e4m3, &Op::Sum, &[F8e4m3::MAX.0], &[F8e4m3::MAX.0]), [0x7e]);
    assert_eq!(judged(Dtype::F8e5m2, &Op::Max, &[0x7c], &[F8e5m2::MAX.0]), [0x7c]);
    assert_eq!(judged(Dtype::F8e5m2, &Op::Min, &[0x7c], &[0xff]), [F8e5m2::NAN.0]);
}
