//! Which collective each algorithm can do, and the way to its program.

use crate::algorithm::Algorithm;
use crate::{
    Collective, Program, bruck, direct, doubling, halving, hierarchical, pairwise, ring, server,
    tree,
};

impl Algorithm {
    /// Every algorithm that can do `collective` among so many ranks; for those with a number, the
    /// numbers worth trying.
    pub fn all_for(collective: Collective, ranks: u32) -> Vec<Self> {
        let sensible = |size: &u32| size.is_power_of_two() || ranks.is_multiple_of(*size);
        let both =
            |node_ranks| [Self::Hierarchical { node_ranks }, Self::NodeDoubling { node_ranks }];
        let hierarchies = (2..ranks).filter(sensible).flat_map(both);
        let servers = [1, 2].map(|servers| Self::ParameterServer { servers });
        let all = Self::PLAIN.into_iter().chain(hierarchies).chain(servers);
        all.filter(|algorithm| algorithm.can_do(collective, ranks)).collect()
    }

    /// Whether [`program`] has an answer. Cost: that of a program for a few ranks, since what a
    /// family covers does not hang on how many there are.
    pub fn can_do(self, collective: Collective, ranks: u32) -> bool {
        let (has_number, smallest) = match self {
            Self::Hierarchical { node_ranks } => {
                ((2..ranks).contains(&node_ranks), Self::Hierarchical { node_ranks: 2 })
            }
            Self::NodeDoubling { node_ranks } => {
                ((2..ranks).contains(&node_ranks), Self::NodeDoubling { node_ranks: 2 })
            }
            Self::ParameterServer { servers } => {
                ((1..=ranks).contains(&servers), Self::ParameterServer { servers: 1 })
            }
            plain => (true, plain),
        };
        let has_root = collective.root().is_none_or(|root| root < ranks);
        has_number
            && has_root
            && ranks <= RANKS_MAX
            && program(collective.with_root(0), smallest, ranks.min(FEW), 0).is_some()
    }

    /// Whether it serves the v form of `collective`, in which blocks differ in length: there a rank
    /// must know the length of every chunk it names. All ranks know all lengths of an all-gather-v
    /// and a reduce-scatter-v; in an all-to-all-v a rank knows those of the blocks it brings and
    /// takes, in a gather-v and a scatter-v only the root knows more than its own. Collectives
    /// without a v form are served by every algorithm that can do them.
    pub fn suits_uneven(self, collective: Collective) -> bool {
        match collective {
            Collective::AllToAll => matches!(self, Self::Direct | Self::Pairwise),
            Collective::Gather { .. } | Collective::Scatter { .. } => self == Self::Direct,
            _ => true,
        }
    }
}

/// The most ranks a program is written for: the blocks of an all-to-all can be numbered.
pub const RANKS_MAX: u32 = 65_535;
/// Among so many ranks every family with its smallest number has programs.
const FEW: u32 = 3;

/// The program of `rank` for `collective` by `algorithm`, or `None` if that algorithm cannot do it
/// with so many ranks, of which there may be [`RANKS_MAX`]. Cost: proportional to the moves; some
/// 10 ns each.
pub fn program(
    collective: Collective,
    algorithm: Algorithm,
    ranks: u32,
    rank: u32,
) -> Option<Program> {
    let outside = rank >= ranks || collective.root().is_some_and(|root| root >= ranks);
    if outside || ranks > RANKS_MAX {
        return None;
    }
    let (scratch, moves) = (Vec::new(), Vec::new());
    let mut program = Program { collective, algorithm, ranks, rank, pieces: 1, scratch, moves };
    let out = &mut program;
    match algorithm {
        Algorithm::Ring => ring::write(out, 1),
        Algorithm::BiRing => ring::write(out, 2),
        Algorithm::DoubleTree => tree::double(out),
        Algorithm::Halving => halving::write(out),
        Algorithm::Doubling => doubling::write(out),
        Algorithm::Binomial => tree::binomial(out),
        Algorithm::Bruck => bruck::write(out),
        Algorithm::Pairwise => pairwise::write(out),
        Algorithm::Direct => direct::write(out),
        Algorithm::Ordered => direct::ordered(out),
        Algorithm::Hierarchical { node_ranks } => hierarchical::write(out, node_ranks),
        Algorithm::NodeDoubling { node_ranks } => hierarchical::write_doubling(out, node_ranks),
        Algorithm::ParameterServer { servers } => server::write(out, servers),
    }?;
    Some(program)
}
