//! What the ranks of one seeded world call.

use std::fmt;

use brigade_comm::{Call, Counts, Dtype, Op};
use brigade_schedule::{Algorithm, Collective};
use fastrand::Rng;

use crate::TRANSPORTS;

/// In what the faulty ranks differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Twist {
    Collective,
    Count,
    Type,
    Operator,
    Root,
    Counts,
    ExtraCall,
    /// The call is the same, and rules for its algorithm are not.
    Rules,
}

pub(crate) const TWISTS: [Twist; 8] = [
    Twist::Collective,
    Twist::Count,
    Twist::Type,
    Twist::Operator,
    Twist::Root,
    Twist::Counts,
    Twist::ExtraCall,
    Twist::Rules,
];

/// One world and what its ranks call.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) transport: &'static str,
    pub(crate) algorithm: Option<Algorithm>,
    /// The algorithm by the rules of those who are not faulty, and of those who are.
    pub(crate) rules: Option<[Algorithm; 2]>,
    pub(crate) twist: Twist,
    /// Calls that all ranks make alike before.
    pub(crate) good_calls: usize,
    pub(crate) faulty: Vec<bool>,
    /// What each rank calls, in order; afterwards all call barriers.
    pub(crate) calls: Vec<Vec<Call>>,
}

impl Trial {
    /// The trial of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let twist = TWISTS[seed as usize % TWISTS.len()];
        let ranks = rng.usize(2..=5);
        let base = base_call(&mut rng, twist, ranks);
        let mut faulty = vec![false; ranks];
        faulty[rng.usize(0..ranks)] = true;
        if ranks > 2 && rng.bool() && twist != Twist::Counts {
            let second = rng.usize(0..ranks);
            faulty[second] = true;
        }
        let other = twisted(&mut rng, &base, twist, ranks);
        let mut calls: Vec<Vec<Call>> = Vec::new();
        for (rank, faulty) in faulty.iter().enumerate() {
            calls.push(match (faulty, twist) {
                (false, _) => vec![base.clone()],
                (true, Twist::ExtraCall) => vec![other.clone(), base.clone()],
                (true, Twist::Counts) => vec![with_other_counts(&base, ranks, rank)],
                (true, _) => vec![other.clone()],
            });
        }
        if let Counts::PerPair { .. } = base.counts {
            share_pairs(&mut calls, &faulty);
        }
        let mut algorithms = Algorithm::all_for(base.collective, ranks as u32);
        let algorithm = rng.bool().then(|| algorithms[rng.usize(..algorithms.len())]);
        let rules = (twist == Twist::Rules).then(|| {
            rng.shuffle(&mut algorithms);
            [algorithms[0], algorithms[1]]
        });
        let algorithm = algorithm.filter(|_| rules.is_none());
        let transport = TRANSPORTS[seed as usize / TWISTS.len() % 3];
        // Those are all-reduces, too.
        let is_ruled = rules.is_some() && base.collective == Collective::AllReduce;
        let good_calls = if is_ruled { 0 } else { rng.usize(0..4) };
        Self { transport, algorithm, rules, twist, good_calls, faulty, calls }
    }

    /// The one rule of a rank's file.
    pub(crate) fn rule_of(&self, rank: usize) -> Option<String> {
        let algorithm = self.rules?[usize::from(self.faulty[rank])];
        let collective = self.calls[rank][0].collective;
        Some(format!("{collective} {} * {algorithm}\n", self.calls.len()))
    }

    /// Whether `text` names the call of `rank`. Uneven counts of another rank are known by a
    /// digest at the most.
    pub(crate) fn is_named(&self, rank: usize, text: &str) -> bool {
        let call = &self.calls[rank][0];
        if let Some(rules) = self.rules {
            let (ranks, own) = (self.calls.len(), rules[usize::from(self.faulty[rank])]);
            let is_own = |by: &str| by == own.name() || *by == format!("{own}({ranks})");
            // Which settings differ stands behind one of the two.
            let text = text.split_once(';').map_or(text, |(call, _)| call);
            if !text.split_once(" by ").is_some_and(|(_, by)| is_own(by)) {
                return false;
            }
        }
        match call.counts {
            Counts::Even(_) => text.contains(&call.to_string()),
            _ => text.contains(&format!(" {}", call.collective.name())),
        }
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} over {}", self.twist, self.transport)?;
        if let Some(algorithm) = self.algorithm {
            write!(f, " by {algorithm}")?;
        }
        if let Some([right, wrong]) = self.rules {
            write!(f, " by {right}, and {wrong} on faulty ranks")?;
        }
        write!(f, " after {} good calls", self.good_calls)?;
        for (rank, calls) in self.calls.iter().enumerate() {
            let sign = if self.faulty[rank] { "faulty rank" } else { "rank" };
            let calls: Vec<String> = calls.iter().map(Call::to_string).collect();
            write!(f, "; {sign} {rank}: {}", calls.join(", "))?;
        }
        Ok(())
    }
}

