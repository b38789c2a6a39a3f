//! How the ranks of a group lie on its nodes.

use std::collections::HashMap;
use std::hash::Hash;

use brigade_schedule::Algorithm;

/// Several nodes with as many ranks each, two at least, but for the last, which may have fewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nodes {
    /// How many ranks each has.
    pub(crate) each: u32,
    /// The ranks node by node, where that is not the order of their numbers.
    order: Option<Vec<u32>>,
}

impl Nodes {
    /// By the node of each rank, if it is known.
    pub(crate) fn of<N: Eq + Hash>(nodes: impl Iterator<Item = Option<N>>) -> Option<Self> {
        let (mut places, mut ranks_of): (HashMap<N, usize>, Vec<Vec<u32>>) = Default::default();
        for (rank, node) in nodes.enumerate() {
            let place = *places.entry(node?).or_insert(ranks_of.len());
            if place == ranks_of.len() {
                ranks_of.push(Vec::new());
            }
            ranks_of[place].push(rank as u32);
        }
        // Which of them has fewer, if one has, is the last.
        ranks_of.sort_by_key(|ranks| std::cmp::Reverse(ranks.len()));
        let (last, others) = ranks_of.split_last()?;
        let each = others.first()?.len();
        let is_even = others.iter().all(|ranks| ranks.len() == each) && last.len() <= each;
        (is_even && each > 1).then(|| {
            let order = Some(ranks_of.concat()).filter(|order| !order.is_sorted());
            Self { each: each as u32, order }
        })
    }

    /// What calls the ranks node by node, if `algorithm` is for consecutive ranks on nodes like
    /// these, and they are not.
    pub(crate) fn order(&self, algorithm: Algorithm) -> Option<&[u32]> {
        let is_ours = algorithm == Algorithm::Hierarchical { node_ranks: self.each };
        self.order.as_deref().filter(|_| is_ours)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(places: &str) -> Option<Nodes> {
        Nodes::of(places.chars().map(|place| Some(place).filter(|place| *place != '?')))
    }

    #[test]
    fn nodes_have_as_many_ranks_each_but_the_last() {
        let told = |each, order: &[u32]| Some(Nodes { each, order: Some(order.to_vec()) });
        for (places, each) in [("aabb", 2), ("bbbaaaccc", 3), ("aaabbbc", 3)] {
            assert_eq!(of(places), Some(Nodes { each, order: None }), "{places}");
        }
        assert_eq!(of("abab"), told(2, &[0, 2, 1, 3]));
        assert_eq!(of("abcbaca"), None, "three, two and two");
        assert_eq!(of("abcbabaa"), None, "four, three and one");
        assert_eq!(of("cabba"), told(2, &[1, 4, 2, 3, 0]));
        assert_eq!(of("aabbb"), told(3, &[2, 3, 4, 0, 1]));
        for places in ["", "a", "aaaa", "abcd", "abc", "aab?"] {
            assert_eq!(of(places), None, "{places}");
        }
    }
}
