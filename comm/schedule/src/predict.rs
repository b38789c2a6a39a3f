//! The price of a schedule by formula: quick enough to price every candidate when a group is made.
//!
//! An algorithm is a few kinds of rounds. In a round every rank sends some messages and folds what
//! arrives; it costs what it costs the slowest rank. What streams (chains, trees) is priced as its
//! first slot going all the way and the rest following behind.

use crate::cost::{BUSY, STREAM_BYTES};
use crate::{Algorithm, Collective, Network};

/// Whom a rank sends to in a round.
#[derive(Clone, Copy)]
enum Peers {
    /// The rank so far on, around the circle.
    At(u32),
    /// The rank whose number differs in this bit, if there is one.
    Bit(u32),
    /// The next rank, in a relay in which one rank after the other moves.
    Next,
    /// Every other rank of its node of so many; a node of all ranks is everyone.
    Node(u32),
    /// Every other rank, but only for the first so many ranks.
    Served(u32),
}

/// Rounds of one kind.
#[derive(Clone, Copy)]
struct Round {
    times: u32,
    peers: Peers,
    /// Messages to each peer.
    messages: u32,
    /// Bytes to each peer.
    bytes: f64,
    /// Bytes folded in all.
    folded: f64,
}

/// About what [`crate::cost`] would say, in seconds, in time that grows with the ranks and not with
/// the moves. `network` is [`crate::TwoLevels`], or a function from two ranks to the wire between
/// them, of which exchanges of everybody with everybody look at all.
/// Cost: some 10 µs for 64 ranks, some 10 ms for 65,535 on two levels.
///
/// `None` if there is no such schedule.
pub fn predict(
    collective: Collective,
    algorithm: Algorithm,
    ranks: u32,
    bytes: u64,
    network: impl Network,
) -> Option<f64> {
    let table = Table { ranks, bytes: bytes as f64 };
    let rounds = table.rounds(collective, algorithm)?;
    Some(rounds.iter().map(|round| round.seconds(ranks, &network)).sum())
}

impl Round {
    /// All rounds of this kind. The first one costs what the slowest rank needs. In those that
    /// follow, the slowest port sets the pace, but the way around leads over all wires, fast and
    /// slow.
    fn seconds(&self, ranks: u32, network: &impl Network) -> f64 {
        if self.times == 0 || ranks == 1 {
            return 0.0;
        }
        let (mut slowest, mut pace, mut sum) = (0.0f64, 0.0f64, 0.0);
        for rank in 0..ranks {
            let (port, flight) = self.of_rank(rank, ranks, network);
            slowest = slowest.max(port + flight);
            pace = pace.max(port);
            sum += port + flight;
        }
        let mean = sum / f64::from(ranks);
        if let Peers::Next = self.peers {
            return f64::from(self.times) * mean;
        }
        slowest + f64::from(self.times - 1) * pace.max(mean)
    }

    /// How long the ports of a rank are busy, and how long the last message still flies. What is
    /// longer than a slot is passed on while it arrives, so its flight is hidden.
    fn of_rank(&self, rank: u32, ranks: u32, network: &impl Network) -> (f64, f64) {
        let one = |peer: u32| (peer % ranks, peer % ranks + 1);
        let (first, end) = match self.peers {
            Peers::At(distance) => one(rank + distance),
            Peers::Bit(bit) if rank ^ bit < ranks => one(rank ^ bit),
            Peers::Served(servers) if rank < servers => (0, ranks),
            Peers::Bit(_) | Peers::Served(_) => (rank, rank),
            Peers::Next => one(rank + 1),
            Peers::Node(size) => {
                let first = rank - rank % size;
                (first, ranks.min(first + size))
            }
        };
        let busy_alphas = BUSY * f64::from(self.messages);
        let (mut ports, mut alpha, mut gamma) = ([0.0f64; 2], 0.0f64, 0.0f64);
        for (count, link) in network.links(rank, first, end) {
            let each = busy_alphas * link.alpha_s + link.beta_s_per_byte * self.bytes;
            ports[usize::from(link.crosses)] += f64::from(count) * each;
            alpha = alpha.max(link.alpha_s);
            gamma = gamma.max(link.gamma_s_per_byte);
        }
        let hidden = self.messages == 0 || self.bytes > STREAM_BYTES;
        let busy = ports[0].max(ports[1]) + gamma * self.folded;
        (busy, if hidden { 0.0 } else { (1.0 - BUSY) * alpha })
    }
}

