//! Pipeline schedules, computation only, as pure functions of their size. F, I and W stand for the
//! time of one forward, of one backward to the input, of one to the weights; B = I + W. The bubble
//! is the time in which a rank has nothing to do, for p ranks and m micro-batches.
//!
//! | way | source | bubble | micro-batches in memory |
//! |---|---|---|---|
//! | `gpipe` | Huang et al. 2019 | (p − 1)(F + B) | m |
//! | `1f1b` | Narayanan et al. 2021 | (p − 1)(F + B) | min(m, p − rank) |
//! | `interleaved` | the same, v stages a rank | (p − 1)(F + B) / v | more |
//! | `zb1p` | Qi et al. 2024 | (p − 1)(F + I − W) | as `1f1b` and those that wait for W |
//! | `zbv` | Qi et al. 2024 | (p − 1) F, if F = I = W | as `1f1b`, the same on all ranks |

use super::action::{Action, Kind};
use super::schedule::{Cell, Fault, Schedule};
use serde::Serialize;

/// Ways to order the micro-batches of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Order {
    /// All forwards, then all backwards.
    Gpipe,
    /// A backward as soon as it can be, so that few micro-batches are in memory.
    OneFOneB,
    /// The same with several stages a rank: a round takes less time, and so does the bubble.
    Interleaved,
    /// One stage a rank; gradients of weights fill the bubble.
    Zb1p,
    /// Two stages a rank, laid out as a V: down the ranks and up again.
    Zbv,
}

impl Order {
    /// Stages of each rank, where `--chunks` asks for `chunks`.
    pub fn stages_per_rank(self, chunks: usize) -> usize {
        match self {
            Order::Interleaved => chunks,
            Order::Zbv => 2,
            _ => 1,
        }
    }
}

/// The schedule of `micros` micro-batches through `ranks` ranks.
///
/// Errors: what an order cannot do, with the rule.
pub fn generate(
    order: Order,
    ranks: usize,
    chunks: usize,
    micros: usize,
) -> Result<Schedule, Fault> {
    let rounds = (micros / ranks).max(1);
    if order == Order::Interleaved && !micros.is_multiple_of(rounds) {
        return Err(Fault::of_all(format!(
            "interleaved micro-batches go in rounds of at least {ranks}, of which {micros} \
             micro-batches make {rounds}: their number must be a multiple of that, such as {}",
            micros.next_multiple_of(ranks)
        )));
    }
    let row = |rank: usize| {
        let hops = ranks - 1 - rank;
        let ring = Ring { rank, ranks, chunks: 1, micros };
        match order {
            Order::Gpipe => ring.row(micros, None),
            Order::OneFOneB => ring.row(hops, None),
            Order::Interleaved => {
                let warm = (chunks - 1) * (micros / rounds) + 2 * hops;
                Ring { chunks, ..ring }.row(warm, None)
            }
            Order::Zb1p => ring.row(hops, Some(rank)),
            Order::Zbv => v_row(rank, ranks, micros),
        }
    };
    Ok(Schedule { rows: (0..ranks).map(|rank| cells(row(rank))).collect() })
}

/// Stages go around the ranks `chunks` times.
struct Ring {
    rank: usize,
    ranks: usize,
    chunks: usize,
    micros: usize,
}

impl Ring {
    /// `warm` forwards, then forwards and backwards in turn, then the backwards that are left. Each
    /// backward is split if `delay` says how many weights behind the first of the other part is.
    fn row(&self, warm: usize, delay: Option<usize>) -> Vec<Action> {
        let total = self.chunks * self.micros;
        let warm = warm.min(total);
        let mut row = Vec::new();
        for op in 0..total + warm {
            if op < total {
                row.push(self.action(Kind::Forward, op));
            }
            let Some(back) = op.checked_sub(warm) else { continue };
            row.push(self.action(if delay.is_some() { Kind::Input } else { Kind::Backward }, back));
            if let Some(weight) = delay.and_then(|delay| back.checked_sub(delay)) {
                row.push(self.action(Kind::Weight, weight));
            }
        }
        let late = delay.map_or(total, |delay| total.saturating_sub(delay));
        row.extend((late..total).map(|weight| self.action(Kind::Weight, weight)));
        row
    }

    /// The `op`th forward, or backward: rounds of micro-batches go through one chunk after another.
    fn action(&self, kind: Kind, op: usize) -> Action {
        let round = self.micros / (self.micros / self.ranks).max(1);
        let chunk = op / round % self.chunks;
        let chunk = if kind == Kind::Forward { chunk } else { self.chunks - 1 - chunk };
        let micro = op / (round * self.chunks) * round + op % round;
        let (stage, micro) = if self.chunks == 1 {
            (self.rank, op)
        } else {
            (chunk * self.ranks + self.rank, micro)
        };
        Action { stage, kind, micro }
    }
}

/// A rank has one stage on the way down and one on the way up. Fewer micro-batches than fill the
/// pipeline are those of a full one, without the others.
fn v_row(rank: usize, ranks: usize, micros: usize) -> Vec<Action> {
    use Kind::{Forward, Input, Weight};
    let (full, below) = (micros.max(2 * ranks - 1), ranks - rank);
    let (down, up) = (rank, 2 * ranks - 1 - rank);
    let mut row: Vec<Action> = Vec::new();
    let done = |row: &[Action], stage: usize, kind: Kind| {
        row.iter().filter(|action| action.stage == stage && action.kind == kind).count()
    };
    let push = |row: &mut Vec<Action>, times: usize, actions: &[(usize, Kind)]| {
        for _ in 0..times {
            for &(stage, kind) in actions {
                row.push(Action { stage, kind, micro: done(row, stage, kind) });
            }
        }
    };
    push(&mut row, 2 * below - 1, &[(down, Forward)]);
    push(&mut row, rank, &[(up, Forward), (down, Forward)]);
    push(&mut row, below, &[(up, Forward), (up, Input), (up, Weight)]);
    while done(&row, up, Forward) < full {
        let is_left = done(&row, down, Forward) < full;
        push(&mut row, usize::from(is_left), &[(down, Forward)]);
        push(
            &mut row,
            1,
            &[(down, Input), (down, Weight), (up, Forward), (up, Input), (up, Weight)],
        );
    }
    push(&mut row, rank, &[(down, Input), (up, Input)]);
    push(&mut row, below, &[(down, Input), (down, Weight)]);
    for stage in [up, down] {
        let late = done(&row, stage, Input) - done(&row, stage, Weight);
        push(&mut row, late, &[(stage, Weight)]);
    }
    row.retain(|action| action.micro < micros);
    row
}

fn cells(actions: Vec<Action>) -> Vec<Cell> {
    actions.into_iter().map(Cell::One).collect()
}
