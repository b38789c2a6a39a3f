//! What wires there are between ranks, and what they cost: for who prices schedules.

/// What a wire between two ranks costs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Link {
    /// Seconds that an empty message takes.
    pub alpha_s: f64,
    /// Seconds that each byte adds.
    pub beta_s_per_byte: f64,
    /// Seconds that folding a byte adds at the receiver.
    pub gamma_s_per_byte: f64,
    /// Whether it leads to another node, by a port that those inside do not share.
    pub crosses: bool,
}

/// The wires of a network.
pub trait Network {
    /// The one between two ranks.
    fn link(&self, from: u32, to: u32) -> Link;

    /// The wires from a rank to all others from `first` to `end`: how many there are of each kind.
    fn links(&self, from: u32, first: u32, end: u32) -> impl Iterator<Item = (u32, Link)> {
        let others = (first..end).filter(move |&to| to != from);
        others.map(move |to| (1, self.link(from, to)))
    }
}

impl<F: Fn(u32, u32) -> Link> Network for F {
    fn link(&self, from: u32, to: u32) -> Link {
        self(from, to)
    }
}

/// A network of nodes with so many consecutive ranks each, all wires inside nodes the same and all
/// across. They are counted, not looked at one by one, so pricing an exchange of everybody with
/// everybody takes time that grows with the ranks, and not with their square.
#[derive(Clone, Copy, Debug)]
pub struct TwoLevels {
    /// Ranks of a node, at least one.
    pub node_ranks: u32,
    /// The wires inside nodes.
    pub inside: Link,
    /// The wires across, which [cross](Link::crosses) whatever this says.
    pub across: Link,
}

impl TwoLevels {
    fn across(&self) -> Link {
        Link { crosses: true, ..self.across }
    }
}

impl Network for TwoLevels {
    fn link(&self, from: u32, to: u32) -> Link {
        let is_near = from / self.node_ranks == to / self.node_ranks;
        if is_near { self.inside } else { self.across() }
    }

    fn links(&self, from: u32, first: u32, end: u32) -> impl Iterator<Item = (u32, Link)> {
        let home = from - from % self.node_ranks;
        let near = first.max(home)..end.min(home.saturating_add(self.node_ranks));
        let (near_count, is_among) = (near.len() as u32, (first..end).contains(&from));
        let far_count = end.saturating_sub(first) - near_count;
        let kinds = [(near_count - u32::from(is_among), self.inside), (far_count, self.across())];
        kinds.into_iter().filter(|(count, _)| *count > 0)
    }
}
