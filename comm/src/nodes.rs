//! How the ranks of a group lie on its nodes.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

use brigade_schedule::{Algorithm, Collective};

/// Several nodes, of which one at least has several ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// How many ranks each node has, but for the last, which may have fewer; `None` if they differ
    /// otherwise.
    pub(crate) each: Option<u32>,
    /// The ranks of each node.
    nodes: Vec<Vec<u32>>,
}

impl Nodes {
    /// By the node of each rank, if it is known.
    pub(crate) fn of<N: Eq + Hash>(of_ranks: impl Iterator<Item = Option<N>>) -> Option<Self> {
        let known = of_ranks.collect::<Option<Vec<N>>>()?;
        let mut nodes: Vec<Vec<u32>> = Vec::new();
        for (rank, number) in numbers(known.into_iter().map(Some)).into_iter().enumerate() {
            if number == nodes.len() {
                nodes.push(Vec::new());
            }
            nodes[number].push(rank as u32);
        }
        let most = nodes.iter().map(Vec::len).max()?;
        let fewer = nodes.iter().filter(|ranks| ranks.len() < most).count();
        if fewer <= 1 {
            nodes.sort_by_key(|ranks| Reverse(ranks.len()));
        }
        let each = (fewer <= 1).then_some(most as u32);
        (nodes.len() > 1 && most > 1).then_some(Self { each, nodes })
    }

    /// What calls the ranks node by node, if `algorithm` is for ranks that lie like that, and they
    /// do not. The root comes first, and its node: a line along the ranks then crosses to each
    /// other node once.
    pub(crate) fn order(&self, collective: Collective, algorithm: Algorithm) -> Option<Vec<u32>> {
        if !self.is_by_place(collective, algorithm) {
            return None;
        }
        let mut nodes = self.nodes.clone();
        if let Some(root) = collective.root() {
            let home = nodes.iter().position(|ranks| ranks.contains(&root))?;
            nodes[..=home].rotate_right(1);
            let place = nodes[0].iter().position(|&rank| rank == root)?;
            nodes[0][..=place].rotate_right(1);
        }
        let order = nodes.concat();
        (!order.is_sorted()).then_some(order)
    }

    /// Whether it matters by which numbers `algorithm` goes. Where everybody speaks to everybody it
    /// does not; and where blocks of ranks travel together, those with other numbers would be
    /// messages of their own.
    fn is_by_place(&self, collective: Collective, algorithm: Algorithm) -> bool {
        use Algorithm::*;
        let has_blocks = collective.blocks(2) > 1;
        match algorithm {
            Hierarchical { node_ranks } | NodeDoubling { node_ranks } => {
                self.each == Some(node_ranks)
            }
            Ring | BiRing => true,
            DoubleTree | Halving | Doubling | Binomial => !has_blocks,
            // Whose folds are in the order of ranks, or who are few and go first.
            Bruck | Pairwise | Direct | Ordered | ParameterServer { .. } => false,
        }
    }
}

/// The number of each rank's node, in the order in which nodes come up; where it is not known, one
/// of its own.
pub(crate) fn numbers<N: Eq + Hash>(of_ranks: impl Iterator<Item = Option<N>>) -> Vec<usize> {
    let (mut known, mut nodes) = (HashMap::new(), 0);
    let number = |node: Option<N>| {
        let next = nodes;
        let number = node.map_or(next, |node| *known.entry(node).or_insert(next));
        nodes += usize::from(number == next);
        number
    };
    of_ranks.map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(places: &str) -> Option<Nodes> {
        Nodes::of(places.chars().map(|place| Some(place).filter(|place| *place != '?')))
    }

    fn order(places: &str, collective: Collective, algorithm: Algorithm) -> Option<Vec<u32>> {
        of(places).unwrap().order(collective, algorithm)
    }

    #[test]
    fn nodes_have_as_many_ranks_each_but_the_last() {
        for (places, each, first) in [
            ("aabb", 2, [0, 1, 2, 3].as_slice()),
            ("aaabbbc", 3, &[0, 1, 2, 3, 4, 5, 6]),
            ("abab", 2, &[0, 2, 1, 3]),
            ("cabba", 2, &[1, 4, 2, 3, 0]),
            ("aabbb", 3, &[2, 3, 4, 0, 1]),
        ] {
            let nodes = of(places).unwrap();
            assert_eq!((nodes.each, nodes.nodes.concat().as_slice()), (Some(each), first));
        }
        for (places, order) in
            [("abcbaca", [0, 4, 6, 1, 3, 2, 5]), ("aabbbcc", [0, 1, 2, 3, 4, 5, 6])]
        {
            let nodes = of(places).unwrap();
            assert_eq!((nodes.each, nodes.nodes.concat().as_slice()), (None, order.as_slice()));
        }
        for places in ["", "a", "aaaa", "abcd", "abc", "aab?"] {
            assert_eq!(of(places), None, "{places}");
        }
    }

    #[test]
    fn nodes_have_numbers_in_the_order_of_their_ranks() {
        let known = |places: &str| {
            numbers(places.chars().map(|place| Some(place).filter(|place| *place != '?')))
        };
        assert_eq!(known(""), []);
        assert_eq!(known("bbacb"), [0, 0, 1, 2, 0]);
        assert_eq!(known("a?b?a"), [0, 1, 2, 3, 0]);
    }

    #[test]
    fn ranks_are_called_node_by_node_where_that_matters() {
        let (reduce, gather) = (Collective::AllReduce, Collective::AllGather);
        let by_nodes = Algorithm::Hierarchical { node_ranks: 2 };
        for algorithm in [by_nodes, Algorithm::Ring, Algorithm::Halving, Algorithm::Doubling] {
            assert_eq!(order("abab", reduce, algorithm), Some(vec![0, 2, 1, 3]), "{algorithm}");
            assert_eq!(order("aabb", reduce, algorithm), None, "{algorithm}");
        }
        assert_eq!(order("abab", gather, Algorithm::Ring), Some(vec![0, 2, 1, 3]));
        assert_eq!(order("abab", gather, by_nodes), Some(vec![0, 2, 1, 3]));
        assert_eq!(order("abab", gather, Algorithm::Doubling), None);
        assert_eq!(order("abab", reduce, Algorithm::Ordered), None);
        assert_eq!(order("abab", reduce, Algorithm::Hierarchical { node_ranks: 3 }), None);
    }

    #[test]
    fn the_root_comes_first_and_its_node() {
        let from = |root| Collective::Broadcast { root };
        assert_eq!(order("aabbcc", from(0), Algorithm::Ring), None);
        assert_eq!(order("aabbcc", from(1), Algorithm::Ring), Some(vec![1, 0, 2, 3, 4, 5]));
        assert_eq!(order("aabbcc", from(5), Algorithm::Ring), Some(vec![5, 4, 0, 1, 2, 3]));
        assert_eq!(order("abcabc", from(4), Algorithm::Binomial), Some(vec![4, 1, 0, 3, 2, 5]));
        assert_eq!(order("abcabc", Collective::Gather { root: 4 }, Algorithm::Binomial), None);
    }
}
