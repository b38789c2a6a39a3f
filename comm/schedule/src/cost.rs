//! The price of a schedule in the alpha-beta-gamma model, by simulating every message.
//!
//! * A message of m bytes reaches its end alpha + beta·m after it began; folding adds gamma·m.
//! * A rank has a port out and a port in to ranks of its node, and the same to other nodes
//!   ([`Link::crosses`]); all of them work at the same time. A message holds one at each end for
//!   its beta·m and a part of its alpha ([`BUSY`]), so many small messages are not free either.
//! * A rank passes on what is still arriving in slots of [`STREAM_BYTES`], fairly to all peers.
//! * Wires never fill up.
//!
//! With messages no longer than `STREAM_BYTES` this gives the textbook formulas: a ring all-reduce
//! costs `2(P-1)(alpha + beta·n/P) + (P-1)·gamma·n/P`. Longer messages overlap and cost less.
//! Hockney 1994; cut-through as in LogGP (Alexandrov et al. 1995). [`crate::predict`] is the quick
//! version.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::graph::{Graph, Why, Wires};
use crate::{Algorithm, Collective, Link, Move, Program, program};

/// The part of alpha in which a message keeps the port at each end busy; the rest is flight.
pub(crate) const BUSY: f64 = 0.25;

/// What a rank passes on at once of a chunk that is still arriving, bytes: a slot of a wire.
pub(crate) const STREAM_BYTES: f64 = 65_536.0;

/// The most slots that a simulation takes on; beyond, slots get longer.
const SLOTS_MAX: usize = 50_000;

/// What a collective costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// From the first rank's start to the last rank's end; all start at once.
    pub seconds: f64,
    /// Messages in the longest chain of which each waits for the one before.
    pub steps: u32,
    /// Payload bytes sent by the rank that sends most.
    pub sent_bytes_max: u64,
}

/// Simulates a collective over `bytes`: the vector, or all blocks of a rank together. `links(from,
/// to)` is the wire between two ranks. Cost: about 0.3 µs for each slot sent, at most some 20 ms.
///
/// `None` if there is no such schedule.
pub fn cost(
    collective: Collective,
    algorithm: Algorithm,
    ranks: u32,
    bytes: u64,
    links: impl Fn(u32, u32) -> Link,
) -> Option<Cost> {
    let all = (0..ranks).map(|rank| program(collective, algorithm, ranks, rank));
    let programs = all.collect::<Option<Vec<Program>>>().filter(|all| !all.is_empty())?;
    let graph = Graph::new(&programs).ok()?;
    let order = graph.order(Wires::Endless).ok()?;
    let lengths = even_cut(&programs[0], bytes);
    let sent = programs.iter().map(|program| sent_bytes(program, &lengths));
    Some(Cost {
        seconds: Simulation::new(&programs, &graph, &lengths).run(links),
        steps: graph.steps(&order),
        sent_bytes_max: sent.max()?,
    })
}

/// Payload bytes that a rank sends. `lengths`: [chunks of the collective] bytes of each chunk.
///
/// Panics if `lengths` is shorter than that.
pub fn sent_bytes(program: &Program, lengths: &[u64]) -> u64 {
    let sent = program.moves.iter().filter(|step| matches!(step, Move::Send { .. }));
    let chunks = sent.flat_map(|step| step.span().chunks());
    chunks.map(|chunk| lengths[program.shape(chunk) as usize]).sum()
}

/// The length of each chunk if `total` (the vector, or all blocks of a rank together) is cut as
/// evenly as whole units allow, into blocks and then into pieces, longer ones first. A barrier has
/// nothing to cut.
pub fn even_cut(program: &Program, total: u64) -> Vec<u64> {
    let blocks = match program.collective {
        Collective::AllToAll => program.ranks,
        collective => collective.blocks(program.ranks),
    };
    let share = |total: u64, shares: u32, index: u32| {
        let (each, left) = (total / u64::from(shares), total % u64::from(shares));
        each + u64::from(u64::from(index) < left)
    };
    if program.collective == Collective::Barrier {
        return vec![0; program.chunks() as usize];
    }
    let length = |chunk: u32| {
        let (block, piece) = (chunk / program.pieces, chunk % program.pieces);
        share(share(total, blocks, block % blocks), program.pieces, piece)
    };
    (0..program.chunks()).map(length).collect()
}

