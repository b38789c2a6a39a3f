//! What schedules cost: exact bytes and steps against the textbook, seconds against closed forms,
//! and the quick prediction against the simulation.

use brigade_schedule::{
    Algorithm, Collective, Link, Network, TwoLevels, check, cost, even_cut, predict, program,
    sent_bytes,
};

const LINK: Link =
    Link { alpha_s: 2e-6, beta_s_per_byte: 1e-10, gamma_s_per_byte: 3e-11, crosses: false };
const ACROSS: Link =
    Link { alpha_s: 2e-5, beta_s_per_byte: 1e-9, gamma_s_per_byte: 3e-11, crosses: true };

fn log2_up(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}

/// Bytes sent by each rank, if chunks are cut evenly out of `total`.
fn sent(collective: Collective, algorithm: Algorithm, ranks: u32, total: u64) -> Vec<u64> {
    let of_rank = |rank| {
        let program = program(collective, algorithm, ranks, rank).unwrap();
        sent_bytes(&program, &even_cut(&program, total))
    };
    (0..ranks).map(of_rank).collect()
}

#[test]
fn bandwidth_optimal_algorithms_send_exactly_the_textbook_bytes() {
    use Algorithm::*;
    for ranks in 2..=64u32 {
        let parts = u64::from(ranks);
        let total = 2 * parts * 128;
        let hierarchical = Hierarchical { node_ranks: ranks / 2 };
        let reduces = [Ring, BiRing, Halving, Ordered, hierarchical];
        let scatters = [Ring, BiRing, Halving, Ordered, hierarchical, Pairwise, Direct];
        let gathers = [Ring, BiRing, Doubling, Bruck, hierarchical, Pairwise, Direct];
        let families = [
            (Collective::AllReduce, 2, &reduces[..]),
            (Collective::ReduceScatter, 1, &scatters[..]),
            (Collective::AllGather, 1, &gathers[..]),
            (Collective::AllToAll, 1, &[Pairwise, Direct][..]),
        ];
        for (collective, ways, algorithms) in families {
            for &algorithm in algorithms.iter().filter(|a| a.can_do(collective, ranks)) {
                let bytes = sent(collective, algorithm, ranks, total);
                let optimal = ways * total * (parts - 1) / parts;
                // A stand-in of a smaller last node sends for those it stands for.
                let even =
                    !matches!(algorithm, Hierarchical { node_ranks } if ranks % node_ranks > 0);
                if even {
                    assert!(
                        bytes.iter().all(|&bytes| bytes == optimal),
                        "{collective} {algorithm} {ranks}: {bytes:?}, not {optimal}"
                    );
                }
                let sum = optimal * parts;
                assert!(bytes.iter().sum::<u64>() >= sum, "{collective} {algorithm} {ranks}");
            }
        }
    }
}

#[test]
fn the_tables_beside_the_algorithms_are_right_about_the_most_bytes() {
    use Algorithm::*;
    for ranks in 2..=33u32 {
        let (root, p, d) = (ranks / 3, u64::from(ranks), u64::from(log2_up(ranks)));
        let n = 2 * p * 64;
        let core = u64::from(ranks.ilog2());
        let doubling = if ranks.is_power_of_two() { d } else { core + 1 };
        let most = [
            (Collective::AllReduce, DoubleTree, 2 * n),
            (Collective::AllReduce, Binomial, n * d),
            (Collective::AllReduce, Doubling, n * doubling),
            (Collective::AllReduce, Direct, n * (p - 1)),
            (Collective::AllReduce, ParameterServer { servers: 1 }, n * (p - 1)),
            (Collective::AllReduce, ParameterServer { servers: 2 }, n / 2 * (p - 1) + n / 2),
            (Collective::Broadcast { root }, Ring, n),
            (Collective::Broadcast { root }, DoubleTree, n),
            (Collective::Broadcast { root }, Binomial, n * d),
            (Collective::Broadcast { root }, Halving, 2 * n * (p - 1) / p),
            (Collective::Broadcast { root }, Direct, n * (p - 1)),
            (Collective::Reduce { root }, Ring, n),
            (Collective::Reduce { root }, DoubleTree, n),
            (Collective::Reduce { root }, Binomial, n),
            (Collective::Reduce { root }, Direct, n),
            (Collective::Reduce { root }, Ordered, n),
            (Collective::Gather { root }, Direct, n / p),
            (Collective::Scatter { root }, Direct, n / p * (p - 1)),
            (Collective::Scatter { root }, Binomial, n / p * (p - 1)),
        ];
        for (collective, algorithm, want) in most {
            let bytes = sent(collective, algorithm, ranks, n);
            let got = *bytes.iter().max().unwrap();
            assert!(got <= want, "{collective} {algorithm} {ranks}: {got}, table says {want}");
            let tight = ranks.is_power_of_two() && ranks > 4;
            assert!(!tight || got == want, "{collective} {algorithm} {ranks}: {got} < {want}");
        }
    }
}

