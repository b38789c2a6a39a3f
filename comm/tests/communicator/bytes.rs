//! What a rank sends is what the textbook says, to the byte: for every algorithm, for numbers of
//! ranks that are no powers of two and lengths that do not divide by them.
//!
//! The formulas here know nothing of moves, chunks or plans. Only how a vector of n elements is
//! shared out among p ranks is taken as given: share i ends at element floor(n(i+1)/p).

mod formulas;

use brigade_comm::{Buffers, Call, Communicator, Dtype, Op, Settings};
use brigade_schedule::{Algorithm, Collective};

use crate::world::{Case, each_rank, over};
use formulas::{Sent, sent_elems};

const RANKS: [u32; 10] = [2, 3, 4, 5, 6, 7, 8, 9, 12, 16];

fn collectives(ranks: u32) -> Vec<Collective> {
    let mut list = vec![
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::AllToAll,
    ];
    for root in [0, ranks - 1, ranks / 2] {
        list.extend([
            Collective::Broadcast { root },
            Collective::Reduce { root },
            Collective::Gather { root },
            Collective::Scatter { root },
        ]);
    }
    list
}

/// Make a call with nothing particular in its buffers; returns the bytes that it sent.
fn bytes_sent(member: &Communicator, call: &Call) -> u64 {
    let (ranks, rank) = (member.size() as u32, member.rank() as u32);
    let (inputs, outputs) = call.buffer_elems(ranks, rank);
    let size = call.dtype.size();
    let (input, mut output) = (vec![0; inputs * size], vec![0; outputs * size]);
    let before = member.stats();
    member.run(call, Buffers::OutOfPlace { input: &input, output: &mut output }).expect("a call");
    let after = member.stats();
    assert_eq!(after.calls, before.calls + 1);
    after.sent_bytes - before.sent_bytes
}

/// Every rank's bytes against its formula, or against the bounds and the total if the formula gives
/// only those.
fn check(case: &Case, algorithm: Algorithm, sent: &[u64]) {
    let ranks = sent.len();
    let size = case.dtype.size() as u64;
    let mut total = 0;
    for (rank, &bytes) in sent.iter().enumerate() {
        let place = || format!("rank {rank} of {ranks}, {algorithm}, {case:?}");
        match sent_elems(case, algorithm, ranks, rank) {
            Sent::Exactly(elems) => assert_eq!(bytes, elems as u64 * size, "{}", place()),
            Sent::AtMost(elems, of_all) => {
                total = of_all;
                assert!(bytes <= elems as u64 * size, "{}: {bytes} bytes", place());
            }
        }
    }
    if total > 0 {
        let sent: u64 = sent.iter().sum();
        assert_eq!(sent, total as u64 * size, "{ranks} ranks together, {algorithm}, {case:?}");
    }
}

/// Make all cases on one world that prefers `algorithm`, and check each by the one that ran.
fn check_all(ranks: u32, algorithm: Option<Algorithm>, cases: Vec<Case>) {
    let settings = Settings { algorithm, ..over("loopback") };
    let made = cases.clone();
    let measured = each_rank(ranks as usize, &settings, move |member| {
        let (ranks, rank) = (member.size(), member.rank());
        let sent = |case: &Case| {
            let call = case.call(ranks, rank);
            (member.algorithm_for(&call).expect("an algorithm"), bytes_sent(&member, &call))
        };
        made.iter().map(sent).collect::<Vec<_>>()
    });
    for (at, case) in cases.iter().enumerate() {
        let ran = measured[0][at].0;
        assert!(algorithm.is_none_or(|wish| wish == ran), "{ran} was chosen for {case:?}");
        let sent: Vec<u64> = measured.iter().map(|calls| calls[at].1).collect();
        check(case, ran, &sent);
    }
}

fn case(collective: Collective, dtype: Dtype, counts: Vec<usize>) -> Case {
    Case { collective, dtype, op: Op::Sum, counts, in_place: false }
}