/// Messages in motion. What moves is a slot: one of `slots` equal parts of a node of the graph.
struct Simulation<'a> {
    programs: &'a [Program],
    graph: &'a Graph<'a>,
    lengths: &'a [u64],
    slots: u32,
    /// Per slot, the earliest time that what it waits for allows.
    earliest: Vec<f64>,
    /// Per slot, how many it still waits for.
    waits: Vec<u32>,
    /// Per rank, when its ports inside its node are free, and those across: in, and out.
    ports: Vec<[[f64; 2]; 2]>,
}

impl<'a> Simulation<'a> {
    fn new(programs: &'a [Program], graph: &'a Graph<'a>, lengths: &'a [u64]) -> Self {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let affordable = (SLOTS_MAX / graph.nodes.len().max(1)).clamp(1, 4096) as u64;
        let slots = longest.div_ceil(STREAM_BYTES as u64).clamp(1, affordable) as u32;
        let waits = graph.waits(Wires::EndlessIn(slots));
        let (earliest, ports) = (vec![0.0; waits.len()], vec![[[0.0; 2]; 2]; programs.len()]);
        Self { programs, graph, lengths, slots, earliest, waits, ports }
    }

    /// Lets slots happen as they become ready; returns when the last one has.
    fn run(mut self, links: impl Fn(u32, u32) -> Link) -> f64 {
        let mut ready = BinaryHeap::new();
        let free = (0..self.waits.len() as u32).filter(|&slot| self.waits[slot as usize] == 0);
        ready.extend(free.map(|slot| Reverse((0, slot))));
        let mut last = 0.0f64;
        while let Some(Reverse((_, slot))) = ready.pop() {
            let (begin, end, alpha) = self.happen(slot, &links);
            last = last.max(end);
            self.graph.followers(slot, Wires::EndlessIn(self.slots), |later, why| {
                let after = if why == Why::Message { begin + alpha } else { end };
                let there = &mut self.earliest[later as usize];
                *there = there.max(after);
                self.waits[later as usize] -= 1;
                if self.waits[later as usize] == 0 {
                    // Times are not negative, so their bits are in the order of their values.
                    ready.push(Reverse((there.to_bits(), later)));
                }
            });
        }
        last
    }

    /// When a slot begins and ends, and its wire's alpha.
    fn happen(&mut self, slot: u32, links: &impl Fn(u32, u32) -> Link) -> (f64, f64, f64) {
        let (node, part) = (slot / self.slots, slot % self.slots);
        let at = self.graph.nodes[node as usize];
        let program = &self.programs[at.rank as usize];
        let step = program.moves[at.index as usize];
        let chunk_bytes = self.lengths[program.shape(at.chunk) as usize];
        let bytes = chunk_bytes as f64 / f64::from(self.slots);
        let earliest = self.earliest[slot as usize];
        let (link, pace, way) = match step {
            Move::Send { to, .. } => {
                let link = links(at.rank, to);
                (link, link.beta_s_per_byte, 1)
            }
            Move::Recv { from, .. } => {
                let link = links(from, at.rank);
                (link, link.beta_s_per_byte, 0)
            }
            Move::Fold { from, .. } => {
                let link = links(from, at.rank);
                (link, link.beta_s_per_byte + link.gamma_s_per_byte, 0)
            }
            Move::Merge { .. } => {
                let link = links((at.rank + 1) % program.ranks, at.rank);
                return (earliest, earliest + link.gamma_s_per_byte * bytes, 0.0);
            }
        };
        let free = &mut self.ports[at.rank as usize][usize::from(link.crosses)][way];
        let begin = earliest.max(*free);
        let end = begin + pace * bytes;
        // The chunks of one move travel as one message.
        let message = step.span().first == at.chunk && part == 0;
        *free = end + if message { BUSY * link.alpha_s } else { 0.0 };
        (begin, end, link.alpha_s)
    }
}
