//! Every algorithm, every number of ranks from 1 to 64, proved by the checker; and beside the proof,
//! the numbers that each algorithm is known for.

use brigade_schedule::{Algorithm, Collective, Report, check, program};

/// All roots of few ranks, some of many.
fn roots(collective: Collective, ranks: u32) -> Vec<Collective> {
    let Some(_) = collective.root() else { return vec![collective] };
    let roots = if ranks <= 8 { (0..ranks).collect() } else { vec![0, 1, ranks / 2, ranks - 1] };
    roots.into_iter().map(|root| collective.with_root(root)).collect()
}

#[test]
fn every_algorithm_is_right_among_1_to_64_ranks() {
    let mut total = Report::default();
    let mut schedules = 0;
    for ranks in 1..=64 {
        for collective in Collective::ALL.into_iter().flat_map(|c| roots(c, ranks)) {
            for algorithm in Algorithm::all_for(collective, ranks) {
                let report = check(collective, algorithm, ranks)
                    .unwrap_or_else(|e| panic!("{collective:?} {algorithm} {ranks}: {e}"));
                schedules += 1;
                total.moves += report.moves;
                total.sent_chunks += report.sent_chunks;
            }
        }
    }
    println!("{schedules} schedules, {} moves, {} chunks", total.moves, total.sent_chunks);
}

#[test]
fn many_ranks_are_right_too() {
    for ranks in [97, 128, 200] {
        for collective in Collective::ALL.into_iter().map(|c| c.with_root(ranks / 3)) {
            let plain =
                |algorithm: &Algorithm| !matches!(algorithm, Algorithm::Hierarchical { .. });
            let some = Algorithm::all_for(collective, ranks).into_iter().filter(plain);
            for algorithm in some.chain([Algorithm::Hierarchical { node_ranks: 8 }]) {
                if !algorithm.can_do(collective, ranks) || collective == Collective::AllToAll {
                    continue;
                }
                check(collective, algorithm, ranks)
                    .unwrap_or_else(|e| panic!("{collective:?} {algorithm} {ranks}: {e}"));
            }
        }
    }
}

#[test]
fn what_there_is() {
    for collective in Collective::ALL {
        let names: Vec<_> =
            Algorithm::all_for(collective, 6).iter().map(|algorithm| algorithm.name()).collect();
        println!("{collective}: {}", names.join(" "));
        assert!(names.len() >= 2, "{collective} has {names:?}");
        assert!(program(collective, Algorithm::Direct, 6, 6).is_none());
    }
}
