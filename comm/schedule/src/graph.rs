//! Which chunk of which move waits for which: the order that any execution must keep.
//!
//! A node is one chunk of one move. A node waits for
//!
//! * the chunk before it on its end of the wire;
//! * the send that feeds it, if it receives;
//! * the earlier moves of its rank that touch its chunk, if it or they write it;
//! * room on the wire, if it sends and wires are short.
//!
//! Waiting is byte by byte, so a node may be looked at in parts, which wait separately.

use crate::{Fault, Move, Program};

/// No node.
const NONE: u32 = u32::MAX;

/// One chunk of one move.
#[derive(Clone, Copy)]
pub(crate) struct Node {
    pub(crate) rank: u32,
    /// The move.
    pub(crate) index: u32,
    /// The chunk that is sent or written.
    pub(crate) chunk: u32,
    /// The chunk that is read besides: of a merge, the operand.
    pub(crate) source: u32,
}

impl Node {
    pub(crate) fn empty(self, chunk: u32) -> Fault {
        Fault::Empty { rank: self.rank, index: self.index, chunk }
    }
}

/// What wires can hold; and with it, in how many parts of a chunk waiting is looked at. Part `p` of
/// node `n` is the unit `n * parts + p`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wires {
    /// Everything: no send waits for room.
    Endless,
    /// The same, looked at in so many parts.
    EndlessIn(u32),
    /// One of two parts of a chunk: no send ends before its receiver has begun.
    HalfChunk,
}

impl Wires {
    fn parts(self) -> u32 {
        match self {
            Self::Endless => 1,
            Self::EndlessIn(parts) => parts,
            Self::HalfChunk => 2,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Endless | Self::EndlessIn(_) => "any length",
            Self::HalfChunk => "half a chunk",
        }
    }
}

/// Why a node waits for another one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It comes later on the same end of a wire.
    Wire,
    /// It receives what the other one sends.
    Message,
    /// It needs the room on the wire that the other one makes.
    Room,
    /// They touch the same chunk.
    Chunk,
}

/// All nodes of a set of programs, and who waits for whom.
pub(crate) struct Graph<'a> {
    programs: &'a [Program],
    pub(crate) nodes: Vec<Node>,
    /// The next node at the same end of the same wire.
    next: Vec<u32>,
    /// The node at the other end of the wire.
    across: Vec<u32>,
    /// The nodes that wait for each node because of a chunk, one after the other.
    conflicts: Vec<u32>,
    /// Where each node's begin.
    conflicts_of: Vec<u32>,
}

impl<'a> Graph<'a> {
    /// Errors: [`Fault::Unmatched`], [`Fault::Shape`].
    pub(crate) fn new(programs: &'a [Program]) -> Result<Self, Fault> {
        let nodes: Vec<Node> = programs.iter().flat_map(nodes_of).collect();
        let (next, across) = wires(programs, &nodes)?;
        for (&here, &there) in nodes.iter().zip(&across) {
            fits(programs, here, (there != NONE).then(|| nodes[there as usize]))?;
        }
        let (conflicts, conflicts_of) = conflicts(programs, &nodes);
        Ok(Self { programs, nodes, next, across, conflicts, conflicts_of })
    }

    /// How many chunks are sent.
    pub(crate) fn sends(&self) -> usize {
        (0..self.nodes.len() as u32).filter(|&node| self.is_send(node)).count()
    }

    /// The send that feeds a receiving node.
    pub(crate) fn partner(&self, node: u32) -> Option<u32> {
        let across = self.across[node as usize];
        (across != NONE && !self.is_send(node)).then_some(across)
    }

    /// The node at the other end of the wire of a send.
    pub(crate) fn across(&self, send: u32) -> u32 {
        self.across[send as usize]
    }

    /// An order of all units in which each comes after what it waits for.
    ///
    /// Errors: [`Fault::Deadlock`].
    pub(crate) fn order(&self, wires: Wires) -> Result<Vec<u32>, Fault> {
        let total = self.nodes.len() as u32 * wires.parts();
        let mut waits = self.waits(wires);
        let mut order: Vec<u32> = (0..total).filter(|&unit| waits[unit as usize] == 0).collect();
        let mut done = 0;
        while let Some(&unit) = order.get(done) {
            done += 1;
            self.followers(unit, wires, |follower, _| {
                waits[follower as usize] -= 1;
                if waits[follower as usize] == 0 {
                    order.push(follower);
                }
            });
        }
        if order.len() == total as usize {
            return Ok(order);
        }
        Err(Fault::Deadlock { wires: wires.name(), circle: self.circle(wires, &waits) })
    }

