//! Who has come, who is missing, and who cannot be right: the root before all ranks are there.
//!
//! A pure machine: it has no sockets and is told the time. Everybody it hears of has proved the
//! secret, so what does not fit is a mistake in how the job was started, and everybody is told.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::control::frame::{Join, Table};
use crate::control::{Member, RANKS_MAX, Refusal};

/// The ranks that have come so far.
#[derive(Debug, Default)]
pub(super) struct Roster {
    seats: Vec<Option<Seat>>,
    /// Who came first: its number of ranks is the one that others are compared with.
    first: Option<(u32, Member)>,
    /// The first to run out of patience runs out of it for everybody.
    due: Option<Due>,
    /// How many connections could not prove the secret.
    pub(super) strangers: usize,
}

#[derive(Debug)]
struct Seat {
    process: [u8; 16],
    member: Member,
    card: Vec<u8>,
    /// Whether the process is still connected.
    present: bool,
}

#[derive(Clone, Copy, Debug)]
struct Due {
    at: Instant,
    patience: Duration,
}

/// Why joining failed for everybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: Refusal,
    pub(super) why: String,
}

impl Roster {
    /// Give `join` its seat. A process that lost its connection may take its own seat again.
    pub(super) fn seat(&mut self, join: Join, now: Instant) -> Result<usize, Failure> {
        let who = format!("rank {} ({})", join.rank, place(&join.member));
        if join.ranks == 0 || join.ranks as usize > RANKS_MAX || join.rank >= join.ranks {
            let why = format!("{who} says that the job has {} ranks", join.ranks);
            return Err(Failure { kind: Refusal::RankOutOfRange, why });
        }
        let first = self.first.get_or_insert_with(|| (join.rank, join.member.clone()));
        if self.seats.is_empty() {
            self.seats.resize_with(join.ranks as usize, || None);
        }
        if self.seats.len() != join.ranks as usize {
            let why = format!(
                "rank {} ({}) says that the job has {} ranks, {who} says {}",
                first.0,
                place(&first.1),
                self.seats.len(),
                join.ranks,
            );
            return Err(Failure { kind: Refusal::RanksDiffer, why });
        }
        let rank = join.rank as usize;
        if let Some(seat) = &self.seats[rank]
            && seat.present
            && (seat.process != join.process || seat.member != join.member)
        {
            let why = format!(
                "two processes say that they are rank {rank} of {}: {} and {}",
                join.ranks,
                place(&seat.member),
                place(&join.member),
            );
            return Err(Failure { kind: Refusal::DuplicateRank, why });
        }
        let patience = Duration::from_millis(join.patience_ms.into());
        let due = Due { at: now + patience, patience };
        self.due = Some(self.due.filter(|earlier| earlier.at <= due.at).unwrap_or(due));
        let Join { process, member, card, .. } = join;
        self.seats[rank] = Some(Seat { process, member, card, present: true });
        Ok(rank)
    }

    /// The process on seat `rank` lost its connection.
    pub(super) fn vacate(&mut self, rank: usize) {
        if let Some(Some(seat)) = self.seats.get_mut(rank) {
            seat.present = false;
        }
    }

    /// When to call [`Roster::expired`].
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.map(|due| due.at)
    }

    /// The failure of a world that did not come together in time.
    pub(super) fn expired(&self, now: Instant) -> Option<Failure> {
        let due = self.due.filter(|due| due.at <= now)?;
        let seconds = due.patience.as_secs_f64();
        let why = format!("waited {seconds:.1} s; {}", self.missing());
        Some(Failure { kind: Refusal::RanksMissing, why })
    }

    /// Who is missing, in words.
    pub(super) fn missing(&self) -> String {
        let absent = |seat: &Option<Seat>| seat.as_ref().is_none_or(|seat| !seat.present);
        let never: Vec<_> = (0..self.seats.len()).filter(|r| self.seats[*r].is_none()).collect();
        let gone = self.seats.iter().enumerate().filter(|(_, seat)| absent(seat));
        let gone = gone.filter_map(|(rank, seat)| seat.as_ref().map(|seat| (rank, seat)));
        let mut text = match never.as_slice() {
            [] if self.seats.is_empty() => "no rank came at all".to_owned(),
            [] => format!("all {} ranks came", self.seats.len()),
            [rank] => format!("rank {rank} of {} never came", self.seats.len()),
            ranks => format!("ranks {} of {} never came", spans(ranks), self.seats.len()),
        };
        for (rank, seat) in gone {
            let _infallible = write!(text, "; rank {rank} ({}) came and went", place(&seat.member));
        }
        if self.strangers > 0 {
            let _infallible =
                write!(text, "; {} connection(s) could not prove the job's secret", self.strangers);
        }
        text
    }

    /// The table for everybody, once all are present. `process` is the root's own.
    pub(super) fn complete(&self, process: &[u8; 16], nonce: [u8; 32]) -> Option<Table> {
        let seats: Option<Vec<&Seat>> =
            self.seats.iter().map(|seat| seat.as_ref().filter(|seat| seat.present)).collect();
        let seats = seats.filter(|seats| !seats.is_empty())?;
        let hub_rank = seats.iter().position(|seat| seat.process == *process);
        Some(Table {
            hub_rank: hub_rank.map(crate::control::court::wire),
            nonce,
            seats: seats.iter().map(|seat| (seat.member.clone(), seat.card.clone())).collect(),
        })
    }
}

