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
//! | `dualpipev` | DeepSeek-AI 2024 | (p − 1)(F + 2B − 3W) | 2p + 1 of stages half as large |
//!
//! Not here: DualPipe itself, in which two ranks have each stage. A file in torch's form names an
//! action's stage and not its rank, so it cannot say that; the half of it, DualPipeV, can be said.

use super::action::{Action, Kind};
use super::schedule::{Cell, Fault, Schedule};
use super::vee;
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
    /// The same V, with each forward beside a backward that hides its messages.
    DualPipeV,
}

impl Order {
    /// Stages of each rank, where `--chunks` asks for `chunks`.
    pub fn stages_per_rank(self, chunks: usize) -> usize {
        match self {
            Order::Interleaved => chunks,
            Order::Zbv | Order::DualPipeV => 2,
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
            Order::Gpipe => cells(ring.row(micros, None)),
            Order::OneFOneB => cells(ring.row(hops, None)),
            Order::Interleaved => {
                let warm = (chunks - 1) * (micros / rounds) + 2 * hops;
                cells(Ring { chunks, ..ring }.row(warm, None))
            }
            Order::Zb1p => cells(ring.row(hops, Some(rank))),
            Order::Zbv => vee::zero_bubble(rank, ranks, micros),
            Order::DualPipeV => vee::dual(rank, ranks, micros),
        }
    };
    Ok(Schedule { rows: (0..ranks).map(row).collect() })
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

fn cells(actions: Vec<Action>) -> Vec<Cell> {
    actions.into_iter().map(Cell::One).collect()
}