    /// For each unit, how many others it waits for.
    pub(crate) fn waits(&self, wires: Wires) -> Vec<u32> {
        let total = self.nodes.len() as u32 * wires.parts();
        let mut waits = vec![0; total as usize];
        for unit in 0..total {
            self.followers(unit, wires, |follower, _| waits[follower as usize] += 1);
        }
        waits
    }

    /// The most messages in a chain, given an order.
    pub(crate) fn steps(&self, order: &[u32]) -> u32 {
        let after = |(node, steps): (u32, u32)| steps + u32::from(self.is_send(node));
        (0..).zip(self.steps_before(order)).map(after).max().unwrap_or(0)
    }

    /// For each node, the messages in the longest chain that ends before it.
    pub(crate) fn steps_before(&self, order: &[u32]) -> Vec<u32> {
        let mut steps = vec![0u32; self.nodes.len()];
        for &node in order {
            let before = steps[node as usize];
            self.followers(node, Wires::Endless, |follower, why| {
                let there = &mut steps[follower as usize];
                *there = (*there).max(before + u32::from(why == Why::Message));
            });
        }
        steps
    }

    /// Whether a node sends.
    pub(crate) fn is_send(&self, node: u32) -> bool {
        let Node { rank, index, .. } = self.nodes[node as usize];
        matches!(self.programs[rank as usize].moves[index as usize], Move::Send { .. })
    }

    /// Everything that waits for a unit, and why.
    pub(crate) fn followers(&self, unit: u32, wires: Wires, mut follow: impl FnMut(u32, Why)) {
        let parts = wires.parts();
        let (node, part) = (unit / parts, unit % parts);
        let after = |node: u32| {
            let next = self.next[node as usize];
            if part + 1 < parts {
                Some(node * parts + part + 1)
            } else {
                (next != NONE).then(|| next * parts)
            }
        };
        let across = self.across[node as usize];
        if across != NONE {
            after(node).into_iter().for_each(|later| follow(later, Why::Wire));
            if self.is_send(node) {
                follow(across * parts + part, Why::Message);
            } else if wires == Wires::HalfChunk {
                after(across).into_iter().for_each(|later| follow(later, Why::Room));
            }
        }
        self.conflicting(node).iter().for_each(|&later| follow(later * parts + part, Why::Chunk));
    }

    /// The later moves of the same rank that wait for `node` because of its chunks.
    fn conflicting(&self, node: u32) -> &[u32] {
        let [from, to] = [node, node + 1].map(|node| self.conflicts_of[node as usize] as usize);
        &self.conflicts[from..to]
    }

    /// A circle among the units that still wait, in words.
    fn circle(&self, wires: Wires, waits: &[u32]) -> String {
        let stuck = |unit: u32| waits[unit as usize] > 0;
        let mut waits_for = vec![NONE; waits.len()];
        for unit in (0..waits.len() as u32).filter(|&unit| stuck(unit)) {
            self.followers(unit, wires, |follower, _| waits_for[follower as usize] = unit);
        }
        // Everything stuck waits for something stuck, so this walk must come back to where it was.
        let mut met = vec![false; waits.len()];
        let mut unit = (0..waits.len() as u32).find(|&unit| stuck(unit)).unwrap_or(0);
        while !met[unit as usize] {
            met[unit as usize] = true;
            unit = waits_for[unit as usize];
        }
        let mut text = Vec::new();
        let start = unit;
        loop {
            let Node { rank, index, chunk, .. } = self.nodes[(unit / wires.parts()) as usize];
            let place = format!("rank {rank}, move {index} (chunk {chunk})");
            if text.last() != Some(&place) {
                text.push(place);
            }
            unit = waits_for[unit as usize];
            if unit == start || text.len() == 8 {
                let end = if unit == start { "the first" } else { "others, around to the first" };
                return format!("{} waits for {end}", text.join(" waits for "));
            }
        }
    }
}

/// The nodes of one program, in program order.
fn nodes_of(program: &Program) -> impl Iterator<Item = Node> {
    program.moves.iter().zip(0..).flat_map(|(&step, index)| {
        let (span, rank) = (step.span(), program.rank);
        let source = if let Move::Merge { from, .. } = step { from.first } else { span.first };
        (0..span.count).map(move |i| {
            let (chunk, source) = (span.first + i, source + i);
            Node { rank, index, chunk, source }
        })
    })
}