/// Where a process is, in words.
fn place(member: &Member) -> String {
    format!("process {} on {}", member.pid, member.host)
}

/// "3, 5-9, 12": ascending numbers, runs drawn together.
fn spans(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let span = |run: &[usize]| match run {
        [only] => only.to_string(),
        [first, second] => format!("{first}, {second}"),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    runs.map(span).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(rank: u32, ranks: u32, pid: u32) -> Join {
        let member = Member { host: "h".into(), pid };
        let mut process = [0; 16];
        process[..4].copy_from_slice(&pid.to_le_bytes());
        Join { rank, ranks, patience_ms: 30_000, process, member, card: vec![rank as u8] }
    }

    fn refused(roster: &mut Roster, join: Join) -> Failure {
        roster.seat(join, Instant::now()).expect_err("must be refused")
    }

    #[test]
    fn a_table_needs_everybody_to_be_present() {
        let mut roster = Roster::default();
        for rank in 0..3 {
            assert!(roster.complete(&[0; 16], [9; 32]).is_none());
            roster.seat(join(rank, 3, 10 + rank), Instant::now()).unwrap();
        }
        roster.vacate(1);
        assert!(roster.complete(&[0; 16], [9; 32]).is_none());
        roster.seat(join(1, 3, 11), Instant::now()).unwrap();
        let table = roster.complete(&join(2, 3, 12).process, [9; 32]).unwrap();
        assert_eq!(table.hub_rank, Some(2));
        assert_eq!(table.seats.iter().map(|s| s.1[0]).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn mistakes_name_both_processes() {
        let mut roster = Roster::default();
        roster.seat(join(1, 4, 10), Instant::now()).unwrap();
        let failure = refused(&mut roster, join(1, 4, 20));
        assert_eq!(failure.kind, Refusal::DuplicateRank);
        assert!(failure.why.contains("process 10 on h and process 20 on h"), "{}", failure.why);
        let failure = refused(&mut roster, join(2, 8, 30));
        assert_eq!(failure.kind, Refusal::RanksDiffer);
        assert!(failure.why.contains("4 ranks") && failure.why.contains("says 8"));
        assert_eq!(refused(&mut roster, join(4, 4, 40)).kind, Refusal::RankOutOfRange);
        assert_eq!(refused(&mut roster, join(0, u32::MAX, 50)).kind, Refusal::RankOutOfRange);
    }

    #[test]
    fn the_shortest_patience_counts_and_the_missing_are_named() {
        let start = Instant::now();
        let mut roster = Roster { strangers: 2, ..Roster::default() };
        for rank in [0, 1, 2, 4, 6] {
            roster.seat(join(rank, 12, rank), start).unwrap();
        }
        let hasty = Join { patience_ms: 500, ..join(7, 12, 7) };
        roster.seat(hasty, start).unwrap();
        roster.vacate(4);
        assert!(roster.expired(start + Duration::from_millis(499)).is_none());
        let failure = roster.expired(start + Duration::from_millis(500)).unwrap();
        assert_eq!(
            failure.why,
            "waited 0.5 s; ranks 3, 5, 8-11 of 12 never came; \
             rank 4 (process 4 on h) came and went; \
             2 connection(s) could not prove the job's secret"
        );
    }
}
