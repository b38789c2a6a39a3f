//! Every algorithm, every number of ranks from 1 to 64, proved by the checker; and beside the
//! proof, the numbers that each algorithm is known for.

use brigade_schedule::{Algorithm, Collective, Program, Report, check, check_programs, program};

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
            use Algorithm::{Hierarchical, NodeDoubling};
            let plain = |algorithm: &Algorithm| {
                !matches!(algorithm, Hierarchical { .. } | NodeDoubling { .. })
            };
            let some = Algorithm::all_for(collective, ranks).into_iter().filter(plain);
            let by_nodes = [Hierarchical { node_ranks: 8 }, NodeDoubling { node_ranks: 8 }];
            for algorithm in some.chain(by_nodes) {
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
fn ranks_by_other_names_have_the_same_steps_and_bytes() {
    let mut random = fastrand::Rng::with_seed(7);
    for ranks in 1..=9 {
        for collective in Collective::ALL.into_iter().flat_map(|c| roots(c, ranks)) {
            // Whose result is in the order of ranks has it in that of other ranks then.
            let all = Algorithm::all_for(collective, ranks).into_iter();
            for algorithm in all.filter(|algorithm| *algorithm != Algorithm::Ordered) {
                let mut order: Vec<u32> = (0..ranks).collect();
                random.shuffle(&mut order);
                let renamed = |rank| {
                    let program = program(collective, algorithm, ranks, rank).expect("it can");
                    program.renamed(&order)
                };
                let mut programs: Vec<Program> = (0..ranks).map(renamed).collect();
                programs.sort_by_key(|program| program.rank);
                let what = format!("{collective:?} {algorithm} {order:?}");
                let report = check_programs(&programs).unwrap_or_else(|e| panic!("{what}: {e}"));
                let before = check(collective, algorithm, ranks).expect("it is right");
                let facts = |report: &Report| (report.sent_chunks, report.steps);
                assert_eq!(facts(&report), facts(&before), "{what}");
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

#[test]
fn what_can_be_done_is_what_has_a_program() {
    for ranks in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 100, u32::MAX] {
        let ends = [0, 1, 2, 3, 8, 9, ranks.saturating_sub(1), ranks, ranks.saturating_add(1)];
        let numbered = ends.into_iter().flat_map(|number| {
            let servers = Algorithm::ParameterServer { servers: number };
            let doubling = Algorithm::NodeDoubling { node_ranks: number };
            [Algorithm::Hierarchical { node_ranks: number }, doubling, servers]
        });
        for algorithm in Algorithm::PLAIN.into_iter().chain(numbered) {
            let rooted = |collective: Collective| ends.map(|root| collective.with_root(root));
            for collective in Collective::ALL.into_iter().flat_map(rooted) {
                let can = program(collective, algorithm, ranks, 0).is_some();
                let name = format!("{collective:?} {algorithm} {ranks}");
                assert_eq!(algorithm.can_do(collective, ranks), can, "{name}");
            }
        }
    }
}

/// The blocks whose lengths a rank knows in the v form of `collective`.
fn knows(program: &Program, block: u32) -> bool {
    let (ranks, rank) = (program.ranks, program.rank);
    match program.collective {
        Collective::AllToAll => block / ranks == rank || block % ranks == rank,
        Collective::Gather { root } | Collective::Scatter { root } => rank == root || block == rank,
        _ => true,
    }
}

#[test]
fn only_what_suits_uneven_blocks_keeps_to_the_blocks_a_rank_knows() {
    for ranks in 1..=9 {
        for collective in Collective::ALL.into_iter().flat_map(|c| roots(c, ranks)) {
            for algorithm in Algorithm::all_for(collective, ranks) {
                let keeps = (0..ranks).all(|rank| {
                    let program = program(collective, algorithm, ranks, rank).unwrap();
                    let spans = program.moves.iter().flat_map(|step| step.span().chunks());
                    let mut blocks = spans.map(|chunk| program.shape(chunk) / program.pieces);
                    blocks.all(|block| knows(&program, block))
                });
                let suits = algorithm.suits_uneven(collective);
                // Among few ranks any algorithm may keep to them by chance.
                assert!(keeps || !suits, "{collective:?} {algorithm} {ranks}");
                assert!(suits || !keeps || ranks < 5, "{collective:?} {algorithm} {ranks}");
            }
        }
    }
}
