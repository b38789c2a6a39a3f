//! How the ranks of a group lie on its nodes.

use std::collections::HashSet;
use std::hash::Hash;

/// How many consecutive ranks share each node, if there are several nodes, of that many ranks each
/// but for the last, which may have fewer, and two at least on the others. `nodes`: that of each
/// rank, if it is known.
pub(crate) fn ranks_of_each<N: Eq + Hash + Copy>(
    nodes: impl Iterator<Item = Option<N>>,
) -> Option<u32> {
    let nodes: Vec<N> = nodes.collect::<Option<_>>()?;
    let runs: Vec<&[N]> = nodes.chunk_by(|one, next| one == next).collect();
    let (last, others) = runs.split_last()?;
    let each = others.first()?.len();
    let mut met = HashSet::new();
    let is_one_each = runs.iter().all(|run| met.insert(run[0]));
    let is_even = others.iter().all(|run| run.len() == each) && last.len() <= each;
    (is_one_each && is_even && each > 1).then_some(each as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(places: &str) -> Option<u32> {
        ranks_of_each(places.chars().map(|place| Some(place).filter(|place| *place != '?')))
    }

    #[test]
    fn nodes_are_found_where_ranks_lie_on_them_in_order_and_as_many_on_each() {
        assert_eq!(of("aabb"), Some(2));
        assert_eq!(of("bbbaaaccc"), Some(3));
        assert_eq!(of("aaabbbc"), Some(3), "the last one may have fewer");
        for places in ["", "a", "aaaa", "abcd", "abab", "aabbaa", "aabbb", "aaabccc", "aab?"] {
            assert_eq!(of(places), None, "{places}");
        }
    }
}