/// The rounds of each algorithm, for so many ranks and bytes.
#[derive(Clone, Copy)]
struct Table {
    ranks: u32,
    bytes: f64,
}

impl Table {
    fn rounds(&self, collective: Collective, algorithm: Algorithm) -> Option<Vec<Round>> {
        match (collective, algorithm) {
            (Collective::Broadcast { root } | Collective::Reduce { root }, _)
            | (Collective::Gather { root } | Collective::Scatter { root }, _)
                if root >= self.ranks =>
            {
                None
            }
            (
                _,
                Algorithm::Hierarchical { node_ranks } | Algorithm::NodeDoubling { node_ranks },
            ) if node_ranks < 2 || node_ranks >= self.ranks => None,
            (Collective::AllReduce, _) => self.all_reduce(algorithm),
            (Collective::ReduceScatter, _) => self.halves(algorithm, true),
            (Collective::AllGather, _) => self.halves(algorithm, false),
            (Collective::Broadcast { .. }, _) => self.one_way(algorithm, false),
            (Collective::Reduce { .. }, _) => self.one_way(algorithm, true),
            (Collective::Gather { .. } | Collective::Scatter { .. }, Algorithm::Binomial) => {
                Some(self.scatter())
            }
            (Collective::Gather { .. } | Collective::Scatter { .. }, Algorithm::Direct) => {
                Some(vec![self.everyone(self.part(), false)])
            }
            (Collective::AllToAll, Algorithm::Pairwise | Algorithm::Direct) => {
                Some(vec![self.everyone(self.part(), false)])
            }
            (Collective::AllToAll, Algorithm::Bruck) => Some(self.bruck()),
            (Collective::Barrier, Algorithm::Doubling) => {
                Some(self.distances().map(|far| round(1, Peers::At(far), 0.0, false)).collect())
            }
            (Collective::Barrier, Algorithm::Binomial) => Some(self.tree(0.0, false).repeat(2)),
            (Collective::Barrier, Algorithm::Direct) => Some(vec![self.in_rank_order(0.0)]),
            _ => None,
        }
    }

    fn all_reduce(&self, algorithm: Algorithm) -> Option<Vec<Round>> {
        let whole = self.bytes;
        let both = |first: Option<Vec<Round>>, second: Option<Vec<Round>>| {
            Some([first?, second?].concat())
        };
        match algorithm {
            Algorithm::Halving => {
                both(self.halves(algorithm, true), self.halves(Algorithm::Doubling, false))
            }
            Algorithm::Ordered => {
                both(self.halves(algorithm, true), self.halves(Algorithm::Direct, false))
            }
            Algorithm::Doubling => Some(self.doubling()),
            Algorithm::Binomial => {
                // The sum streams down while the rest still comes up.
                Some([self.tree(whole, true), self.tree(whole.min(STREAM_BYTES), false)].concat())
            }
            Algorithm::DoubleTree => {
                both(self.one_way(algorithm, true), self.one_way(algorithm, false))
            }
            Algorithm::Direct => Some(vec![self.in_rank_order(whole)]),
            Algorithm::ParameterServer { servers } if (1..=self.ranks).contains(&servers) => {
                let piece = whole / f64::from(servers);
                let peers = Peers::Served(servers);
                // The sum streams back while the rest still arrives.
                let back = Round { bytes: piece.min(STREAM_BYTES), ..self.everyone(piece, false) };
                Some([self.everyone(piece, true), back].map(|r| Round { peers, ..r }).to_vec())
            }
            Algorithm::ParameterServer { .. } => None,
            Algorithm::Ring | Algorithm::BiRing => {
                both(self.halves(algorithm, true), self.halves(algorithm, false))
            }
            Algorithm::Hierarchical { .. } => {
                let mut rounds = both(self.halves(algorithm, true), self.halves(algorithm, false))?;
                // Here columns are numbered so that each is one message.
                rounds.iter_mut().for_each(|round| round.messages = 1);
                Some(rounds)
            }
            Algorithm::NodeDoubling { node_ranks } => Some(self.node_doubling(node_ranks)),
            Algorithm::Bruck | Algorithm::Pairwise => None,
        }
    }

