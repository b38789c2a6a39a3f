//! Operators beyond the plain ones: averages, factors, the user's own, strict order, and lists.

use std::sync::Arc;

use brigade_comm::naive::fill;
use brigade_comm::{Buffers, Call, Communicator, CustomOp, Dtype, Op, Settings};
use brigade_schedule::{Algorithm, Collective};

use crate::world::{Case, TRANSPORTS, check, each_rank, judge, judge_inputs, over};

/// The folding collectives, in and out of place.
fn folding(ranks: u32, dtype: Dtype, op: &Op, count: usize) -> Vec<Case> {
    let roots = [0, ranks - 1].map(|root| Collective::Reduce { root });
    let collectives = [[Collective::AllReduce, Collective::ReduceScatter], roots].concat();
    let both = |collective| {
        [true, false].map(|in_place| {
            let (op, counts) = (op.clone(), vec![count]);
            Case { collective, dtype, op, counts, in_place }
        })
    };
    collectives.into_iter().flat_map(both).collect()
}

#[test]
fn averages_and_factors_fit_every_type_that_has_them() {
    // Factors that lose no bits; integers also drop what is behind the point.
    let factors = [0.5, 4.0, -2.0, 3.9];
    for ranks in [1, 2, 3, 5, 8] {
        let mut cases = Vec::new();
        for dtype in Dtype::ALL.into_iter().filter(|&dtype| dtype != Dtype::Bool) {
            let exact = |factor: &f64| dtype.is_integer() || *factor != 3.9;
            let factors = factors.into_iter().filter(exact).map(Op::PreMulSum);
            for op in factors.chain([Op::Avg]) {
                cases.extend(folding(ranks, dtype, &op, 33));
            }
        }
        let judged = judge(ranks, cases);
        for transport in TRANSPORTS {
            check(ranks, &over(transport), &judged);
        }
    }
}

/// Calls of one shape share a plan, and a plan must not remember the factor or the function.
#[test]
fn calls_of_one_shape_may_have_different_factors_and_functions() {
    each_rank(2, &over("loopback"), |member| {
        for round in 1..4i32 {
            let mut data = [member.rank() as i32 + 1; 9];
            member.all_reduce(&mut data, Op::PreMulSum(f64::from(round))).expect("a call");
            assert_eq!(data, [3 * round; 9]);
        }
        let ops: [Arc<dyn CustomOp>; 2] = [Arc::new(Saturating), Arc::new(Hypotenuse)];
        for (op, wanted) in ops.into_iter().zip([7u32, 5]) {
            let mut data = [3 + member.rank() as u32; 9];
            member.all_reduce(&mut data, Op::Custom(op)).expect("a call");
            assert_eq!(data, [wanted; 9]);
        }
    });
}

/// Adds bytes up to 255: associative and commutative, and not what any kernel does.
struct Saturating;

impl CustomOp for Saturating {
    fn name(&self) -> &str {
        "saturating-sum"
    }

    fn fold(&self, arriving: &[u8], accumulator: &mut [u8], _dtype: Dtype) {
        for (sum, byte) in accumulator.iter_mut().zip(arriving) {
            *sum = sum.saturating_add(*byte);
        }
    }
}

/// The root of the sum of squares of numbers below 2^16.
struct Hypotenuse;

impl CustomOp for Hypotenuse {
    fn name(&self) -> &str {
        "hypotenuse"
    }

    fn fold(&self, arriving: &[u8], accumulator: &mut [u8], dtype: Dtype) {
        assert_eq!((dtype, accumulator.len()), (Dtype::U32, arriving.len()));
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        for (sum, other) in accumulator.chunks_exact_mut(4).zip(arriving.chunks_exact(4)) {
            let (a, b) = (number(sum), number(other));
            sum.copy_from_slice(&(a * a + b * b).isqrt().to_le_bytes());
        }
    }
}

/// Bits that differ, whatever the bits mean.
struct Difference;

impl CustomOp for Difference {
    fn name(&self) -> &str {
        "difference"
    }

    fn fold(&self, arriving: &[u8], accumulator: &mut [u8], dtype: Dtype) {
        assert!(accumulator.len() == arriving.len() && arriving.len().is_multiple_of(dtype.size()));
        accumulator.iter_mut().zip(arriving).for_each(|(bits, other)| *bits ^= other);
    }
}

#[test]
fn a_function_of_the_user_gets_whole_elements_of_every_type() {
    for ranks in [2, 5] {
        let op = Op::Custom(Arc::new(Difference));
        let cases = Dtype::ALL.into_iter().flat_map(|dtype| folding(ranks, dtype, &op, 12_345));
        let judged = judge(ranks, cases.collect());
        for transport in TRANSPORTS {
            check(ranks, &over(transport), &judged);
        }
    }
}

#[test]
fn a_function_of_the_user_works_by_every_algorithm() {
    for ranks in [2, 3, 4, 7] {
        let op = Op::Custom(Arc::new(Saturating));
        let cases = |count| folding(ranks, Dtype::U8, &op, count);
        let judged = judge(ranks, [cases(0), cases(1), cases(1000)].concat());
        for transport in TRANSPORTS {
            check(ranks, &over(transport), &judged);
        }
        for algorithm in Algorithm::all_for(Collective::AllReduce, ranks) {
            let settings = Settings { algorithm: Some(algorithm), ..over("loopback") };
            let can_do = judged.iter().filter(|j| algorithm.can_do(j.case.collective, ranks));
            check(ranks, &settings, &can_do.cloned().collect::<Vec<_>>());
        }
    }
}

