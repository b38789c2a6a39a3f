//! What proofs take, told before the first one if that is long, and how far they are meanwhile.

use std::time::Duration;

use brigade_bench::size;
use brigade_offload::memory::available_bytes;
use brigade_schedule::{Algorithm, Collective, Move, program};
use indicatif::{ProgressBar, ProgressStyle};

/// What is proved at once: a collective by an algorithm among so many ranks.
#[derive(Clone, Copy)]
pub(super) struct Schedule {
    pub(super) collective: Collective,
    pub(super) algorithm: Algorithm,
    pub(super) ranks: u32,
}

/// About what it takes to prove schedules, on one core of a usual machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Effort {
    pub(super) seconds: f64,
    /// The most at any time.
    pub(super) bytes: f64,
}

/// From here on what it takes is told beforehand.
const LONG_S: f64 = 5.0;
/// Ranks that have work of their own and are counted for themselves: the root, or two servers.
const ALONE: u32 = 2;
/// So many stand for all others.
const SAMPLE: u32 = 16;
/// What a chunk of a move takes: seconds, and bytes of the graph.
const NODE_S: f64 = 0.4e-6;
const NODE_BYTES: f64 = 70.0;
/// What an expression takes: bytes, and on top of them a bit for each rank.
const FOLD_BYTES: f64 = 60.0;
/// What marking one rank in an expression takes.
const FOLD_RANK_S: f64 = 0.05e-9;
/// What two ranks take that could have a wire.
const WIRE_BYTES: f64 = 16.0;

impl Schedule {
    /// A guess from the programs of a few ranks; of no more than these it is exact.
    pub(super) fn effort(self) -> Effort {
        let root = self.collective.root().unwrap_or(0);
        let alone = self.ranks.min(ALONE);
        let others = self.ranks - alone;
        let sample = others.min(SAMPLE);
        // Spread over all of them, and over all patterns of bits that algorithms look at.
        let at = |i: u32| match others <= SAMPLE {
            true => i,
            false => (f64::from(i) * 0.618 * f64::from(others)) as u32 % others,
        };
        let weight = f64::from(others) / f64::from(sample.max(1));
        let counted = (0..alone).map(|distance| (distance, 1.0));
        let counted = counted.chain((0..sample).map(|i| (alone + at(i), weight)));
        let [mut nodes, mut folds] = [0.0; 2];
        for (distance, weight) in counted {
            let counts = self.counts((root + distance) % self.ranks);
            nodes += weight * counts[0];
            folds += weight * counts[1];
        }
        of(nodes, folds, f64::from(self.ranks))
    }

    /// Chunks that the moves of a rank touch, and how many of these are folded.
    fn counts(self, rank: u32) -> [f64; 2] {
        let program = program(self.collective, self.algorithm, self.ranks, rank);
        let moves = program.map_or(Vec::new(), |program| program.moves);
        moves.into_iter().fold([0.0; 2], |[nodes, folds], step| {
            let count = f64::from(step.span().count);
            let is_fold = matches!(step, Move::Fold { .. } | Move::Merge { .. });
            [nodes + count, if is_fold { folds + count } else { folds }]
        })
    }
}

impl Effort {
    /// One after the other.
    pub(super) fn then(self, next: Self) -> Self {
        Self { seconds: self.seconds + next.seconds, bytes: self.bytes.max(next.bytes) }
    }
}

/// What a schedule takes of which so many chunks are moved and folded.
fn of(nodes: f64, folds: f64, ranks: f64) -> Effort {
    let graph = nodes * NODE_BYTES + ranks * ranks * WIRE_BYTES;
    Effort {
        seconds: nodes * NODE_S + folds * ranks * FOLD_RANK_S,
        bytes: graph + folds * (FOLD_BYTES + ranks / 8.0),
    }
}

/// Proofs on their way: a bar on standard error if they are long and it is a terminal.
pub(super) struct Proofs(ProgressBar);

impl Proofs {
    /// Errors: they do not fit into the memory that is free.
    pub(super) fn begin(all: Effort) -> Result<Self, String> {
        let room = available_bytes().unwrap_or(usize::MAX);
        if all.bytes > room as f64 {
            return Err(format!(
                "the largest of these proofs takes about {}, and {} are available here; fewer \
                 ranks, or one --algorithm that sends less",
                gigabytes(all.bytes),
                gigabytes(room as f64)
            ));
        }
        if all.seconds < LONG_S {
            return Ok(Self(ProgressBar::hidden()));
        }
        let bytes = gigabytes(all.bytes);
        let time = size::time(Duration::from_secs_f64(all.seconds));
        eprintln!("this takes some {time}, and up to {bytes} of memory at once");
        let bar = ProgressBar::new((all.seconds * 1e3) as u64);
        let style = ProgressStyle::with_template("{wide_bar} {msg}, {elapsed} so far");
        bar.set_style(style.expect("the template is valid"));
        bar.enable_steady_tick(Duration::from_secs(1));
        Ok(Self(bar))
    }

    /// Do one of them.
    pub(super) fn during<T>(&self, schedule: Schedule, proof: impl FnOnce() -> T) -> T {
        if self.0.is_hidden() {
            return proof();
        }
        let Schedule { collective, algorithm, ranks } = schedule;
        self.0.set_message(format!("{collective} {algorithm}, {}", size::ranks(ranks as usize)));
        let proved = proof();
        self.0.inc((schedule.effort().seconds * 1e3) as u64);
        proved
    }

    /// A line of the table.
    pub(super) fn print(&self, line: &str) {
        self.0.suspend(|| println!("{line}"));
    }
}

impl Drop for Proofs {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn gigabytes(bytes: f64) -> String {
    format!("{:.1} GB", bytes / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of each collective and algorithm, as the rooted ones have it for the last rank.
    fn all(ranks: u32) -> impl Iterator<Item = Schedule> {
        Collective::ALL.into_iter().flat_map(move |collective| {
            let collective = collective.with_root(ranks - 1);
            let all = Algorithm::all_for(collective, ranks).into_iter();
            all.map(move |algorithm| Schedule { collective, algorithm, ranks })
        })
    }

    #[test]
    fn a_few_ranks_tell_what_all_of_them_take() {
        for schedule in [2, 3, 17, 100, 128].into_iter().flat_map(all) {
            let Schedule { collective, algorithm, ranks } = schedule;
            let counts = (0..ranks).map(|rank| schedule.counts(rank));
            let [nodes, folds] = counts.fold([0.0; 2], |[a, b], [c, d]| [a + c, b + d]);
            let exact = of(nodes, folds, f64::from(ranks));
            let guess = schedule.effort();
            let what = format!("{collective} by {algorithm} among {ranks}: {guess:?}, {exact:?}");
            let off = guess.seconds / exact.seconds;
            assert!((0.5..2.0).contains(&off), "{what}");
            assert!(ranks > ALONE + SAMPLE || (off - 1.0).abs() < 1e-9, "{what}");
        }
    }

    #[test]
    fn what_no_machine_holds_is_refused_with_a_next_step() {
        let refused = Proofs::begin(Effort { seconds: 0.0, bytes: 1e18 }).map(drop);
        let said = refused.expect_err("nobody has so much");
        assert!(said.contains("fewer ranks, or one --algorithm"), "{said}");
    }
}
