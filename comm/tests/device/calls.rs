//! Every collective, type, operator and odd size, with ranks that share one device.

use std::time::{Duration, Instant};

use brigade_comm::device::Way;
use brigade_comm::{Call, Dtype, Op, Settings};
use brigade_cuda::Stream;
use brigade_schedule::Collective;

use super::world::{case, context, even, has_device, ranks, turn};

/// Around packets, vectors and blocks: empty, odd, one more and one less.
const COUNTS: [usize; 9] = [0, 1, 2, 3, 7, 255, 2049, 4099, 70_001];

fn check_all(count: usize) {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(count, &Settings::default(), |rank| {
        rank.assert_way(Way::Together);
        for collective in Collective::ALL {
            let collective = collective.with_root(count as u32 - 1);
            let counts = if collective == Collective::Barrier { &[0][..] } else { &COUNTS };
            for (seed, &elems) in counts.iter().enumerate() {
                let case = even(collective, Dtype::F32, Op::Sum, elems, count);
                rank.check(&case, seed as u64);
            }
        }
    });
}

#[test]
fn one_rank_is_a_world() {
    check_all(1);
}

#[test]
fn two_ranks_on_one_device() {
    check_all(2);
}

#[test]
fn three_ranks_on_one_device() {
    check_all(3);
}

#[test]
fn four_ranks_on_one_device() {
    check_all(4);
}

/// For which kernels that fold have no number of their own.
#[test]
fn five_ranks_on_one_device() {
    check_all(5);
}

#[test]
fn eight_ranks_on_one_device() {
    check_all(8);
}

#[test]
fn blocks_of_different_lengths() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(3, &Settings::default(), |rank| {
        for root in 0..3 {
            for counts in [vec![5, 0, 9000], vec![0, 70_001, 3], vec![1, 2, 3]] {
                for collective in [
                    Collective::ReduceScatter,
                    Collective::AllGather,
                    Collective::Gather { root },
                    Collective::Scatter { root },
                ] {
                    rank.check(&case(collective, Dtype::I16, Op::Sum, counts.clone()), 7);
                }
            }
        }
        let pairs = vec![1, 20_000, 0, 3, 4, 5, 0, 7, 50_001];
        rank.check(&case(Collective::AllToAll, Dtype::U8, Op::Sum, pairs), 8);
    });
}

/// Small calls and large ones: each its own kernel.
fn check_folds(folds: impl Iterator<Item = (Dtype, Op)>) {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let folds: Vec<_> = folds.filter(|(dtype, op)| op.supports(*dtype)).collect();
    ranks(3, &Settings::default(), |rank| {
        for (seed, (dtype, op)) in folds.iter().enumerate() {
            for count in [5, 9001] {
                let case = even(Collective::AllReduce, *dtype, op.clone(), count, 3);
                rank.check(&case, seed as u64);
            }
        }
    });
}

fn ops() -> impl Iterator<Item = Op> {
    Op::PLAIN.into_iter().chain([Op::PreMulSum(2.0)])
}

#[test]
fn every_type_is_summed() {
    check_folds(Dtype::ALL.into_iter().map(|dtype| (dtype, Op::Sum)));
}

#[test]
fn every_operator_folds() {
    let some = [Dtype::I8, Dtype::F16, Dtype::F8e5m2, Dtype::Bool];
    check_folds(some.into_iter().flat_map(|dtype| ops().map(move |op| (dtype, op))));
}

/// By a factor that no float has exactly: each product is rounded before it is added. Sums of
/// narrow floats are rounded once, where the judge does so at each step.
#[test]
fn what_is_multiplied_first_has_the_hosts_bits() {
    check_folds([Dtype::F64, Dtype::F32].into_iter().map(|dtype| (dtype, Op::PreMulSum(0.3))));
}

/// Each pair of type and operator is compiled by itself, which takes a while at the first run.
#[test]
#[ignore = "compiles more than a hundred kernels"]
fn every_type_folds_by_every_operator() {
    check_folds(Dtype::ALL.into_iter().flat_map(|dtype| ops().map(move |op| (dtype, op))));
}

#[test]
fn unaligned_buffers_are_folded_element_by_element() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(2, &Settings::default(), |rank| {
        let elems = 30_000_usize;
        let values: Vec<u8> = (0..elems + 1).flat_map(|_| 1.5_f32.to_le_bytes()).collect();
        let (input, output) = (rank.memory(&values), rank.memory_of_each(&values));
        let call = brigade_comm::Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, elems);
        // SAFETY: both buffers have one element more than the call.
        let work = unsafe {
            let (from, to) = (input.address() + 4, output.address());
            rank.group.start(&call, from, to, &rank.stream)
        };
        work.unwrap().wait().unwrap();
        let found = rank.bytes(&output);
        let mut sums = found.chunks_exact(4).map(|it| f32::from_le_bytes(it.try_into().unwrap()));
        assert!(sums.by_ref().take(elems).all(|sum| sum == 3.0) && sums.next() == Some(1.5));
        rank.free(vec![input, output]);
    });
}

#[test]
fn messages_go_around_and_keep_their_order() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    ranks(4, &Settings::default(), |rank| {
        [0, 3, 100_003].into_iter().for_each(|bytes| rank.pass_around(bytes));
    });
}

/// What a rank is sent by a peer in an all-to-all of so many elements.
fn block(from: usize, to: usize, elems: usize) -> Vec<u8> {
    (0..elems).map(|at| (at * 7 + 31 * from + 5 * to) as u8).collect()
}

/// Whether a call is in place is each rank's own affair, and so is the room that it takes; that is
/// no business of a stream of somebody else either, who may destroy it.
#[test]
fn an_all_to_all_may_be_in_place_on_some_ranks_and_outlive_its_stream() {
    if !has_device() {
        return;
    }
    let _turn = turn();
    let free_bytes = || context(0).memory().expect("a number").0;
    let before = free_bytes();
    let settings = Settings { timeout: Duration::from_secs(4), ..Settings::default() };
    ranks(2, &settings, |rank| {
        let own = rank.comm.rank();
        for elems in [9000, 20_000, 10_000] {
            let sent = [0, 1].map(|to| block(own, to, elems)).concat();
            let memory = [rank.memory(&sent), rank.memory_of_each(&vec![0xa5; sent.len()])];
            let [from, to] = [0, 1].map(|at| memory[at].address());
            let to = if own == 0 { from } else { to };
            let stream = Stream::new(rank.group.context()).expect("a stream");
            // Making one may wait for kernels that wait for this rank.
            rank.comm.barrier().expect("a barrier");
            // SAFETY: it is alive for as long as it is used.
            let borrowed = unsafe { Stream::borrowed(rank.group.context(), stream.raw()) };
            let call = Call::moving(Collective::AllToAll, Dtype::U8, elems);
            // SAFETY: the buffers are as long as the call, and it is waited for.
            let work = unsafe { rank.group.start(&call, from, to, &borrowed) };
            work.expect("the call").wait().expect("the call's end");
            drop(stream);
            let came = rank.bytes(&memory[usize::from(own == 1)]);
            assert!(came == [0, 1].map(|from| block(from, own, elems)).concat(), "{elems}");
            rank.free(memory.into());
        }
    });
    // A device may keep what it was given back to its pool.
    let is_back = || brigade_cuda_fake::is_off() || free_bytes() == before;
    let begun = Instant::now();
    while !is_back() && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_back(), "{} bytes were free, now {}", before, free_bytes());
}