#[test]
fn steps_are_as_many_as_the_tables_say() {
    use Algorithm::*;
    for ranks in 2..=40 {
        let (root, d) = (ranks - 1, log2_up(ranks));
        let surplus = if ranks.is_power_of_two() { 0 } else { 1 };
        let known = [
            (Collective::AllReduce, Ring, 2 * (ranks - 1)),
            (Collective::AllReduce, BiRing, 2 * (ranks - 1)),
            (Collective::AllReduce, Direct, 1),
            (Collective::AllReduce, Ordered, 2),
            (Collective::AllReduce, ParameterServer { servers: 1 }, 2),
            (Collective::ReduceScatter, Ring, ranks - 1),
            (Collective::ReduceScatter, Direct, 1),
            (Collective::AllGather, Ring, ranks - 1),
            (Collective::Broadcast { root }, Ring, ranks - 1),
            (Collective::Reduce { root }, Ring, ranks - 1),
            (Collective::Scatter { root }, Direct, 1),
            (Collective::Barrier, Doubling, d),
            (Collective::Barrier, Direct, 1),
        ];
        for (collective, algorithm, steps) in known {
            let report = check(collective, algorithm, ranks).unwrap();
            assert_eq!(report.steps, steps, "{collective} {algorithm} {ranks}");
        }
        let at_most = [
            (Collective::AllReduce, Doubling, d + surplus),
            (Collective::AllToAll, Bruck, d),
            (Collective::AllGather, Bruck, d),
            (Collective::AllGather, Doubling, d),
            (Collective::ReduceScatter, Halving, d),
            (Collective::AllReduce, Halving, 2 * d),
            (Collective::AllReduce, DoubleTree, 2 * d),
            (Collective::AllReduce, Binomial, 2 * d),
            (Collective::Broadcast { root }, DoubleTree, d),
            (Collective::Broadcast { root }, Binomial, d),
            (Collective::Broadcast { root }, Halving, 2 * d),
            (Collective::Reduce { root }, DoubleTree, d),
            (Collective::Gather { root }, Binomial, d),
        ];
        for (collective, algorithm, steps) in at_most {
            let report = check(collective, algorithm, ranks).unwrap();
            let (got, exact) = (report.steps, ranks.is_power_of_two());
            assert!(
                got <= steps && (got == steps || !exact),
                "{collective} {algorithm} {ranks}: {got}"
            );
        }
    }
}

#[test]
fn doubling_between_nodes_takes_the_steps_and_bytes_of_its_table() {
    for (node_ranks, nodes) in (2..=6).flat_map(|g| (2..=9).map(move |n| (g, n))) {
        let (ranks, algorithm) = (node_ranks * nodes, Algorithm::NodeDoubling { node_ranks });
        let (log, even) = (nodes.ilog2(), nodes.is_power_of_two());
        let report = check(Collective::AllReduce, algorithm, ranks).unwrap();
        let most = 2 + log + if even { 0 } else { 2 };
        let steps = report.steps;
        assert!(steps <= most && (steps == most || !even), "{algorithm} {ranks}: {steps}");
        let column = 640;
        let total = column * u64::from(node_ranks);
        let inside = 2 * column * u64::from(node_ranks - 1);
        let across = column * u64::from(log + u32::from(!even));
        let bytes = sent(Collective::AllReduce, algorithm, ranks, total);
        assert_eq!(bytes.iter().max(), Some(&(inside + across)), "{algorithm} {ranks}");
    }
}

#[test]
fn the_simulation_agrees_with_closed_forms() {
    let Link { alpha_s: a, beta_s_per_byte: b, gamma_s_per_byte: c, .. } = LINK;
    for ranks in [2u32, 3, 4, 7, 8, 16, 33] {
        let (p, d) = (f64::from(ranks), f64::from(log2_up(ranks)));
        let bytes = u64::from(ranks) * 4096;
        let n = bytes as f64;
        let seconds = |algorithm| {
            cost(Collective::AllReduce, algorithm, ranks, bytes, |_, _| LINK).unwrap().seconds
        };
        let ring = 2.0 * (p - 1.0) * (a + b * n / p) + (p - 1.0) * c * n / p;
        assert!((seconds(Algorithm::Ring) / ring - 1.0).abs() < 1e-9, "ring {ranks}");
        let halving = 2.0 * d * a + 2.0 * (p - 1.0) / p * n * b + (p - 1.0) / p * n * c;
        // Chunks of one message are passed on one by one, and early ones may be in the way of
        // others.
        let got = seconds(Algorithm::Halving) / halving;
        assert!((0.6..1.2).contains(&got), "halving {ranks}: {got}");
        assert!(ranks > 2 || (got - 1.0).abs() < 1e-9, "halving {ranks}: {got}");
        if ranks.is_power_of_two() && n <= 65_536.0 {
            // A slot is folded into when it has been sent.
            let doubling = d * (a.max(b * n) + (b + c) * n);
            assert!((seconds(Algorithm::Doubling) / doubling - 1.0).abs() < 1e-9, "{ranks}");
        }
    }
}

