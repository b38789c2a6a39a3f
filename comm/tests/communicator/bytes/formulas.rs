//! The formulas, from the papers that the algorithms are taken from.

use brigade_schedule::{Algorithm, Collective};

use crate::world::Case;

/// What a formula says of one rank, in elements.
pub(super) enum Sent {
    /// So many.
    Exactly(usize),
    /// At most so many, and so many by all ranks together.
    AtMost(usize, usize),
}

use Sent::{AtMost, Exactly};

/// What `rank` of `ranks` sends in a call of `case` by `algorithm`.
pub(super) fn sent_elems(case: &Case, algorithm: Algorithm, ranks: usize, rank: usize) -> Sent {
    let world = World { ranks, rank, case };
    let n = case.counts[0];
    match case.collective {
        Collective::AllReduce => world.all_reduce(algorithm, n),
        Collective::ReduceScatter => world.reduce_scatter(algorithm),
        Collective::AllGather => world.all_gather(algorithm),
        Collective::Broadcast { root } => world.broadcast(algorithm, n, world.distance(root)),
        Collective::Reduce { root } => world.reduce(algorithm, n, world.distance(root)),
        Collective::AllToAll => Exactly(world.all_to_all(algorithm)),
        Collective::Gather { root } => Exactly(world.gather(algorithm, world.distance(root))),
        Collective::Scatter { root } => Exactly(world.scatter(algorithm, world.distance(root))),
        Collective::Barrier => Exactly(0),
    }
}

struct World<'a> {
    ranks: usize,
    rank: usize,
    case: &'a Case,
}

/// Elements of share `index` of `n` among `shares`.
fn share(n: usize, shares: usize, index: usize) -> usize {
    n * (index + 1) / shares - n * index / shares
}

/// The members below member `v` of a binomial tree, itself included.
fn subtree(v: usize, size: usize) -> usize {
    if v == 0 { size } else { (v & v.wrapping_neg()).min(size - v) }
}

/// The children of member `v` of a binomial tree: v with one more bit below its lowest.
fn children(v: usize, size: usize) -> impl Iterator<Item = usize> {
    let lowest = if v == 0 { size.next_power_of_two() } else { v & v.wrapping_neg() };
    let bits = (0..usize::BITS).map(|bit| 1usize << bit).take_while(move |&bit| bit < lowest);
    bits.map(move |bit| v + bit).filter(move |&child| child < size)
}

/// The sum of `part(i)` for `count` members from `first` on, around the circle.
fn around(size: usize, first: usize, count: usize, part: &dyn Fn(usize) -> usize) -> usize {
    (first..first + count).map(|member| part(member % size)).sum()
}

/// What member `me` sends when parts spread by doubling (Thakur 2005; Träff 2024): a power of two
/// exchanges ever larger aligned groups; any other number sends, from its own part on, what brings
/// the next member from ceil(p/2^k) parts to ceil(p/2^(k-1)).
fn doubled(size: usize, me: usize, part: &dyn Fn(usize) -> usize) -> usize {
    if size.is_power_of_two() {
        let groups = (0..size.ilog2()).map(|bit| 1usize << bit);
        return groups.map(|group| around(size, me / group * group, group, part)).sum();
    }
    let (mut sent, mut known) = (0, size);
    while known > 1 {
        let before = known.div_ceil(2);
        sent += around(size, me, known - before, part);
        known = before;
    }
    sent
}

