//! The algorithms there are.

/// A family of schedules. What each one costs stands beside its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Neighbours pass chunks around a circle: bandwidth-optimal, a step per rank.
    Ring,
    /// Two rings, one each way round, each with half of every block.
    BiRing,
    /// Two binary trees in which no rank is interior twice (Sanders, Speck, Träff 2009).
    DoubleTree,
    /// Recursive halving, then (all-reduce) recursive doubling (Rabenseifner 2004).
    Halving,
    /// Recursive doubling: whole blocks, log2(ranks) steps.
    Doubling,
    /// Binomial trees: log2(ranks) steps from or to a root.
    Binomial,
    /// Bruck's log2(ranks) steps (Bruck et al. 1997).
    Bruck,
    /// One partner a step, ranks-1 steps.
    Pairwise,
    /// Everyone writes to everyone (or to the root) at once, and folds locally.
    Direct,
    /// Like `Direct`, but contributions are folded strictly in rank order: the same bits as a
    /// sequential sum, whatever the sizes, transport and placement.
    Ordered,
    /// Direct inside nodes of so many consecutive ranks, halving and doubling across nodes.
    Hierarchical {
        /// How many consecutive ranks make a node.
        node_ranks: u32,
    },
    /// Direct inside nodes of so many consecutive ranks, doubling across nodes: for what is short.
    NodeDoubling {
        /// How many consecutive ranks make a node.
        node_ranks: u32,
    },
    /// Ranks `0..servers` fold everybody's blocks and send the result back: the field's baseline.
    ParameterServer {
        /// How many ranks serve.
        servers: u32,
    },
}
