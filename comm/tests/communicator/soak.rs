//! Long random lists of calls on one world, each shape several times in another order: what one
//! call leaves behind must not show in the next.

use std::sync::Arc;

use brigade_comm::{Dtype, Op, Settings};
use brigade_schedule::Collective;

use crate::world::{Case, Judged, TRANSPORTS, check, judge, over};

/// More than a key of a plan is compared with at once.
const SHAPES: usize = 100;

fn any_case(random: &mut fastrand::Rng, ranks: u32) -> Case {
    let root = random.u32(..ranks);
    let collectives = [
        Collective::AllReduce,
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Broadcast { root },
        Collective::Reduce { root },
        Collective::AllToAll,
        Collective::Gather { root },
        Collective::Scatter { root },
        Collective::Barrier,
    ];
    let collective = collectives[random.usize(..collectives.len())];
    let dtype = Dtype::ALL[random.usize(..Dtype::ALL.len())];
    let fitting: Vec<Op> = Op::PLAIN.into_iter().filter(|op| op.supports(dtype)).collect();
    let op = fitting[random.usize(..fitting.len())].clone();
    let most = [4, 100, 3000, 40_000][random.usize(..4)];
    let blocks = collective.blocks(ranks) as usize;
    let counts = match collective {
        Collective::Barrier => vec![0],
        _ if blocks > 1 && random.bool() => (0..blocks).map(|_| random.usize(..most)).collect(),
        _ => vec![random.usize(..most)],
    };
    Case { collective, dtype, op, counts, in_place: random.bool() }
}

/// Every shape three times, in random order.
fn shuffled(random: &mut fastrand::Rng, shapes: &[Arc<Judged>]) -> Vec<Arc<Judged>> {
    let mut list = [shapes, shapes, shapes].concat();
    random.shuffle(&mut list);
    list
}

#[test]
fn long_random_lists_of_calls_agree_with_the_judge() {
    for ranks in [2, 3, 4, 6] {
        for transport in TRANSPORTS {
            let seed = u64::from(ranks) * 1000 + transport.len() as u64;
            eprintln!("{transport}, {ranks} ranks, seed {seed}");
            let mut random = fastrand::Rng::with_seed(seed);
            let cases = (0..SHAPES).map(|_| any_case(&mut random, ranks)).collect();
            let list = shuffled(&mut random, &judge(ranks, cases));
            // Small windows, so that some calls take several.
            let settings = Settings { window_bytes: 32 << 10, ..over(transport) };
            check(ranks, &settings, &list);
        }
    }
}