impl World<'_> {
    /// How far this rank is from the root, upwards.
    fn distance(&self, root: u32) -> usize {
        (self.rank + self.ranks - root as usize) % self.ranks
    }

    /// Elements of the block of `rank`.
    fn block(&self, rank: usize) -> usize {
        if self.case.counts.len() == 1 { self.case.counts[0] } else { self.case.counts[rank] }
    }

    fn all_blocks(&self) -> usize {
        (0..self.ranks).map(|rank| self.block(rank)).sum()
    }

    fn all_reduce(&self, algorithm: Algorithm, n: usize) -> Sent {
        let (p, r) = (self.ranks, self.rank);
        let core = 1 << p.ilog2();
        Exactly(match algorithm {
            // Patarasuk and Yuan 2009: every share but the one that ends here, then every share but
            // the next rank's.
            Algorithm::Ring => 2 * n - share(n, p, r) - share(n, p, (r + 1) % p),
            // The same on even and odd halves of shares, the odd ones downwards.
            Algorithm::BiRing => {
                let half = |rank: usize, lane: usize| share(n, 2 * p, 2 * (rank % p) + lane);
                2 * n - half(r, 0) - half(r, 1) - half(r + 1, 0) - half(r + p - 1, 1)
            }
            // Rabenseifner 2004: every share but its own, then doubling.
            Algorithm::Halving => n - share(n, p, r) + doubled(p, r, &|i| share(n, p, i)),
            // Whole vectors: log2 of them, and one to or from a rank beyond the power of two.
            Algorithm::Doubling if r >= core => n,
            Algorithm::Doubling => n * (p.ilog2() as usize + usize::from(r + core < p)),
            // Up once, and down to every child.
            Algorithm::Binomial => n * (usize::from(r > 0) + children(r, p).count()),
            Algorithm::Direct => n * (p - 1),
            // Every share to its owner, and the own one to everyone.
            Algorithm::Ordered => n - share(n, p, r) + (p - 1) * share(n, p, r),
            // Li et al. 2014: every share but its own to its server; a server answers all workers.
            Algorithm::ParameterServer { servers } => {
                let servers = servers as usize;
                let own = if r < servers { share(n, servers, r) } else { 0 };
                n - own + (p - 1) * own
            }
            // Two trees, in one of which a rank is a leaf: up once, down to two children of half.
            Algorithm::DoubleTree => return AtMost(2 * n + 1, 2 * n * (p - 1)),
            // As few as a flat algorithm, together; a rank that stands in for others sends theirs.
            Algorithm::Hierarchical { .. } => {
                let full = self.has_full_nodes(algorithm);
                if full && n.is_multiple_of(p) {
                    return Exactly(2 * n / p * (p - 1));
                }
                return AtMost(2 * n * p, 2 * n * (p - 1));
            }
            // All columns but the own one to their ranks, the own one across as in doubling, and to
            // the others of the node; whoever stands in for others sends theirs.
            Algorithm::NodeDoubling { node_ranks } => {
                let g = node_ranks as usize;
                let nodes = p.div_ceil(g);
                let (log, core) = (nodes.ilog2() as usize, 1 << nodes.ilog2());
                if !p.is_multiple_of(g) {
                    let across = n * (core * log + 2 * (nodes - core));
                    return AtMost(2 * n * p, 2 * n * (p - nodes) + across);
                }
                let (own, node) = (share(n, g, r % g), r / g);
                let times = log + usize::from(node + core < nodes);
                n - own + (g - 1) * own + own * if node >= core { 1 } else { times }
            }
            _ => unreachable!("{algorithm} does no all-reduce"),
        })
    }

    fn has_full_nodes(&self, algorithm: Algorithm) -> bool {
        let Algorithm::Hierarchical { node_ranks } = algorithm else { return false };
        self.ranks.is_multiple_of(node_ranks as usize)
    }

    /// All contributions but the one that stays: n(p-1)/p for equal blocks.
    fn reduce_scatter(&self, algorithm: Algorithm) -> Sent {
        let others = self.all_blocks() - self.block(self.rank);
        if matches!(algorithm, Algorithm::Hierarchical { .. }) && !self.has_full_nodes(algorithm) {
            let total = self.all_blocks() * (self.ranks - 1);
            return AtMost(total, total);
        }
        Exactly(others)
    }

    fn all_gather(&self, algorithm: Algorithm) -> Sent {
        let (p, r) = (self.ranks, self.rank);
        let all = self.all_blocks();
        Exactly(match algorithm {
            Algorithm::Ring => all - self.block((r + 1) % p),
            Algorithm::BiRing => {
                let half = |rank: usize, lane| share(self.block(rank % p), 2, lane);
                all - half(r + 1, 0) - half(r + p - 1, 1)
            }
            Algorithm::Pairwise | Algorithm::Direct => (p - 1) * self.block(r),
            Algorithm::Doubling => doubled(p, r, &|i| self.block(i)),
            Algorithm::Bruck => {
                // As many blocks from the own one on as doubles what the rank before knows.
                let steps = (0..p.next_power_of_two().ilog2()).map(|bit| 1usize << bit);
                steps.map(|known| around(p, r, known.min(p - known), &|i| self.block(i))).sum()
            }
            Algorithm::Hierarchical { .. } if self.has_full_nodes(algorithm) => {
                let Algorithm::Hierarchical { node_ranks } = algorithm else { unreachable!() };
                let (g, nodes) = (node_ranks as usize, p / node_ranks as usize);
                let column = |node: usize| self.block(node * g + r % g);
                let inside = (g - 1) * (0..nodes).map(column).sum::<usize>();
                doubled(nodes, r / g, &column) + inside
            }
            Algorithm::Hierarchical { .. } => return AtMost(all * (p - 1), all * (p - 1)),
            _ => unreachable!("{algorithm} does no all-gather"),
        })
    }

    /// `v`: how far this rank is from the root.
    fn broadcast(&self, algorithm: Algorithm, n: usize, v: usize) -> Sent {
        let p = self.ranks;
        Exactly(match algorithm {
            // A chain: all but the last pass it on.
            Algorithm::Ring => n * usize::from(v + 1 < p),
            Algorithm::Binomial => n * children(v, p).count(),
            Algorithm::Direct => n * if v == 0 { p - 1 } else { 0 },
            // Van de Geijn: shares down the tree, then doubling.
            Algorithm::Halving => {
                let part = |i: usize| share(n, p, i);
                let below = |child: usize| around(p, child, subtree(child, p), &part);
                children(v, p).map(below).sum::<usize>() + doubled(p, v, &part)
            }
            Algorithm::DoubleTree => return AtMost(n + 1, n * (p - 1)),
            _ => unreachable!("{algorithm} does no broadcast"),
        })
    }

    /// Every rank but the root sends one vector, by whatever tree.
    fn reduce(&self, algorithm: Algorithm, n: usize, v: usize) -> Sent {
        let one = Exactly(if v == 0 { 0 } else { n });
        match algorithm {
            Algorithm::Ring | Algorithm::Binomial | Algorithm::Direct => one,
            Algorithm::Ordered | Algorithm::DoubleTree => one,
            _ => unreachable!("{algorithm} does no reduce"),
        }
    }

    fn all_to_all(&self, algorithm: Algorithm) -> usize {
        let (p, counts) = (self.ranks, &self.case.counts);
        if algorithm == Algorithm::Bruck {
            // Bruck et al. 1997: a block for the rank at distance j travels once per bit of j.
            return counts[0] * (1..p).map(|j| j.count_ones() as usize).sum::<usize>();
        }
        if counts.len() == 1 {
            return counts[0] * (p - 1);
        }
        let row = &counts[self.rank * p..][..p];
        row.iter().sum::<usize>() - row[self.rank]
    }

    fn gather(&self, algorithm: Algorithm, v: usize) -> usize {
        match algorithm {
            _ if v == 0 => 0,
            Algorithm::Binomial => self.case.counts[0] * subtree(v, self.ranks),
            _ => self.block(self.rank),
        }
    }

    fn scatter(&self, algorithm: Algorithm, v: usize) -> usize {
        let below = |child| self.case.counts[0] * subtree(child, self.ranks);
        match algorithm {
            Algorithm::Binomial => children(v, self.ranks).map(below).sum(),
            _ if v == 0 => self.all_blocks() - self.block(self.rank),
            _ => 0,
        }
    }
}
