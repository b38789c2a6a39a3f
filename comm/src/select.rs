//! Which algorithm a call is carried out by.
//!
//! Every rank must choose alike, so the choice looks only at what all ranks know: the call, the
//! number of ranks, the settings, and how ranks lie on nodes.

use brigade_schedule::{Algorithm, Collective, Program, program};

use crate::call::{Call, Counts};
use crate::choice::{Choice, Reason};
use crate::nodes::Nodes;
use crate::{Error, Settings};

/// The facts of a communicator that a choice may depend on.
#[derive(Clone, Debug)]
pub(crate) struct Selector {
    /// Up to this many bytes a step more costs more than the bytes it saves.
    pub(crate) small_bytes: usize,
    /// How ranks lie on nodes, if on several that have several.
    pub(crate) nodes: Option<Nodes>,
}

impl Selector {
    /// The algorithm for `call` among `ranks`, and why it is that one.
    pub(crate) fn choose(
        &self,
        call: &Call,
        ranks: u32,
        settings: &Settings,
    ) -> Result<Choice, Error> {
        self.choose_among(call, ranks, settings, |_| true)
    }

    /// The same, of those algorithms that `may` be taken.
    pub(crate) fn choose_among(
        &self,
        call: &Call,
        ranks: u32,
        settings: &Settings,
        may: impl Fn(Algorithm) -> bool,
    ) -> Result<Choice, Error> {
        let choice = |algorithm, reason| Ok(Choice { algorithm, reason });
        let collective = call.collective;
        if settings.ordered && collective.folds() {
            return choice(Algorithm::Ordered, Reason::Ordered);
        }
        let fits = |algorithm: &Algorithm| {
            may(*algorithm)
                && algorithm.can_do(collective, ranks)
                && (!call.is_uneven() || algorithm.suits_uneven(collective))
        };
        if let Some(wish) = settings.algorithm.filter(fits) {
            return choice(wish, Reason::Named);
        }
        let bytes = self.bytes(call, ranks);
        // Of uneven calls not all ranks know the size.
        let tuning = settings.tuning.as_ref().filter(|_| !call.is_uneven());
        let tuned = tuning.and_then(|tuning| tuning.choose(collective, ranks, bytes as u64));
        if let Some(tuned) = tuned.filter(fits) {
            return choice(tuned, Reason::Rule);
        }
        if let Some(by_nodes) = self.across_nodes(collective, bytes, ranks).filter(fits) {
            return choice(by_nodes, Reason::Nodes);
        }
        let wishes = self.wishes(collective, bytes, ranks).iter().copied();
        let mut wishes = wishes.chain(Algorithm::all_for(collective, ranks));
        match wishes.find(fits) {
            Some(wish) if bytes <= self.small_bytes => choice(wish, Reason::Short),
            Some(wish) => choice(wish, Reason::Long),
            None => Err(Error::invalid(format!("no algorithm does {call} with {ranks} ranks"))),
        }
    }

    /// What suits a group that lies on several nodes: no flat algorithm sends fewer bytes from node
    /// to node, or takes fewer steps between them, but for a very short all-reduce among powers of
    /// two. Where nodes have different numbers of ranks, a ring from node to node sends the fewest.
    fn across_nodes(&self, collective: Collective, bytes: usize, ranks: u32) -> Option<Algorithm> {
        use Algorithm::{Hierarchical, NodeDoubling, Ring};
        let is_long = bytes > self.small_bytes;
        match (collective, self.nodes.as_ref()?.each) {
            (Collective::AllReduce, Some(node_ranks)) => {
                let are_powers = ranks.is_power_of_two() && node_ranks.is_power_of_two();
                if are_powers && bytes <= self.small_bytes / 4 {
                    return None;
                }
                let column = bytes / node_ranks as usize;
                let doubles = self.doubles_across(column, ranks.div_ceil(node_ranks));
                Some(if doubles {
                    NodeDoubling { node_ranks }
                } else {
                    Hierarchical { node_ranks }
                })
            }
            (Collective::ReduceScatter | Collective::AllGather, Some(node_ranks)) => {
                Some(Hierarchical { node_ranks })
            }
            (Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather, None)
                if is_long =>
            {
                Some(Ring)
            }
            _ => None,
        }
    }

