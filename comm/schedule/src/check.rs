//! The proof: runs the programs of all ranks on symbols instead of numbers.
//!
//! What is proved for a set of programs, for every length of every chunk and every timing:
//!
//! * **matched**: every chunk that is sent is received, in a chunk of the same length;
//! * **no deadlock**: neither on wires that never fill up, nor on wires so short that they hold
//!   half a chunk, where a send cannot end before its receiver has begun;
//! * **right**: every output holds what the collective promises, each contribution exactly once;
//! * **same**: ranks that output the same chunk computed the same expression, up to swapping
//!   the two operands of a fold, so they hold the same bits;
//! * **ordered**: [`Algorithm::Ordered`] computes `((x0 ⊕ x1) ⊕ x2) ⊕ ...`, every operand on its
//!   side, as operators that do not commute need it.
//!
//! One run proves all timings, because a program names its partners: which message meets which
//! receive, and which move waits for which, is fixed before anything moves. That is a graph
//! (`graph.rs`), free of deadlock exactly if it has no circle; any order along its edges computes
//! the same values (`expression.rs`). Lengths are proved by name: a chunk may only travel to a
//! chunk that shares its length by definition.

use crate::expression::{Expressions, Value};
use crate::graph::{Graph, Wires};
use crate::{Algorithm, Collective, Fault, Move, Program, program};

/// What a proof counted on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Moves of all ranks.
    pub moves: usize,
    /// Chunks sent by all ranks.
    pub sent_chunks: usize,
    /// Messages in the longest chain in which each one waits for the one before.
    pub steps: u32,
    /// Whether every output is `((x0 ⊕ x1) ⊕ x2) ⊕ ...`, also for operators that do not commute.
    pub in_rank_order: bool,
}

/// Proves one schedule. Cost: about 0.2 µs for each chunk sent, all ranks together.
///
/// Errors: the first [`Fault`] found; [`Fault::Impossible`] if there is no such schedule.
pub fn check(collective: Collective, algorithm: Algorithm, ranks: u32) -> Result<Report, Fault> {
    let all = (0..ranks).map(|rank| program(collective, algorithm, ranks, rank));
    let all: Option<Vec<Program>> = all.collect();
    let all = all.filter(|all| !all.is_empty());
    check_programs(&all.ok_or(Fault::Impossible { collective, algorithm, ranks })?)
}

/// Proves a set of programs, one for each rank, in order. Cost as for [`check`].
///
/// Errors: the first [`Fault`] found; [`Fault::Strangers`] if there are no programs.
pub fn check_programs(programs: &[Program]) -> Result<Report, Fault> {
    well_formed(programs)?;
    let graph = Graph::new(programs)?;
    graph.order(Wires::HalfChunk)?;
    let order = graph.order(Wires::Endless)?;
    let mut run = Run::new(programs, &graph);
    for &node in &order {
        run.step(node)?;
    }
    let in_rank_order = run.outputs()?;
    let (sent_chunks, steps) = (graph.sends(), graph.steps(&order));
    let moves = programs.iter().map(|program| program.moves.len()).sum();
    Ok(Report { moves, sent_chunks, steps, in_rank_order })
}

/// Every name in every program names something.
fn well_formed(programs: &[Program]) -> Result<(), Fault> {
    let count = programs.len();
    let first = programs.first().ok_or(Fault::Strangers { index: 0, count })?;
    for (index, program) in programs.iter().enumerate() {
        let same = program.collective == first.collective
            && program.algorithm == first.algorithm
            && program.pieces == first.pieces
            && program.ranks as usize == count
            && program.rank as usize == index;
        let root = program.collective.root().unwrap_or(0);
        if !same || program.pieces == 0 || root >= program.ranks {
            return Err(Fault::Strangers { index, count });
        }
        let rank = program.rank;
        if let Some(like) = program.scratch.iter().find(|&&like| like >= program.chunks()) {
            let what = format!("scratch shares the length of chunk {like}, which does not exist");
            return Err(Fault::Malformed { rank, index: program.moves.len() as u32, what });
        }
        for (index, &step) in program.moves.iter().enumerate() {
            malformed(program, step)
                .map_or(Ok(()), |what| Err(Fault::Malformed { rank, index: index as u32, what }))?;
        }
    }
    Ok(())
}

/// What a move names that is not there, if anything.
fn malformed(program: &Program, step: Move) -> Option<String> {
    let chunks = program.chunks();
    let total = chunks + program.scratch.len() as u32;
    let spans = match step {
        Move::Merge { from, into } => {
            if from.count != into.count || (from.first < into.end() && into.first < from.end()) {
                return Some(format!("merges {from:?} into {into:?}: unequal or overlapping"));
            }
            [from, into]
        }
        _ => [step.span(); 2],
    };
    for span in spans {
        let end = span.first.saturating_add(span.count);
        if span.count == 0 || end > total || (span.first < chunks && end > chunks) {
            return Some(format!("{span:?} is not a run of the {total} chunks"));
        }
    }
    let peer = step.peer()?;
    (peer == program.rank || peer >= program.ranks).then(|| format!("rank {peer} is no peer"))
}

