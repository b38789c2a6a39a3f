//! Schedules in which each rank has two stages, one on the way down the ranks and one on the way up
//! again, so that the last rank turns round by itself and the first has both ends of the model.
//!
//! Fewer micro-batches than fill a pipeline are those of a full one, without the others.

use super::action::{Action, Kind};
use super::schedule::Cell;
use Kind::{Backward, Forward, Input, Weight};
use std::collections::VecDeque;

/// Which of a rank's stages.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Down,
    Up,
}
use Side::{Down, Up};

/// A row that is being written: micro-batches of each side are taken in order.
struct Vee {
    /// By side.
    stages: [usize; 2],
    /// By side: forwards, backwards to the input, backwards to the weights.
    done: [[usize; 3]; 2],
    /// Sides that a weight is owed to, oldest first.
    owed: VecDeque<Side>,
    row: Vec<Cell>,
}

impl Vee {
    fn new(rank: usize, ranks: usize) -> Vee {
        let stages = [rank, 2 * ranks - 1 - rank];
        Vee { stages, done: [[0; 3]; 2], owed: VecDeque::new(), row: Vec::new() }
    }

    /// The next micro-batch of this side and kind.
    fn next(&mut self, side: Side, kind: Kind) -> Action {
        let counts = &mut self.done[side as usize];
        let counted = match kind {
            Forward => 0..1,
            Input => 1..2,
            Weight => 2..3,
            _ => 1..3,
        };
        let micro = counts[counted.start];
        counts[counted].iter_mut().for_each(|count| *count += 1);
        if kind == Input {
            self.owed.push_back(side);
        }
        Action { stage: self.stages[side as usize], kind, micro }
    }

    fn push(&mut self, times: usize, actions: &[(Side, Kind)]) {
        for _ in 0..times {
            for &(side, kind) in actions {
                let action = self.next(side, kind);
                self.row.push(Cell::One(action));
            }
        }
    }

    /// A forward of one side while a backward of the other waits for its message.
    fn pair(&mut self, forward: Side, backward: Side) {
        let both = [self.next(forward, Forward), self.next(backward, Backward)];
        self.row.push(Cell::Overlap(both));
    }

    /// The weights that have been owed longest.
    fn pay(&mut self) {
        let side = self.owed.pop_front().expect("an input came before");
        self.push(1, &[(side, Weight)]);
    }

    /// Without micro-batches that are not there.
    fn finish(self, micros: usize) -> Vec<Cell> {
        let is_there = |action: &&Action| action.micro < micros;
        let cell = |cell: Cell| match cell.actions().iter().filter(is_there).count() {
            0 => None,
            1 => cell.actions().iter().copied().find(|it| is_there(&it)).map(Cell::One),
            _ => Some(cell),
        };
        self.row.into_iter().filter_map(cell).collect()
    }
}

/// Zero bubbles (Qi et al. 2024): gradients of weights fill what would be idle.
pub(super) fn zero_bubble(rank: usize, ranks: usize, micros: usize) -> Vec<Cell> {
    let (full, below) = (micros.max(2 * ranks - 1), ranks - rank);
    let mut vee = Vee::new(rank, ranks);
    vee.push(2 * below - 1, &[(Down, Forward)]);
    vee.push(rank, &[(Up, Forward), (Down, Forward)]);
    vee.push(below, &[(Up, Forward), (Up, Input), (Up, Weight)]);
    while vee.done[Up as usize][0] < full {
        let is_left = vee.done[Down as usize][0] < full;
        vee.push(usize::from(is_left), &[(Down, Forward)]);
        vee.push(1, &[(Down, Input), (Down, Weight), (Up, Forward), (Up, Input), (Up, Weight)]);
    }
    vee.push(rank, &[(Down, Input), (Up, Input)]);
    vee.push(below, &[(Down, Input), (Down, Weight)]);
    for side in [Up, Down] {
        let [_, inputs, weights] = vee.done[side as usize];
        vee.push(inputs - weights, &[(side, Weight)]);
    }
    vee.finish(micros)
}

/// DualPipeV: DualPipe (DeepSeek-AI 2024), in which micro-batches enter at both ends, cut in half,
/// so that what came from the other end comes from the same ranks' other stage. In its middle each
/// forward has a backward beside it, and each hides the messages of the other.
pub(super) fn dual(rank: usize, ranks: usize, micros: usize) -> Vec<Cell> {
    let (full, hops) = (micros.max(2 * ranks), ranks - 1 - rank);
    let mut vee = Vee::new(rank, ranks);
    vee.push(2 * hops, &[(Down, Forward)]);
    vee.push(rank + 1, &[(Down, Forward), (Up, Forward)]);
    for _ in 0..hops {
        vee.push(1, &[(Up, Input)]);
        vee.pay();
        vee.push(1, &[(Up, Forward)]);
    }
    for round in 0..full + rank + 1 - 2 * ranks {
        // The last rank's first backward waits for no message: nothing is to be hidden there.
        match round == 0 && hops == 0 {
            true => vee.push(1, &[(Down, Forward), (Up, Backward)]),
            false => vee.pair(Down, Up),
        }
        vee.pair(Up, Down);
    }
    for _ in 0..hops {
        vee.push(1, &[(Up, Backward)]);
        vee.pair(Up, Down);
    }
    // From the middle of the rest on, weights wait until there is nothing else to do.
    let whole = rank + 1;
    for at in 0..2 * (rank + 1) {
        let kind = if at < whole { Backward } else { Input };
        vee.push(1, &[(if at % 2 == 0 { Up } else { Down }, kind)]);
    }
    for _ in 0..hops {
        vee.pay();
        vee.push(1, &[(Down, Input)]);
    }
    while !vee.owed.is_empty() {
        vee.pay();
    }
    vee.finish(micros)
}