    /// Columns: scattered inside nodes, doubled across them, gathered inside.
    fn node_doubling(&self, node_ranks: u32) -> Vec<Round> {
        let column = self.bytes / f64::from(node_ranks);
        let peers = Peers::Node(node_ranks);
        let folded = f64::from(node_ranks - 1) * column;
        let inside = |folded| Round { times: 1, peers, messages: 1, bytes: column, folded };
        let across = Table { ranks: self.ranks.div_ceil(node_ranks), bytes: column };
        let mut doubled = across.doubling();
        for round in &mut doubled {
            if let Peers::Bit(far) = round.peers {
                round.peers = match node_ranks.is_power_of_two() {
                    true => Peers::Bit(far * node_ranks),
                    false => Peers::At(far * node_ranks),
                };
            }
        }
        [vec![inside(folded)], doubled, vec![inside(0.0)]].concat()
    }

    /// Whole blocks, to those beyond the largest power of two first and last.
    fn doubling(&self) -> Vec<Round> {
        let mut rounds = self.tree(self.bytes, true);
        if !self.ranks.is_power_of_two() {
            let core = 1 << self.ranks.ilog2();
            rounds.push(round(1, Peers::Bit(core), self.bytes, false));
        }
        rounds
    }

    /// Reduce-scatter (which folds) or all-gather.
    fn halves(&self, algorithm: Algorithm, folds: bool) -> Option<Vec<Round>> {
        match algorithm {
            Algorithm::Ring | Algorithm::BiRing => {
                Some(vec![round(self.ranks - 1, Peers::At(1), self.part(), folds)])
            }
            Algorithm::Direct | Algorithm::Pairwise => {
                Some(vec![self.everyone(self.part(), folds)])
            }
            Algorithm::Ordered if folds => Some(vec![self.in_rank_order(self.part())]),
            Algorithm::Halving if folds => Some(self.halving(self.ranks, 1, folds)),
            Algorithm::Doubling if !folds => Some(self.halving(self.ranks, 1, folds)),
            Algorithm::Bruck if !folds => {
                let new = |known: u32| f64::from(known.min(self.ranks - known)) * self.part();
                let one = |known| round(1, Peers::At(known), new(known), folds);
                Some(self.distances().map(one).collect())
            }
            Algorithm::Hierarchical { node_ranks } => {
                let nodes = self.ranks.div_ceil(node_ranks);
                let column = f64::from(nodes) * self.part();
                let folded = if folds { f64::from(node_ranks - 1) * column } else { 0.0 };
                let peers = Peers::Node(node_ranks);
                let inside = Round { times: 1, peers, messages: nodes, bytes: column, folded };
                let mut rounds = self.halving(nodes, node_ranks, folds);
                rounds.push(inside);
                Some(rounds)
            }
            _ => None,
        }
    }

