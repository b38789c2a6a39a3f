//! Every algorithm, every collective, many lengths, in and out of place, against the judge.

use std::sync::Arc;

use brigade_comm::{Dtype, Op, Settings};
use brigade_schedule::{Algorithm, Collective};

use crate::world::{Case, Judged, TRANSPORTS, check, judge, over};

/// Collectives with each of the given roots.
fn all(roots: &[u32]) -> Vec<Collective> {
    let mut list = vec![
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::AllToAll,
        Collective::Barrier,
    ];
    for &root in roots {
        list.extend([
            Collective::Broadcast { root },
            Collective::Reduce { root },
            Collective::Gather { root },
            Collective::Scatter { root },
        ]);
    }
    list
}

/// The algorithms that can do at least one of the collectives.
fn algorithms_for(collectives: &[Collective], ranks: u32) -> Vec<Algorithm> {
    let mut algorithms: Vec<Algorithm> = Vec::new();
    for algorithm in collectives.iter().flat_map(|&c| Algorithm::all_for(c, ranks)) {
        if !algorithms.contains(&algorithm) {
            algorithms.push(algorithm);
        }
    }
    algorithms
}

/// Both in place and out of place, f32 sums.
fn both_ways(collective: Collective, counts: &[usize]) -> [Case; 2] {
    [true, false].map(|in_place| Case {
        collective,
        dtype: Dtype::F32,
        op: Op::Sum,
        counts: counts.to_vec(),
        in_place,
    })
}

/// Every algorithm does all the collectives that it can do, on one world.
fn every_algorithm(transport: &str, ranks: u32, counts: &[usize]) {
    let roots: Vec<u32> = if ranks == 1 { vec![0] } else { vec![0, ranks - 1] };
    let collectives = all(&roots);
    let mut cases = Vec::new();
    for &collective in &collectives {
        for &count in counts.iter().filter(|&&n| collective != Collective::Barrier || n == 0) {
            cases.extend(both_ways(collective, &[count]));
        }
    }
    let judged = judge(ranks, cases);
    for algorithm in algorithms_for(&collectives, ranks) {
        let can_do = |judged: &&Arc<Judged>| algorithm.can_do(judged.case.collective, ranks);
        let judged: Vec<_> = judged.iter().filter(can_do).cloned().collect();
        let settings = Settings { algorithm: Some(algorithm), ..over(transport) };
        check(ranks, &settings, &judged);
    }
}

#[test]
fn every_algorithm_on_loopback_agrees_with_the_judge() {
    for ranks in [1, 2, 3, 4, 5, 7, 8] {
        every_algorithm("loopback", ranks, &[0, 1, 3, 17, 1000]);
    }
}

#[test]
fn every_algorithm_in_shared_memory_agrees_with_the_judge() {
    for ranks in [2, 3, 4, 7] {
        every_algorithm("shm", ranks, &[0, 1, 17, 5000]);
    }
}

#[test]
fn every_algorithm_over_tcp_agrees_with_the_judge() {
    for ranks in [2, 3, 5] {
        every_algorithm("tcp", ranks, &[0, 1, 17, 5000]);
    }
}

/// Windows of 64 KiB make a call of 200 kB long; a call of 3 MB is long for those of the default.
#[test]
fn long_calls_are_worked_through_in_windows() {
    for ranks in [2, 3] {
        let moving = all(&[0]).into_iter().filter(|&c| c != Collective::Barrier);
        let short = moving.flat_map(|collective| both_ways(collective, &[50_001])).collect();
        let long = both_ways(Collective::AllReduce, &[700_001]).to_vec();
        let (short, long) = (judge(ranks, short), judge(ranks, long));
        for transport in TRANSPORTS {
            let settings = Settings { window_bytes: 64 << 10, ..over(transport) };
            check(ranks, &settings, &short);
            check(ranks, &over(transport), &long);
        }
    }
}

#[test]
fn every_type_folds_by_every_operator_that_makes_sense() {
    for ranks in [2, 5] {
        let mut cases = Vec::new();
        for dtype in Dtype::ALL {
            for op in Op::PLAIN.into_iter().filter(|op| op.supports(dtype)) {
                for collective in [
                    Collective::AllReduce,
                    Collective::ReduceScatter,
                    Collective::Reduce { root: ranks - 1 },
                ] {
                    for in_place in [true, false] {
                        let (op, counts) = (op.clone(), vec![33]);
                        cases.push(Case { collective, dtype, op, counts, in_place });
                    }
                }
            }
        }
        let judged = judge(ranks, cases);
        for transport in TRANSPORTS {
            check(ranks, &over(transport), &judged);
        }
    }
}

#[test]
fn blocks_of_different_lengths_keep_their_places() {
    let uneven: [&[usize]; 3] = [&[3, 0, 5, 1], &[0, 0, 0, 9], &[100, 2000, 1, 70]];
    let collectives = [
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Gather { root: 2 },
        Collective::Scatter { root: 1 },
        Collective::AllToAll,
    ];
    let mut cases = Vec::new();
    for counts in uneven {
        for collective in &collectives[..4] {
            cases.extend(both_ways(*collective, counts));
        }
        let pairs: Vec<usize> = (0..16).map(|pair| counts[pair % 4] + pair / 4).collect();
        let both = both_ways(Collective::AllToAll, &pairs);
        cases.extend(both.map(|case| Case { dtype: Dtype::U8, ..case }));
    }
    let judged = judge(4, cases);
    for transport in TRANSPORTS {
        check(4, &over(transport), &judged);
    }
    for algorithm in algorithms_for(&collectives, 4) {
        let suits = |judged: &&Arc<Judged>| {
            let collective = judged.case.collective;
            algorithm.can_do(collective, 4) && algorithm.suits_uneven(collective)
        };
        let judged: Vec<_> = judged.iter().filter(suits).cloned().collect();
        check(4, &Settings { algorithm: Some(algorithm), ..over("loopback") }, &judged);
    }
}