fn ordered(transport: &str) -> Settings {
    Settings { ordered: true, ..over(transport) }
}

/// Elements of so many ranks whose sum depends on the order in which they are added, in every
/// format: hashes with an exponent that is neither huge nor tiny.
fn rounding(dtype: Dtype, ranks: u32, elements: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(u64::from(ranks) * 31 + u64::from(dtype.code()));
    let mut element = |bytes: &mut [u8]| {
        random.fill(bytes);
        // The second exponent bit from above differs from the first: between 2^-k and 2^k.
        let top = bytes.len() - 1;
        bytes[top] = if bytes[top] & 0x40 == 0 { bytes[top] | 0x20 } else { bytes[top] & !0x20 };
    };
    let mut input = || {
        let mut bytes = vec![0; elements * dtype.size()];
        bytes.chunks_exact_mut(dtype.size()).for_each(&mut element);
        bytes
    };
    (0..ranks).map(|_| input()).collect()
}

#[test]
fn ordered_sums_have_the_bits_of_a_sequential_sum() {
    let floats = Dtype::ALL.into_iter().filter(|dtype| dtype.is_float());
    for ranks in [2, 3, 4, 5, 8] {
        let mut judged = Vec::new();
        for dtype in floats.clone() {
            for op in [Op::Sum, Op::Avg, Op::PreMulSum(0.3)] {
                for count in [1, 700] {
                    for case in folding(ranks, dtype, &op, count) {
                        let blocks = case.collective.blocks(ranks) as usize;
                        let inputs = rounding(dtype, ranks, blocks * count);
                        judged.push(Arc::new(judge_inputs(case, inputs)));
                    }
                }
            }
        }
        for transport in TRANSPORTS {
            check(ranks, &ordered(transport), &judged);
        }
        // The same bits in whatever windows the work is done.
        let windows = Settings { window_bytes: 4096, ..ordered("loopback") };
        check(ranks, &windows, &judged);
    }
}

/// Lists come out as if every tensor had been reduced by itself.
fn check_list(member: &Communicator, lengths: &[usize], op: &Op) {
    let brings = |at: usize, length: usize| {
        (0..length).map(|i| ((member.rank() + 1) * (i % 50 + at)) as f32).collect::<Vec<f32>>()
    };
    let tensors = lengths.iter().enumerate().map(|(at, &length)| brings(at, length));
    let (mut list, mut single): (Vec<_>, Vec<_>) = tensors.map(|t| (t.clone(), t)).unzip();
    let mut views: Vec<&mut [f32]> = list.iter_mut().map(|tensor| &mut tensor[..]).collect();
    member.all_reduce_many(&mut views, op.clone()).expect("a list");
    for tensor in &mut single {
        member.all_reduce(tensor, op.clone()).expect("a tensor");
    }
    assert!(list == single, "{lengths:?} by {op}");
}

#[test]
fn a_list_of_tensors_is_reduced_like_its_tensors() {
    let lists: [&[usize]; 5] =
        [&[], &[0], &[3, 0, 1, 17], &[16_384, 16_385, 5, 100_000, 1], &[7; 300]];
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), move |member| {
            for lengths in lists {
                for op in [Op::Sum, Op::Max, Op::Avg, Op::PreMulSum(0.5)] {
                    check_list(&member, lengths, &op);
                }
            }
        });
    }
}

#[test]
fn a_list_of_short_tensors_is_one_call() {
    each_rank(2, &over("loopback"), |member| {
        let mut tensors = vec![[1i32; 100]; 50];
        let mut views: Vec<&mut [i32]> = tensors.iter_mut().map(|t| &mut t[..]).collect();
        member.all_reduce_many(&mut views, Op::Sum).expect("a list");
        assert_eq!((tensors, member.stats().calls), (vec![[2; 100]; 50], 1));
    });
}

/// Buffers come from anywhere: a byte after an aligned address is an address too.
#[test]
fn buffers_need_not_be_aligned() {
    for transport in TRANSPORTS {
        each_rank(3, &over(transport), |member| {
            for dtype in [Dtype::F64, Dtype::I32, Dtype::Bf16] {
                for offset in 1..dtype.size() {
                    let bytes = 1001 * dtype.size();
                    let ones = fill(dtype, &Op::Sum, member.rank() as u32, 3, 5, 1001);
                    let mut aligned = ones.clone();
                    let mut buffer = vec![0; offset + bytes];
                    buffer[offset..].copy_from_slice(&ones);
                    let call = Call::new(Collective::AllReduce, dtype, Op::Sum, 1001);
                    let run = |bytes| member.run(&call, Buffers::InPlace(bytes));
                    run(&mut aligned).expect("aligned");
                    run(&mut buffer[offset..]).expect("not aligned");
                    assert!(buffer[offset..] == aligned, "{dtype} at {offset}");
                }
            }
        });
    }
}