fn base_call(rng: &mut Rng, twist: Twist, ranks: usize) -> Call {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter};
    let root = rng.u32(0..ranks as u32);
    let scatter = Collective::Scatter { root };
    let choice: &[Collective] = match twist {
        Twist::Operator => &[AllReduce, ReduceScatter, Reduce { root }],
        Twist::Root => &[Broadcast { root }, Reduce { root }, Gather { root }, scatter],
        Twist::Counts => &[AllGather, ReduceScatter, Gather { root }, scatter, AllToAll],
        _ => &[
            AllReduce,
            ReduceScatter,
            AllGather,
            Broadcast { root },
            Reduce { root },
            AllToAll,
            Gather { root },
            scatter,
        ],
    };
    let collective = choice[rng.usize(..choice.len())];
    let count = [0, 1, 7, 1000, 200_000][rng.usize(..5)];
    let dtype = [Dtype::F32, Dtype::I32, Dtype::F64, Dtype::U8][rng.usize(..4)];
    let call = Call::new(collective, dtype, Op::Sum, count);
    if twist != Twist::Counts {
        return call;
    }
    let lengths: Vec<usize> = (0..ranks).map(|_| rng.usize(0..500)).collect();
    let counts = match collective {
        // Every pair has the same length here; rows and columns would only be shuffled otherwise.
        AllToAll => {
            let pairs: Vec<usize> = vec![lengths[0] + 1; ranks];
            Counts::PerPair { to: pairs.clone().into(), from: pairs.into() }
        }
        _ => Counts::PerRank(lengths.into()),
    };
    Call { counts, ..call }
}

/// What the faulty ranks call in place of `base`, or before it.
fn twisted(rng: &mut Rng, base: &Call, twist: Twist, ranks: usize) -> Call {
    let mut other = base.clone();
    match twist {
        Twist::Collective => {
            let root = rng.u32(0..ranks as u32);
            let all = Collective::ALL.into_iter().map(|collective| match collective {
                Collective::Broadcast { .. } => Collective::Broadcast { root },
                Collective::Reduce { .. } => Collective::Reduce { root },
                Collective::Gather { .. } => Collective::Gather { root },
                Collective::Scatter { .. } => Collective::Scatter { root },
                other => other,
            });
            let others: Vec<_> = all.filter(|it| it.name() != base.collective.name()).collect();
            other.collective = others[rng.usize(..others.len())];
            if other.collective == Collective::Barrier {
                other.counts = Counts::Even(0);
            }
        }
        Twist::Count => {
            let Counts::Even(count) = base.counts else { unreachable!("an even call") };
            other.counts = Counts::Even([count + 1, count * 2 + 1, count / 2 + 1][rng.usize(..3)]);
            if other.counts == base.counts {
                other.counts = Counts::Even(count + 64);
            }
        }
        Twist::Type => {
            let dtypes = [Dtype::F32, Dtype::I32, Dtype::F64, Dtype::U8];
            let others: Vec<_> = dtypes.into_iter().filter(|it| *it != base.dtype).collect();
            other.dtype = others[rng.usize(..3)];
        }
        Twist::Operator => other.op = [Op::Max, Op::Min, Op::Prod][rng.usize(..3)].clone(),
        Twist::Root => {
            let shift = rng.u32(1..ranks as u32);
            let root = |old: u32| (old + shift) % ranks as u32;
            other.collective = match base.collective {
                Collective::Broadcast { root: old } => Collective::Broadcast { root: root(old) },
                Collective::Reduce { root: old } => Collective::Reduce { root: root(old) },
                Collective::Gather { root: old } => Collective::Gather { root: root(old) },
                Collective::Scatter { root: old } => Collective::Scatter { root: root(old) },
                other => unreachable!("{other} has no root"),
            };
        }
        Twist::Counts | Twist::Rules => {}
        Twist::ExtraCall => {
            let count = rng.usize(0..3000);
            other = Call::new(Collective::AllReduce, Dtype::I64, Op::Max, count);
        }
    }
    other
}

/// The call of `rank` with lengths that the others do not share.
fn with_other_counts(base: &Call, ranks: usize, rank: usize) -> Call {
    let more = |counts: &[usize], at: usize| {
        let mut counts = counts.to_vec();
        counts[at] += 3;
        counts.into()
    };
    let counts = match (&base.counts, base.collective) {
        // A root that expects more of its neighbour, or a rank that brings more itself.
        (Counts::PerRank(counts), Collective::Gather { root } | Collective::Scatter { root })
            if root as usize == rank =>
        {
            Counts::PerRank(more(counts, (rank + 1) % ranks))
        }
        (Counts::PerRank(counts), _) => Counts::PerRank(more(counts, rank)),
        (Counts::PerPair { to, from }, _) => {
            Counts::PerPair { to: more(to, (rank + 1) % ranks), from: from.clone() }
        }
        (Counts::Even(_), _) => unreachable!("an uneven call"),
    };
    Call { counts, ..base.clone() }
}

/// Give every pair a length of its own, on both sides; what the faulty ranks add stays.
fn share_pairs(calls: &mut [Vec<Call>], faulty: &[bool]) {
    let ranks = calls.len();
    for (rank, list) in calls.iter_mut().enumerate() {
        let Counts::PerPair { to, from } = &list[0].counts else { unreachable!("pairs") };
        let (mut to, mut from) = (to.to_vec(), from.to_vec());
        for peer in 0..ranks {
            to[peer] += 10 * rank + peer;
            from[peer] += 10 * peer + rank;
        }
        let counts = Counts::PerPair { to: to.into(), from: from.into() };
        list[0].counts = counts;
    }
    assert!(faulty.iter().any(|faulty| *faulty));
}
