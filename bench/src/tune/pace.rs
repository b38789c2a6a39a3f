//! How long a tuning takes, judged by what it has done: each size by each algorithm in each round
//! is a piece, and pieces are taken to last alike.

use std::time::{Duration, Instant};

use brigade_schedule::Algorithm;

use crate::kind::Case;

/// So many pieces, of which some are done.
pub(super) struct Pace {
    began: Instant,
    all: u64,
    done: u64,
}

impl Pace {
    /// Of all tables, each of which is timed in `rounds` rounds.
    pub(super) fn new(cases: &[Case], ranks: u32, rounds: u32) -> Self {
        let tables = cases.chunk_by(|one, next| one.kind == next.kind);
        let all = tables.map(|table| of_round(table, ranks)).sum::<u64>() * u64::from(rounds);
        Self { began: Instant::now(), all, done: 0 }
    }

    /// A round of a table is done.
    pub(super) fn round(&mut self, table: &[Case], ranks: u32) {
        self.done += of_round(table, ranks);
    }

    /// How long the rest takes; nothing is known of that before something was done.
    pub(super) fn left(&self) -> Option<Duration> {
        left(self.began.elapsed(), self.done, self.all)
    }
}

fn of_round(table: &[Case], ranks: u32) -> u64 {
    let collective = table[0].kind.collective(0).expect("what is tuned is a collective");
    (table.len() * Algorithm::all_for(collective, ranks).len()) as u64
}

fn left(took: Duration, done: u64, all: u64) -> Option<Duration> {
    (done > 0).then(|| took.mul_f64(all.saturating_sub(done) as f64 / done as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_as_what_was_done() {
        let second = Duration::from_secs(1);
        assert_eq!(left(second, 0, 100), None);
        assert_eq!(left(second, 4, 100), Some(24 * second));
        assert_eq!(left(second, 100, 100), Some(Duration::ZERO));
    }
}