/// For each node, the next one at the same end of its wire, and the one at the other end.
fn wires(programs: &[Program], nodes: &[Node]) -> Result<(Vec<u32>, Vec<u32>), Fault> {
    let ranks = programs.len();
    let (mut next, mut across) = (vec![NONE; nodes.len()], vec![NONE; nodes.len()]);
    // Per wire, the last node at either end and the first one that has no partner yet.
    let mut last = vec![[NONE; 2]; ranks * ranks];
    let mut open = vec![[NONE; 2]; ranks * ranks];
    let place = |node: Node| {
        let step = programs[node.rank as usize].moves[node.index as usize];
        let (here, peer) = (node.rank as usize, step.peer()? as usize);
        let sends = matches!(step, Move::Send { .. });
        Some((if sends { here * ranks + peer } else { peer * ranks + here }, usize::from(sends)))
    };
    for (number, &node) in (0..).zip(nodes) {
        let Some((wire, end)) = place(node) else { continue };
        if let Some(before) = next.get_mut(last[wire][end] as usize) {
            *before = number;
        }
        last[wire][end] = number;
        if open[wire][end] == NONE {
            open[wire][end] = number;
        }
        while open[wire][0] != NONE && open[wire][1] != NONE {
            let [receive, send] = open[wire];
            across[receive as usize] = send;
            across[send as usize] = receive;
            open[wire] = [next[receive as usize], next[send as usize]];
        }
    }
    for (&node, &partner) in nodes.iter().zip(&across) {
        let step = programs[node.rank as usize].moves[node.index as usize];
        if let (Some(peer), NONE) = (step.peer(), partner) {
            let Node { rank, index, chunk, .. } = node;
            return Err(Fault::Unmatched { rank, index, chunk, peer });
        }
    }
    Ok((next, across))
}

/// Whether what a node is given has the length of the chunk it writes.
fn fits(programs: &[Program], here: Node, there: Option<Node>) -> Result<(), Fault> {
    let shape = |rank: u32, chunk| programs[rank as usize].shape(chunk);
    let Node { rank, index, chunk, source } = here;
    let (peer, given) = there.map_or((rank, source), |there| (there.rank, there.chunk));
    if shape(rank, chunk) == shape(peer, given) {
        return Ok(());
    }
    Err(Fault::Shape { rank, index, chunk, given })
}

/// Which nodes of the same rank wait for which because they touch the same chunk and one of them
/// writes it: the followers of each node, one after the other, and where each node's begin.
fn conflicts(programs: &[Program], nodes: &[Node]) -> (Vec<u32>, Vec<u32>) {
    let mut pairs: Vec<(u32, u32)> = Vec::with_capacity(nodes.len());
    // Per chunk of the rank at hand: who wrote it last, and who has read it since.
    let mut chunks: Vec<(u32, Vec<u32>)> = Vec::new();
    let mut rank = NONE;
    for (number, node) in (0..).zip(nodes) {
        if node.rank != rank {
            rank = node.rank;
            let program = &programs[rank as usize];
            chunks.resize(program.chunks() as usize + program.scratch.len(), (NONE, Vec::new()));
            for (writer, readers) in &mut chunks {
                *writer = NONE;
                readers.clear();
            }
        }
        let step = programs[rank as usize].moves[node.index as usize];
        let reads = match step {
            Move::Send { .. } => Some(node.chunk),
            Move::Merge { .. } => Some(node.source),
            Move::Recv { .. } | Move::Fold { .. } => None,
        };
        if let Some(chunk) = reads {
            let (writer, readers) = &mut chunks[chunk as usize];
            readers.push(number);
            pairs.extend((*writer != NONE).then_some((*writer, number)));
        }
        if !matches!(step, Move::Send { .. }) {
            let (writer, readers) = &mut chunks[node.chunk as usize];
            if readers.is_empty() {
                pairs.extend((*writer != NONE).then_some((*writer, number)));
            }
            pairs.extend(readers.drain(..).map(|reader| (reader, number)));
            *writer = number;
        }
    }
    pairs.sort_unstable();
    let mut starts = vec![0u32; nodes.len() + 1];
    pairs.iter().for_each(|&(earlier, _)| starts[earlier as usize + 1] += 1);
    for node in 0..nodes.len() {
        starts[node + 1] += starts[node];
    }
    (pairs.into_iter().map(|(_, later)| later).collect(), starts)
}
