//! The plain executor that judges the checker: it runs programs on numbers, one element at a time,
//! in an order drawn by lot, on wires that hold so many elements. Slow and obvious on purpose: it
//! knows no graph and no expressions, only the three sentences under "How a program runs" in
//! `moves.rs`.

use std::collections::VecDeque;

use brigade_schedule::{Collective, Move, Program};

/// How a run is made.
pub(crate) struct World<'a> {
    /// Elements in a chunk of the collective.
    pub(crate) length: &'a dyn Fn(u32) -> usize,
    /// Elements a wire holds.
    pub(crate) room: usize,
    /// What folding two elements gives.
    pub(crate) fold: fn(u64, u64) -> u64,
}

/// Why a run did not come to its end.
#[derive(Debug, PartialEq)]
pub(crate) enum Halt {
    /// Nothing can move any more, and not everything has.
    Stuck,
    /// Something was read where nothing had been put.
    Empty,
}

/// What a rank holds: chunks of elements.
pub(crate) type Held = Vec<Vec<Option<u64>>>;

/// Addition: right whatever the order of folds.
pub(crate) fn add(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

/// Commutes, but does not associate: different expressions give different numbers.
pub(crate) fn scramble(a: u64, b: u64) -> u64 {
    let sum = a.wrapping_add(b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    (sum ^ (sum >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31)
}

/// Neither commutes nor associates: an operand on the other side gives another number.
pub(crate) fn entangle(a: u64, b: u64) -> u64 {
    scramble(a.rotate_left(7), b)
}

/// What a rank brings: an arbitrary number, the same for the same place; in a barrier, its name.
pub(crate) fn input(collective: Collective, rank: u32, chunk: u32, element: usize) -> u64 {
    if collective == Collective::Barrier {
        return 1 << rank;
    }
    scramble((u64::from(rank) << 32) | u64::from(chunk), 7 + element as u64)
}

/// One element of one move.
struct Touch {
    step: Move,
    target: usize,
    source: Option<usize>,
    done: bool,
}

struct Rank<'a> {
    program: &'a Program,
    touches: Vec<Touch>,
    elements: Vec<Option<u64>>,
    /// Where each chunk begins in `elements`.
    starts: Vec<usize>,
    finished: usize,
}

/// Runs all programs to the end, in an order that `rng` decides.
pub(crate) fn run(
    programs: &[Program],
    world: &World,
    rng: &mut fastrand::Rng,
) -> Result<Vec<Held>, Halt> {
    let mut ranks: Vec<Rank> = programs.iter().map(|program| Rank::new(program, world)).collect();
    let mut wires = vec![VecDeque::new(); programs.len() * programs.len()];
    let mut order: Vec<usize> = (0..programs.len()).collect();
    loop {
        rng.shuffle(&mut order);
        let mut moved = false;
        for &rank in &order {
            let may = ranks[rank].may_happen(&wires, world.room);
            if let Some(touch) = rng.choice(may) {
                ranks[rank].happen(touch, &mut wires, world.fold)?;
                moved = true;
            }
        }
        if !moved {
            let finished = ranks.iter().all(|rank| rank.finished == rank.touches.len());
            let empty = wires.iter().all(VecDeque::is_empty);
            let held = ranks.into_iter().map(Rank::held).collect();
            return if finished && empty { Ok(held) } else { Err(Halt::Stuck) };
        }
    }
}

impl<'a> Rank<'a> {
    fn new(program: &'a Program, world: &World) -> Self {
        let chunks = program.chunks() + program.scratch.len() as u32;
        let length = |chunk| (world.length)(program.shape(chunk));
        let mut starts = vec![0];
        let mut elements = Vec::new();
        for chunk in 0..chunks {
            let block = chunk / program.pieces;
            let has = chunk < program.chunks()
                && program.collective.has_input(program.ranks, program.rank, block);
            let value = |element| input(program.collective, program.rank, chunk, element);
            elements.extend((0..length(chunk)).map(|element| has.then(|| value(element))));
            starts.push(elements.len());
        }
        let mut touches = Vec::new();
        for &step in &program.moves {
            for i in 0..step.span().count {
                let chunk = step.span().first + i;
                for element in 0..length(chunk) {
                    let source = match step {
                        Move::Merge { from, .. } => {
                            Some(starts[(from.first + i) as usize] + element)
                        }
                        _ => None,
                    };
                    let target = starts[chunk as usize] + element;
                    touches.push(Touch { step, target, source, done: false });
                }
            }
        }
        Self { program, touches, elements, starts, finished: 0 }
    }

    /// The touches that may happen now: nothing before them is in their way.
    fn may_happen(&self, wires: &[VecDeque<u64>], room: usize) -> Vec<usize> {
        let size = self.program.ranks as usize;
        let (mut read, mut written) =
            (vec![false; self.elements.len()], vec![false; self.elements.len()]);
        let (mut sending, mut receiving) = (vec![false; size], vec![false; size]);
        let mut may = Vec::new();
        for (index, touch) in self.touches.iter().enumerate().filter(|(_, touch)| !touch.done) {
            let here = self.program.rank as usize;
            let (free, wire) = match touch.step {
                Move::Send { to, .. } => {
                    let wire = &wires[here * size + to as usize];
                    (!written[touch.target], !sending[to as usize] && wire.len() < room)
                }
                Move::Recv { from, .. } | Move::Fold { from, .. } => {
                    let wire = &wires[from as usize * size + here];
                    let free = !written[touch.target] && !read[touch.target];
                    (free, !receiving[from as usize] && !wire.is_empty())
                }
                Move::Merge { .. } => {
                    let free = !written[touch.target] && !read[touch.target];
                    (free && !written[touch.source.unwrap()], true)
                }
            };
            if free && wire {
                may.push(index);
            }
            match touch.step {
                Move::Send { to, .. } => {
                    sending[to as usize] = true;
                    read[touch.target] = true;
                }
                Move::Recv { from, .. } | Move::Fold { from, .. } => {
                    receiving[from as usize] = true;
                    written[touch.target] = true;
                }
                Move::Merge { .. } => {
                    read[touch.source.unwrap()] = true;
                    written[touch.target] = true;
                }
            }
        }
        may
    }

    fn happen(
        &mut self,
        touch: usize,
        wires: &mut [VecDeque<u64>],
        fold: fn(u64, u64) -> u64,
    ) -> Result<(), Halt> {
        let size = self.program.ranks as usize;
        let here = self.program.rank as usize;
        let Touch { step, target, source, .. } = self.touches[touch];
        let old = self.elements[target];
        let barrier = self.program.collective == Collective::Barrier;
        let fold = if barrier { |a, b| a | b } else { fold };
        self.elements[target] = match step {
            Move::Send { to, .. } => {
                wires[here * size + to as usize].push_back(old.ok_or(Halt::Empty)?);
                old
            }
            Move::Recv { from, .. } if !barrier => wires[from as usize * size + here].pop_front(),
            Move::Recv { from, .. } | Move::Fold { from, .. } => {
                let arriving = wires[from as usize * size + here].pop_front().unwrap();
                Some(fold(old.ok_or(Halt::Empty)?, arriving))
            }
            Move::Merge { .. } => {
                let operand = self.elements[source.unwrap()].ok_or(Halt::Empty)?;
                Some(fold(operand, old.ok_or(Halt::Empty)?))
            }
        };
        self.touches[touch].done = true;
        self.finished += 1;
        Ok(())
    }

    fn held(self) -> Held {
        self.starts.windows(2).map(|ends| self.elements[ends[0]..ends[1]].to_vec()).collect()
    }
}

/// What a rank takes out of the call: its output chunks; nothing for the others.
pub(crate) fn outputs(program: &Program, held: &Held) -> Held {
    let takes = |chunk: u32| {
        program.collective.has_output(program.ranks, program.rank, chunk / program.pieces)
    };
    (0..program.chunks()).filter(|&chunk| takes(chunk)).map(|c| held[c as usize].clone()).collect()
}

/// What it should take, if folding is addition.
pub(crate) fn promised(program: &Program, world: &World) -> Held {
    let (collective, ranks, rank) = (program.collective, program.ranks, program.rank);
    let value = |chunk: u32, element| {
        let brings = |&r: &u32| collective.has_input(ranks, r, chunk / program.pieces);
        let brought = (0..ranks).filter(brings).map(|r| input(collective, r, chunk, element));
        brought.fold(0, add)
    };
    let takes = |&chunk: &u32| collective.has_output(ranks, rank, chunk / program.pieces);
    let chunks = (0..program.chunks()).filter(takes);
    chunks.map(|c| (0..(world.length)(c)).map(|e| Some(value(c, e))).collect()).collect()
}