    /// Whether a column of so many bytes, of which each rank of a node has one, goes sooner by
    /// doubling than by halving and doubling: whether the steps that this saves between `nodes` are
    /// worth the bytes that it costs. A step is worth some 32 KiB on a network of 25 us and 10
    /// Gbit/s; columns beyond 64 KiB are long on any.
    fn doubles_across(&self, column: usize, nodes: u32) -> bool {
        let (log, nodes) = (nodes.ilog2() as usize, nodes as usize);
        let steps = if nodes.is_power_of_two() { log } else { log + 2 };
        let halved = 2 * (if nodes.is_power_of_two() { log } else { log + 1 });
        // In parts of a column: it takes `steps` of them, and the other way 2(N-1)/N.
        let more_parts = steps * nodes - 2 * (nodes - 1);
        let saved = halved.saturating_sub(steps) * 2 * self.small_bytes;
        column <= 4 * self.small_bytes && column * more_parts <= saved * nodes
    }

    /// The program of `rank` for a call by `algorithm`.
    pub(crate) fn program(
        &self,
        call: &Call,
        algorithm: Algorithm,
        (rank, ranks): (u32, u32),
    ) -> Result<Program, Error> {
        let of = |collective, rank| {
            let program = program(collective, algorithm, ranks, rank);
            program.ok_or_else(|| Error::invalid(format!("{algorithm} cannot do {call}")))
        };
        let collective = call.collective;
        let Some(order) = self.order(collective, algorithm) else { return of(collective, rank) };
        let place = order.iter().position(|&one| one == rank).expect("an order of all ranks");
        // The root, if there is one, comes first.
        Ok(of(collective.with_root(0), place as u32)?.renamed(&order))
    }

    /// The ranks in the order in which `algorithm` calls them, if that is not their own.
    pub(crate) fn order(&self, collective: Collective, algorithm: Algorithm) -> Option<Vec<u32>> {
        self.nodes.as_ref().and_then(|nodes| nodes.order(collective, algorithm))
    }

