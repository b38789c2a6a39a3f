//! Algorithms as numbers: what a header has room for, so that ranks that chose apart notice it.

use brigade_schedule::Algorithm;

const HIERARCHICAL: u32 = 64;
const NODE_DOUBLING: u32 = 96;
const SERVER: u32 = 128;

/// The code of an algorithm: eight bits for the family, and from there on its number, if it has
/// one. Of each there are at most [`RANKS_MAX`](brigade_schedule::RANKS_MAX), so no two algorithms
/// share a code of 24 bits.
pub(crate) fn code(algorithm: Algorithm) -> u32 {
    match algorithm {
        Algorithm::Hierarchical { node_ranks } => HIERARCHICAL | (node_ranks << 8),
        Algorithm::NodeDoubling { node_ranks } => NODE_DOUBLING | (node_ranks << 8),
        Algorithm::ParameterServer { servers } => SERVER | (servers << 8),
        plain => {
            let place = Algorithm::PLAIN.iter().position(|&one| one == plain);
            place.expect("what has no number is plain") as u32
        }
    }
}

/// The number of the algorithm with this code, if it has one. None of these has a root: what it
/// does is the same for all ranks.
pub(crate) fn number(code: u32) -> Option<u16> {
    matches!(code & 0xff, HIERARCHICAL | NODE_DOUBLING | SERVER).then_some((code >> 8) as u16)
}

/// The code of an algorithm of this family, with this number if it has one.
pub(crate) fn with_number(family: u8, number: u16) -> u32 {
    let family = u32::from(family);
    if self::number(family).is_some() { family | u32::from(number) << 8 } else { family }
}

/// The name of the algorithm with a code; `None` if there is none.
pub(crate) fn code_name(code: u32) -> Option<String> {
    let number = code >> 8;
    let algorithm = match code & 0xff {
        HIERARCHICAL => Algorithm::Hierarchical { node_ranks: number },
        NODE_DOUBLING => Algorithm::NodeDoubling { node_ranks: number },
        SERVER => Algorithm::ParameterServer { servers: number },
        _ => *Algorithm::PLAIN.get(code as usize)?,
    };
    Some(algorithm.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use brigade_schedule::{Collective, RANKS_MAX};

    use super::*;

    #[test]
    fn every_code_has_its_name() {
        for collective in Collective::ALL {
            for algorithm in Algorithm::all_for(collective, 8) {
                assert_eq!(code_name(code(algorithm)), Some(algorithm.to_string()));
            }
        }
        assert_eq!(code_name(10), None);
        assert_eq!(code_name(255), None);
    }

    #[test]
    fn every_size_has_its_own_code() {
        let sizes = (1..=1024).chain([1 << 15, RANKS_MAX]);
        let numbered = sizes.flat_map(|size| {
            let hierarchical = Algorithm::Hierarchical { node_ranks: size };
            let doubling = Algorithm::NodeDoubling { node_ranks: size };
            [hierarchical, doubling, Algorithm::ParameterServer { servers: size }]
        });
        let mut codes = HashSet::new();
        for algorithm in numbered.chain(Algorithm::PLAIN) {
            assert!(codes.insert(code(algorithm)), "{algorithm}");
            assert_eq!(code_name(code(algorithm)), Some(algorithm.to_string()));
        }
    }

    /// They have one field for both in a header.
    #[test]
    fn what_has_a_number_has_no_root() {
        for ranks in [2, 5, 256] {
            for collective in Collective::ALL.into_iter().filter(|c| c.root().is_some()) {
                let all = Algorithm::all_for(collective, ranks).into_iter().map(code);
                assert!(
                    !all.into_iter().any(|code| number(code).is_some()),
                    "{collective} among {ranks}"
                );
            }
        }
    }

    /// They stand on wires between different versions.
    #[test]
    fn codes_of_plain_algorithms_never_change() {
        let names = Algorithm::PLAIN.map(Algorithm::family).join(" ");
        let want = "ring bi-ring double-tree halving doubling binomial bruck pairwise direct \
                    ordered";
        assert_eq!(names, want);
    }
}