#[test]
fn the_prediction_is_near_the_simulation() {
    let far = |from: u32, to: u32| if from / 4 == to / 4 { LINK } else { ACROSS };
    let mut worst = (1.0f64, String::new());
    for ranks in [1, 2, 3, 6, 8, 24, 32] {
        for collective in Collective::ALL {
            for algorithm in Algorithm::all_for(collective, ranks) {
                for bytes in [0, 8, 4096, 1 << 20, 1 << 28] {
                    for (kind, links) in
                        [("flat", (|_, _| LINK) as fn(u32, u32) -> Link), ("nodes", far)]
                    {
                        let quick = predict(collective, algorithm, ranks, bytes, links).unwrap();
                        let slow = cost(collective, algorithm, ranks, bytes, links).unwrap();
                        if ranks == 1 {
                            assert_eq!((quick, slow.seconds), (0.0, 0.0));
                            continue;
                        }
                        let ratio = (quick / slow.seconds).max(slow.seconds / quick);
                        if ratio > 1.9 || ratio > worst.0 {
                            let name = format!("{collective} {algorithm} {ranks} {bytes} B {kind}");
                            println!("{:.2} {name}", quick / slow.seconds);
                            if ratio > worst.0 {
                                worst = (ratio, name);
                            }
                        }
                    }
                }
            }
        }
    }
    println!("worst: {worst:?}");
    assert!(worst.0 < 2.5);
}

/// What stays inside has a port of its own, so on slow cables a long call takes what they take.
#[test]
fn a_hierarchy_takes_what_its_slow_cables_take() {
    let across = Link { beta_s_per_byte: 8e-9, ..ACROSS };
    for (node_ranks, nodes, most) in [(2, 2, 1.05), (4, 2, 1.1), (2, 4, 1.2), (8, 8, 1.4)] {
        let (ranks, bytes) = (node_ranks * nodes, 1 << 24);
        let network = TwoLevels { node_ranks, inside: LINK, across };
        let algorithm = Algorithm::Hierarchical { node_ranks };
        let links = |from, to| network.link(from, to);
        let seconds = cost(Collective::AllReduce, algorithm, ranks, bytes, links).unwrap().seconds;
        let parts = 2.0 * f64::from(nodes - 1) / f64::from(nodes);
        let cable = parts * bytes as f64 / f64::from(node_ranks) * across.beta_s_per_byte;
        let ratio = seconds / cable;
        assert!((1.0..most).contains(&ratio), "{nodes} nodes of {node_ranks}: {ratio}");
    }
}

#[test]
fn two_levels_are_priced_by_counting_as_they_are_one_by_one() {
    for (ranks, node_ranks) in [(2, 1), (7, 3), (8, 8), (9, 12), (24, 5), (33, 4)] {
        let network = TwoLevels { node_ranks, inside: LINK, across: ACROSS };
        let one_by_one = |from, to| network.link(from, to);
        for collective in Collective::ALL.into_iter().map(|c| c.with_root(ranks - 1)) {
            for algorithm in Algorithm::all_for(collective, ranks) {
                let price = predict(collective, algorithm, ranks, 4096, network).unwrap();
                let slow = predict(collective, algorithm, ranks, 4096, one_by_one).unwrap();
                let what = format!("{collective} {algorithm} {ranks} by {node_ranks}");
                assert!((price / slow - 1.0).abs() < 1e-9, "{what}: {price} {slow}");
            }
        }
    }
}

#[test]
fn what_cannot_be_done_has_no_price() {
    for ranks in 1..=9 {
        for collective in Collective::ALL.into_iter().map(|c| c.with_root(2)) {
            let numbered = (0..10).flat_map(|number| {
                [
                    Algorithm::Hierarchical { node_ranks: number },
                    Algorithm::NodeDoubling { node_ranks: number },
                    Algorithm::ParameterServer { servers: number },
                ]
            });
            let all = Collective::ALL.into_iter().flat_map(|c| Algorithm::all_for(c, 8));
            for algorithm in all.chain(numbered) {
                let can = algorithm.can_do(collective, ranks);
                let name = format!("{collective:?} {algorithm} {ranks}");
                assert_eq!(
                    predict(collective, algorithm, ranks, 8, |_, _| LINK).is_some(),
                    can,
                    "{name}"
                );
                assert_eq!(
                    cost(collective, algorithm, ranks, 8, |_, _| LINK).is_some(),
                    can,
                    "{name}"
                );
            }
        }
    }
}