/// The programs in motion: what every chunk of every rank holds, as an expression.
struct Run<'a> {
    programs: &'a [Program],
    graph: &'a Graph<'a>,
    expressions: Expressions,
    /// Per rank, what each of its chunks holds.
    held: Vec<Vec<Value>>,
    /// Per node, what it has put on the wire.
    sent: Vec<Value>,
}

impl<'a> Run<'a> {
    fn new(programs: &'a [Program], graph: &'a Graph<'a>) -> Self {
        let held = programs.iter().map(|program| {
            let (ranks, rank) = (program.ranks, program.rank);
            let input = |chunk| program.collective.has_input(ranks, rank, chunk / program.pieces);
            let brought = Value::of_rank(rank);
            let value = |chunk| if input(chunk) { brought } else { Value::NONE };
            let scratch = program.scratch.iter().map(|_| Value::NONE);
            (0..program.chunks()).map(value).chain(scratch).collect()
        });
        Self {
            programs,
            graph,
            expressions: Expressions::new(programs.len() as u32),
            held: held.collect(),
            sent: vec![Value::NONE; graph.nodes.len()],
        }
    }

    /// Lets one chunk of one move happen. In a barrier a receive adds to what is known.
    fn step(&mut self, node: u32) -> Result<(), Fault> {
        let at = self.graph.nodes[node as usize];
        let arriving = self.graph.partner(node).map(|send| self.sent[send as usize]);
        let here = &mut self.held[at.rank as usize];
        let old = here[at.chunk as usize];
        let barrier = self.programs[0].collective == Collective::Barrier;
        let (left, right) = match self.programs[at.rank as usize].moves[at.index as usize] {
            Move::Send { .. } => {
                self.sent[node as usize] = old;
                return if old.is_empty() { Err(at.empty(at.chunk)) } else { Ok(()) };
            }
            Move::Recv { .. } if !barrier => {
                here[at.chunk as usize] = arriving.expect("a receive has a partner");
                return Ok(());
            }
            Move::Recv { .. } | Move::Fold { .. } => {
                (old, arriving.expect("a receive has a partner"))
            }
            Move::Merge { .. } => (here[at.source as usize], old),
        };
        if left.is_empty() || right.is_empty() {
            let empty = if old.is_empty() { at.chunk } else { at.source };
            return Err(at.empty(empty));
        }
        here[at.chunk as usize] = self.expressions.fold(left, right);
        Ok(())
    }

    /// Judges every output; says whether all are folded in rank order.
    fn outputs(&mut self) -> Result<bool, Fault> {
        let Program { collective, ranks, pieces, algorithm, .. } = self.programs[0];
        let mut first_holder = vec![None; self.programs[0].chunks() as usize];
        let mut all_in_order = collective.folds();
        for rank in 0..ranks {
            for chunk in 0..self.programs[0].chunks() {
                if !collective.has_output(ranks, rank, chunk / pieces) {
                    continue;
                }
                let got = self.held[rank as usize][chunk as usize];
                self.judge(rank, chunk, got)?;
                all_in_order &= got.is_left_fold(ranks);
                if algorithm == Algorithm::Ordered && !all_in_order {
                    let want = "the fold in rank order".to_string();
                    return Err(self.wrong(rank, chunk, got, want));
                }
                let other = *first_holder[chunk as usize].get_or_insert(rank);
                let want = self.held[other as usize][chunk as usize];
                if want.number != got.number && collective != Collective::Barrier {
                    let [got, want] = [got, want].map(|value| self.expressions.text(value));
                    return Err(Fault::Discord { chunk, rank, got, other, want });
                }
            }
        }
        Ok(all_in_order)
    }

    /// Whether `got` is what `collective` promises for `chunk`.
    fn judge(&self, rank: u32, chunk: u32, got: Value) -> Result<(), Fault> {
        let Program { collective, ranks, pieces, .. } = self.programs[0];
        let block = chunk / pieces;
        let source = match collective {
            Collective::AllGather | Collective::Gather { .. } => block,
            Collective::AllToAll => block / ranks,
            Collective::Broadcast { root } | Collective::Scatter { root } => root,
            Collective::Barrier => {
                let heard = !got.is_empty() && self.expressions.has_all(got);
                let want = || "word from every rank".to_string();
                return if heard { Ok(()) } else { Err(self.wrong(rank, chunk, got, want())) };
            }
            Collective::AllReduce | Collective::ReduceScatter | Collective::Reduce { .. } => {
                let whole = !got.is_empty()
                    && self.expressions.has_all(got)
                    && self.expressions.is_once(got);
                let want = || "every rank's contribution once".to_string();
                return if whole { Ok(()) } else { Err(self.wrong(rank, chunk, got, want())) };
            }
        };
        let want = || format!("what rank {source} brought");
        if got.number == source { Ok(()) } else { Err(self.wrong(rank, chunk, got, want())) }
    }

    fn wrong(&self, rank: u32, chunk: u32, got: Value, want: String) -> Fault {
        Fault::Wrong { rank, chunk, got: self.expressions.text(got), want }
    }
}