/// Lengths below, at and beyond the number of ranks; none divides well.
fn cases(collective: Collective, ranks: u32) -> Vec<Case> {
    let short = [0, 1, ranks as usize - 1, ranks as usize + 1].map(|count| (Dtype::F64, count));
    let long = [(Dtype::U8, 1009), (Dtype::Bf16, 4099)];
    let lengths = short.into_iter().chain(long);
    lengths.map(|(dtype, count)| case(collective, dtype, vec![count])).collect()
}

#[test]
fn every_algorithm_sends_what_its_formula_says() {
    for ranks in RANKS {
        let collectives = collectives(ranks);
        let mut algorithms: Vec<Algorithm> = Vec::new();
        for algorithm in collectives.iter().flat_map(|&c| Algorithm::all_for(c, ranks)) {
            if !algorithms.contains(&algorithm) {
                algorithms.push(algorithm);
            }
        }
        for algorithm in algorithms {
            let able = collectives.iter().filter(|&&c| algorithm.can_do(c, ranks));
            let cases = able.flat_map(|&collective| cases(collective, ranks)).collect();
            check_all(ranks, Some(algorithm), cases);
        }
    }
}

#[test]
fn the_algorithm_chosen_by_size_sends_what_its_formula_says() {
    for ranks in RANKS {
        let mut all: Vec<Case> = Vec::new();
        for collective in collectives(ranks) {
            all.extend(cases(collective, ranks));
            all.push(case(collective, Dtype::F32, vec![20_011]));
        }
        check_all(ranks, None, all);
    }
}

#[test]
fn strict_order_costs_no_more_bytes() {
    for ranks in RANKS {
        let cases = cases(Collective::AllReduce, ranks);
        let made = cases.clone();
        let settings = Settings { ordered: true, ..over("loopback") };
        let measured = each_rank(ranks as usize, &settings, move |member| {
            let sent = |case: &Case| bytes_sent(&member, &case.call(member.size(), member.rank()));
            made.iter().map(sent).collect::<Vec<_>>()
        });
        for (at, case) in cases.iter().enumerate() {
            let sent: Vec<u64> = measured.iter().map(|calls| calls[at]).collect();
            check(case, Algorithm::Ordered, &sent);
        }
    }
}

/// A block goes straight to whoever needs it, whatever the lengths of the others.
#[test]
fn blocks_of_different_lengths_are_sent_once_to_each_who_needs_them() {
    for ranks in RANKS {
        let count = |at: usize| (at * 37 + 11) % 64 * (at % 3);
        let each: Vec<usize> = (0..ranks as usize).map(count).collect();
        let pairs: Vec<usize> = (0..(ranks * ranks) as usize).map(count).collect();
        let mut all = vec![case(Collective::AllToAll, Dtype::I16, pairs)];
        for collective in collectives(ranks) {
            if collective.blocks(ranks) == ranks {
                all.push(case(collective, Dtype::I16, each.clone()));
            }
        }
        check_all(ranks, None, all);
    }
}

/// However a long vector is cut into windows, all ranks together send what they must.
#[test]
fn windows_cost_no_bytes() {
    for ranks in [2usize, 3, 5, 7] {
        let algorithms = [Algorithm::Ring, Algorithm::BiRing, Algorithm::Halving];
        for algorithm in algorithms.into_iter().chain([Algorithm::DoubleTree, Algorithm::Ordered]) {
            let settings =
                Settings { algorithm: Some(algorithm), window_bytes: 16 << 10, ..over("loopback") };
            let sent = each_rank(ranks, &settings, |member| {
                let call = Call::new(Collective::AllReduce, Dtype::F32, Op::Sum, 50_021);
                bytes_sent(&member, &call)
            });
            let total: u64 = sent.iter().sum();
            assert_eq!(total, 4 * 50_021 * 2 * (ranks as u64 - 1), "{ranks} ranks, {algorithm}");
        }
    }
}

#[test]
fn barriers_and_lonely_ranks_send_nothing() {
    each_rank(5, &over("loopback"), |member| {
        member.barrier().expect("a barrier");
        assert_eq!((member.stats().sent_bytes, member.stats().calls), (0, 1));
    });
    each_rank(1, &over("loopback"), |member| {
        for collective in collectives(1) {
            let call = Call::moving(collective, Dtype::F32, 1000);
            assert_eq!(bytes_sent(&member, &call), 0, "{collective}");
        }
    });
}