    /// Algorithms by preference for so many bytes.
    fn wishes(&self, collective: Collective, bytes: usize, ranks: u32) -> &'static [Algorithm] {
        use Algorithm::*;
        let small = bytes <= self.small_bytes;
        match (collective, small) {
            (Collective::AllReduce, true) => &[Doubling],
            (Collective::AllReduce, false) if ranks.is_power_of_two() => &[Halving, Ring],
            (Collective::AllReduce, false) => &[Ring],
            (Collective::ReduceScatter, true) => &[Halving, Pairwise],
            (Collective::ReduceScatter, false) => &[Pairwise, Ring],
            (Collective::AllGather, true) => &[Bruck, Doubling],
            (Collective::AllGather, false) => &[Ring],
            (Collective::Broadcast { .. } | Collective::Reduce { .. }, true) => &[Binomial],
            (Collective::Broadcast { .. } | Collective::Reduce { .. }, false) => &[Ring, Binomial],
            (Collective::AllToAll, true) if ranks > 8 => &[Bruck, Pairwise],
            (Collective::AllToAll, _) => &[Pairwise],
            (Collective::Gather { .. } | Collective::Scatter { .. }, true) if ranks > 4 => {
                &[Binomial, Direct]
            }
            (Collective::Gather { .. } | Collective::Scatter { .. }, _) => &[Direct],
            (Collective::Barrier, _) => &[Doubling],
        }
    }

    /// The size of a call, as far as every rank knows it.
    fn bytes(&self, call: &Call, ranks: u32) -> usize {
        let elems = match &call.counts {
            Counts::Even(count) => count * call.collective.blocks(ranks).min(ranks) as usize,
            Counts::PerRank(counts)
                if matches!(call.collective, Collective::AllGather | Collective::ReduceScatter) =>
            {
                counts.iter().sum()
            }
            // Not all ranks know all lengths; what suits uneven blocks does not depend on them.
            _ => 0,
        };
        elems * call.dtype.size()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::codes::{code, number};
    use crate::{Dtype, Op, Tuning};

    /// By rules alone, with another wish, where results are ordered, and where numbers are barred.
    #[test]
    fn rules_are_followed_by_calls_that_they_fit_and_by_no_others() {
        let selector = Selector { small_bytes: 1000, nodes: None };
        let all = (1..=9).flat_map(|ranks| Collective::ALL.map(|collective| (ranks, collective)));
        for (ranks, collective) in all {
            let algorithms = Algorithm::all_for(collective, ranks);
            for (place, &tuned) in algorithms.iter().enumerate() {
                let count = [0, 3, 5000][place % 3];
                let rules = Tuning::of(&format!("{collective} {ranks} * {tuned}"));
                let rules = Settings { tuning: Some(Arc::new(rules)), ..Settings::default() };
                let ordered = Settings { ordered: true, ..rules.clone() };
                let wish = Settings { algorithm: algorithms.first().copied(), ..rules.clone() };
                let even = Call::new(collective.with_root(ranks - 1), Dtype::F32, Op::Sum, count);
                let counts = Counts::PerRank(vec![count; ranks as usize].into());
                let uneven = Call { counts, ..even.clone() };
                let of = |call: &Call, settings: &Settings| {
                    selector.choose(call, ranks, settings).unwrap()
                };
                let plain = |call| of(call, &Settings::default()).algorithm;
                let by = |call, settings| of(call, settings).algorithm;

                assert_eq!(by(&even, &rules), tuned);
                assert_eq!(of(&even, &rules).reason, Reason::Rule);
                assert_eq!(of(&even, &wish).reason, Reason::Named);
                assert_eq!(by(&uneven, &rules), plain(&uneven));
                assert!(by(&uneven, &rules).suits_uneven(collective), "{uneven} among {ranks}");
                assert_eq!(by(&even, &wish), algorithms[0]);
                let in_order = if collective.folds() { Algorithm::Ordered } else { tuned };
                assert_eq!(by(&even, &ordered), in_order);
                let may = |algorithm| number(code(algorithm)).is_none();
                let plainly = selector.choose_among(&even, ranks, &rules, may).unwrap();
                assert_eq!(plainly.algorithm, if may(tuned) { tuned } else { plain(&even) });
            }
        }
    }

    #[test]
    fn what_crosses_between_nodes_goes_by_them() {
        let by = |each: Option<u32>, collective: Collective, bytes: usize, ranks: u32| {
            let nodes = each.and_then(|each| Nodes::of((0..ranks).map(|rank| Some(rank / each))));
            let selector = Selector { small_bytes: 1000, nodes };
            let blocks = collective.blocks(ranks) as usize;
            let call = Call::new(collective, Dtype::U8, Op::Sum, bytes / blocks);
            selector.choose(&call, ranks, &Settings::default()).unwrap().algorithm
        };
        let hierarchical = Algorithm::Hierarchical { node_ranks: 3 };
        for ranks in [6, 7, 9, 12] {
            for collective in Collective::ALL {
                for bytes in [1, 900, 3000, 100_000] {
                    let flat = by(None, collective, bytes, ranks);
                    let want = match collective {
                        Collective::AllReduce if bytes <= 3000 => {
                            Algorithm::NodeDoubling { node_ranks: 3 }
                        }
                        Collective::AllReduce
                        | Collective::ReduceScatter
                        | Collective::AllGather => hierarchical,
                        _ => flat,
                    };
                    assert_eq!(by(Some(3), collective, bytes, ranks), want, "{collective} {bytes}");
                    assert_ne!(flat, hierarchical);
                }
            }
        }
        // Powers of two cross as often when they double among all.
        let reduce = |each, bytes, ranks| by(Some(each), Collective::AllReduce, bytes, ranks);
        let short = |node_ranks| Algorithm::NodeDoubling { node_ranks };
        assert_eq!(reduce(2, 250, 8), Algorithm::Doubling);
        assert_eq!((reduce(2, 251, 8), reduce(2, 250, 12)), (short(2), short(2)));
        assert_eq!(reduce(5, 250, 8), short(5), "the last node is smaller");
        // How long a column is worth the steps that are saved.
        let longest = |nodes: u32| {
            let doubles = |&bytes: &usize| reduce(2, 2 * bytes, 2 * nodes) == short(2);
            (200..=5000).rev().find(doubles)
        };
        let longest: Vec<_> = [2, 3, 4, 5, 8, 16, 64].map(longest).into();
        let wanted = [4000, 1200, 4000, 1666, 4000, 3764, 2976].map(Some);
        assert_eq!(longest, wanted);
    }

    #[test]
    fn where_nodes_differ_long_calls_go_around_them() {
        let nodes = Nodes::of("aabbbcaa".chars().map(Some));
        for nodes in [None, nodes] {
            let selector = Selector { small_bytes: 1000, nodes };
            for collective in Collective::ALL {
                let by = |bytes| {
                    let count = bytes / collective.blocks(8) as usize;
                    let call = Call::new(collective, Dtype::U8, Op::Sum, count);
                    selector.choose(&call, 8, &Settings::default()).unwrap().algorithm
                };
                let short = Selector { nodes: None, ..selector.clone() };
                let call = Call::new(collective, Dtype::U8, Op::Sum, 1);
                let short = short.choose(&call, 8, &Settings::default()).unwrap();
                assert_eq!((by(64), short.reason), (short.algorithm, Reason::Short));
                let halves = [Collective::AllReduce, Collective::ReduceScatter];
                if halves.contains(&collective) {
                    assert_eq!(by(100_000) == Algorithm::Ring, selector.nodes.is_some());
                }
            }
        }
    }
}
