//! How collectives and algorithms are written on a command line, in a table and in a message.

use std::fmt;
use std::str::FromStr;

use crate::{Algorithm, Collective};

/// A word that is no name of the kind asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.told())]
pub struct UnknownName {
    /// What was written.
    pub word: String,
    /// What it should have named.
    pub kind: &'static str,
    /// The names there are.
    pub known: String,
}

impl UnknownName {
    fn told(&self) -> String {
        let Self { word, kind, known } = self;
        let (family, _) = word.split_once(':').unwrap_or((word, ""));
        let numbered = NUMBERED.into_iter().find(|(name, _)| *kind == ALGORITHM && *name == family);
        match numbered {
            Some((_, example)) => format!("`{word}` wants a number: {example}"),
            None => format!("`{word}` is no {kind}; there are: {known}"),
        }
    }
}

const ALGORITHM: &str = "algorithm";
/// Algorithms with a number, and what one means.
const NUMBERED: [(&str, &str); 3] = [
    ("hierarchical", "hierarchical:4 for nodes of 4 ranks"),
    ("node-doubling", "node-doubling:4 for nodes of 4 ranks"),
    ("server", "server:2 for 2 servers"),
];

const COLLECTIVES: [Collective; 9] = [
    Collective::AllReduce,
    Collective::ReduceScatter,
    Collective::AllGather,
    Collective::Broadcast { root: 0 },
    Collective::Reduce { root: 0 },
    Collective::AllToAll,
    Collective::Gather { root: 0 },
    Collective::Scatter { root: 0 },
    Collective::Barrier,
];

const PLAIN: [Algorithm; 10] = [
    Algorithm::Ring,
    Algorithm::BiRing,
    Algorithm::DoubleTree,
    Algorithm::Halving,
    Algorithm::Doubling,
    Algorithm::Binomial,
    Algorithm::Bruck,
    Algorithm::Pairwise,
    Algorithm::Direct,
    Algorithm::Ordered,
];

impl Collective {
    /// All nine; those with a root have root 0. Their places stand for them on wires, so they never
    /// change.
    pub const ALL: [Self; 9] = COLLECTIVES;

    /// The name, without the root: "all-reduce".
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::Broadcast { .. } => "broadcast",
            Self::Reduce { .. } => "reduce",
            Self::AllToAll => "all-to-all",
            Self::Gather { .. } => "gather",
            Self::Scatter { .. } => "scatter",
            Self::Barrier => "barrier",
        }
    }
}

/// Writes [`Collective::name`].
impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Reads a name; a collective with a root gets root 0.
impl FromStr for Collective {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        COLLECTIVES.into_iter().find(|collective| collective.name() == word).ok_or_else(|| {
            let known = COLLECTIVES.map(Self::name).join(", ");
            UnknownName { word: word.into(), kind: "collective", known }
        })
    }
}

impl Algorithm {
    /// The algorithms without a number. Their places stand for them on wires, so they never
    /// change.
    pub const PLAIN: [Self; 10] = PLAIN;

    /// The name with its number, if it has one: "ring", "hierarchical:4", "server:2".
    pub fn name(self) -> String {
        match self {
            Self::Hierarchical { node_ranks } | Self::NodeDoubling { node_ranks } => {
                format!("{}:{node_ranks}", self.family())
            }
            Self::ParameterServer { servers } => format!("{}:{servers}", self.family()),
            _ => self.family().into(),
        }
    }

    /// The name without a number: "ring", "hierarchical", "server".
    pub fn family(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::BiRing => "bi-ring",
            Self::DoubleTree => "double-tree",
            Self::Halving => "halving",
            Self::Doubling => "doubling",
            Self::Binomial => "binomial",
            Self::Bruck => "bruck",
            Self::Pairwise => "pairwise",
            Self::Direct => "direct",
            Self::Ordered => "ordered",
            Self::Hierarchical { .. } => "hierarchical",
            Self::NodeDoubling { .. } => "node-doubling",
            Self::ParameterServer { .. } => "server",
        }
    }
}

/// Writes [`Algorithm::name`].
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name())
    }
}

/// Reads what [`Algorithm::name`] writes.
impl FromStr for Algorithm {
    type Err = UnknownName;

    fn from_str(word: &str) -> Result<Self, UnknownName> {
        let numbered = |family: &str| -> Option<u32> {
            word.strip_prefix(family)?.strip_prefix(':')?.parse().ok()
        };
        if let Some(node_ranks) = numbered("hierarchical") {
            return Ok(Self::Hierarchical { node_ranks });
        }
        if let Some(node_ranks) = numbered("node-doubling") {
            return Ok(Self::NodeDoubling { node_ranks });
        }
        if let Some(servers) = numbered("server") {
            return Ok(Self::ParameterServer { servers });
        }
        PLAIN.into_iter().find(|algorithm| algorithm.family() == word).ok_or_else(|| {
            let known = PLAIN.map(Self::family).join(", ");
            let known = known + ", hierarchical:RANKS, node-doubling:RANKS, server:COUNT";
            UnknownName { word: word.into(), kind: ALGORITHM, known }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back() {
        let numbered = [
            Algorithm::Hierarchical { node_ranks: 4 },
            Algorithm::NodeDoubling { node_ranks: 4 },
            Algorithm::ParameterServer { servers: 2 },
        ];
        for algorithm in PLAIN.into_iter().chain(numbered) {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        for collective in COLLECTIVES {
            assert_eq!(collective.to_string().parse(), Ok(collective));
        }
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let error = "rign".parse::<Algorithm>().unwrap_err().to_string();
        assert!(error.contains("`rign` is no algorithm") && error.contains("bi-ring"), "{error}");
        for (word, wanted) in [
            ("hierarchical", "`hierarchical` wants a number: hierarchical:4 for nodes of 4 ranks"),
            ("node-doubling:x", "`node-doubling:x` wants a number: node-doubling:4"),
        ] {
            let error = word.parse::<Algorithm>().unwrap_err().to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
        assert!("hierarchical".parse::<Collective>().unwrap_err().to_string().contains("is no"));
        assert!("server:x".parse::<Algorithm>().is_err());
        assert!("allreduce".parse::<Collective>().is_err());
    }
}