    /// Broadcast, or reduce (which folds).
    fn one_way(&self, algorithm: Algorithm, folds: bool) -> Option<Vec<Round>> {
        let whole = self.bytes;
        match algorithm {
            Algorithm::Ring => {
                let slot = whole.min(STREAM_BYTES);
                let first = round(self.ranks - 1, Peers::Next, slot, folds);
                Some(vec![first, behind(whole - slot, folds)])
            }
            Algorithm::DoubleTree => {
                let slot = (whole / 2.0).min(STREAM_BYTES);
                let first = |far| round(1, Peers::At(far), slot, folds);
                let mut rounds: Vec<_> = self.distances().map(first).collect();
                rounds.push(behind(whole - slot, folds));
                Some(rounds)
            }
            Algorithm::Binomial => Some(self.tree(whole, folds)),
            Algorithm::Direct => Some(vec![self.everyone(whole, folds)]),
            Algorithm::Ordered if folds => Some(vec![self.everyone(whole, folds)]),
            Algorithm::Halving if !folds => {
                let mut rounds = self.scatter();
                rounds.extend(self.halving(self.ranks, 1, false));
                Some(rounds)
            }
            _ => None,
        }
    }

    /// Among `members` ranks that stand `stride` apart: half of what is open in each round. Across
    /// a stride, parts do not lie side by side and are messages of their own.
    fn halving(&self, members: u32, stride: u32, folds: bool) -> Vec<Round> {
        let exchange = members.is_power_of_two() && stride.is_power_of_two();
        let mut rounds = Vec::new();
        let mut open = members;
        while open > 1 {
            let half = open.div_ceil(2);
            let far = half * stride;
            let peers = if exchange { Peers::Bit(far) } else { Peers::At(far) };
            let bytes = f64::from(open - half) * self.part();
            let messages = if stride > 1 { open - half } else { 1 };
            rounds.push(Round { messages, ..round(1, peers, bytes, folds) });
            open = half;
        }
        rounds
    }

    /// Binomial scatter, or gather.
    fn scatter(&self) -> Vec<Round> {
        let subtree = |distance: u32| f64::from(distance.min(self.ranks - distance));
        let one = |far| round(1, Peers::Bit(far), subtree(far) * self.part(), false);
        self.distances().map(one).collect()
    }

    /// Bruck's all-to-all: every block is a message of its own.
    fn bruck(&self) -> Vec<Round> {
        let moving = |hop: u32| (0..self.ranks).filter(|distance| distance & hop != 0).count();
        let one = |hop: u32| {
            let messages = moving(hop) as u32;
            let bytes = f64::from(messages) * self.part();
            Round { messages, ..round(1, Peers::At(hop), bytes, false) }
        };
        self.distances().map(one).collect()
    }

    /// `bytes` between ranks that differ in one bit, for each bit.
    fn tree(&self, bytes: f64, folds: bool) -> Vec<Round> {
        self.distances().map(|far| round(1, Peers::Bit(far), bytes, folds)).collect()
    }

    fn everyone(&self, bytes: f64, folds: bool) -> Round {
        let folded = if folds { f64::from(self.ranks - 1) * bytes } else { 0.0 };
        Round { times: 1, peers: Peers::Node(self.ranks), messages: 1, bytes, folded }
    }

    /// Everyone to everyone, taken in an order in which the first may be the last that is sent.
    fn in_rank_order(&self, bytes: f64) -> Round {
        Round { messages: 2, ..self.everyone(bytes, true) }
    }

    /// 1, 2, 4, ... below the number of ranks.
    fn distances(&self) -> impl Iterator<Item = u32> + use<> {
        (0..self.ranks.next_power_of_two().ilog2()).map(|bit| 1 << bit)
    }

    fn part(&self) -> f64 {
        self.bytes / f64::from(self.ranks)
    }
}

/// Rounds with one message each.
fn round(times: u32, peers: Peers, bytes: f64, folds: bool) -> Round {
    Round { times, peers, messages: 1, bytes, folded: if folds { bytes } else { 0.0 } }
}

/// What follows behind the first slot.
fn behind(bytes: f64, folds: bool) -> Round {
    Round { messages: 0, ..round(1, Peers::At(1), bytes, folds) }
}
