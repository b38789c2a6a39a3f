//! Who has come, who is missing, and who cannot be right: the root before all ranks are there.
//!
//! A pure machine: it has no sockets and is told the time. Everybody it hears of has proved the
//! secret, so what does not fit is a mistake in how the job was started, and everybody is told.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use super::vigil::{Reports, remains};
use crate::control::frame::{Join, NEVER, Table};
use crate::control::{Member, RANKS_MAX, Refusal};

/// How long after a rank has gone it is told: those who go together are told together.
const SETTLING: Duration = Duration::from_millis(200);

/// The ranks that have come so far.
#[derive(Debug, Default)]
pub(super) struct Roster {
    seats: Vec<Option<Seat>>,
    /// Who came first: its number of ranks is the one that others are compared with.
    first: Option<(u32, Member)>,
    /// The first to run out of patience runs out of it for everybody.
    due: Option<Due>,
    /// When who is missing is told, from the first seat that wants it on.
    reports: Option<Reports>,
    /// Ranks that have gone once, and those of them whose end is to be told at this time.
    gone: BTreeSet<usize>,
    going: Vec<usize>,
    tell_at: Option<Instant>,
    /// How many connections could not prove the secret.
    pub(super) strangers: usize,
    /// Why the system refused the root a connection, if it did.
    pub(super) deaf: Option<String>,
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
        if join.report_ms != NEVER && self.reports.is_none() {
            let after = Duration::from_millis(join.report_ms.into());
            self.reports = Some(Reports::new(now, Some(after)));
        }
        let Join { process, member, card, .. } = join;
        self.seats[rank] = Some(Seat { process, member, card, present: true });
        Ok(rank)
    }

    /// The process on seat `rank` lost its connection. It, or another one, may still come back; but
    /// mostly it has ended, so it is told soon, once for each rank.
    pub(super) fn vacate(&mut self, rank: usize, now: Instant) {
        if let Some(Some(seat)) = self.seats.get_mut(rank) {
            seat.present = false;
            if self.gone.insert(rank) {
                self.going.push(rank);
                self.tell_at.get_or_insert(now + SETTLING);
            }
        }
    }

    /// When to call [`Roster::expired`] and [`Roster::report`].
    pub(super) fn due(&self) -> Option<Instant> {
        let report = self.reports.as_ref().and_then(Reports::due);
        let tell_at = self.tell_at.filter(|_| self.reports.is_some());
        self.due.map(|due| due.at).into_iter().chain(report).chain(tell_at).min()
    }

    /// Who is missing so far, if it is time to tell that and somebody waits.
    pub(super) fn report(&mut self, now: Instant) -> Option<String> {
        let (due, reports) = (self.due?, self.reports.as_mut()?);
        let mut is_time = reports.due().is_some_and(|at| at <= now);
        if self.tell_at.take_if(|at| *at <= now).is_some() {
            // Who has come back meanwhile is no news.
            is_time |= self.going.drain(..).any(|rank| is_absent(&self.seats[rank]));
        }
        if !is_time {
            return None;
        }
        reports.tell(now);
        let (waited, remains) = (reports.waited(now), remains(due.at, now));
        let missing = self.absent("has not come", "have not come");
        let is_awaited = self.seats.iter().flatten().any(|seat| seat.present);
        is_awaited.then(|| format!("{waited}: {missing}; {remains}"))
    }

    /// The failure of a world that did not come together in time.
    pub(super) fn expired(&self, now: Instant) -> Option<Failure> {
        let due = self.due.filter(|due| due.at <= now)?;
        let seconds = due.patience.as_secs_f64();
        let why = format!("waited {seconds:.1} s; {}", self.missing());
        Some(Failure { kind: Refusal::RanksMissing, why })
    }

    /// Who is missing, in words, at the end.
    pub(super) fn missing(&self) -> String {
        self.absent("never came", "never came")
    }

    /// Who is missing, in words, with a verb for one of them and one for several.
    fn absent(&self, one: &str, several: &str) -> String {
        let never: Vec<_> = (0..self.seats.len()).filter(|r| self.seats[*r].is_none()).collect();
        let gone = self.seats.iter().enumerate().filter(|(_, seat)| is_absent(seat));
        let gone = gone.filter_map(|(rank, seat)| seat.as_ref().map(|seat| (rank, seat)));
        let mut text = match never.as_slice() {
            [] if self.seats.is_empty() => "no rank came at all".to_owned(),
            [] => format!("all {} ranks came", self.seats.len()),
            [rank] => format!("rank {rank} of {} {one}", self.seats.len()),
            ranks => format!("ranks {} of {} {several}", spans(ranks), self.seats.len()),
        };
        for (rank, seat) in gone {
            let _infallible = write!(text, "; rank {rank} ({}) came and went", place(&seat.member));
        }
        if self.strangers > 0 {
            let _infallible =
                write!(text, "; {} connection(s) could not prove the job's secret", self.strangers);
        }
        if let Some(why) = &self.deaf {
            let _infallible = write!(text, "; the root could not take a connection: {why}");
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

fn is_absent(seat: &Option<Seat>) -> bool {
    seat.as_ref().is_none_or(|seat| !seat.present)
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
        Join {
            rank,
            ranks,
            patience_ms: 30_000,
            report_ms: NEVER,
            process,
            member,
            card: vec![rank as u8],
        }
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
        roster.vacate(1, Instant::now());
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
    fn who_is_late_is_told_to_those_who_want_it_while_somebody_waits() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut roster = Roster::default();
        roster.seat(join(0, 4, 10), start).unwrap();
        assert_eq!((roster.due(), roster.report(at(29_000))), (Some(at(30_000)), None));
        let curious = Join { report_ms: 1000, ..join(2, 4, 12) };
        roster.seat(curious.clone(), at(100)).unwrap();
        assert_eq!((roster.due(), roster.report(at(1099))), (Some(at(1100)), None));
        assert_eq!(
            roster.report(at(1100)).unwrap(),
            "has waited 1.0 s: ranks 1, 3 of 4 have not come; it gives up in 29 s"
        );
        assert_eq!((roster.due(), roster.report(at(3000))), (Some(at(3100)), None));
        // A rank that goes is told as soon as others that go with it have, once.
        roster.vacate(2, at(2000));
        assert_eq!((roster.due(), roster.report(at(2100))), (Some(at(2200)), None));
        let said = roster.report(at(2200)).unwrap();
        assert!(said.contains("have not come; rank 2 (process 12 on h) came and went"), "{said}");
        roster.seat(curious, at(2300)).unwrap();
        roster.vacate(2, at(2400));
        assert_eq!(roster.due(), Some(at(9100)));
        // One that has come back at once is no news; and when nobody waits there is none.
        roster.seat(join(3, 4, 13), at(4000)).unwrap();
        roster.vacate(3, at(4100));
        roster.seat(join(3, 4, 13), at(4150)).unwrap();
        roster.vacate(0, at(4200));
        roster.seat(join(0, 4, 10), at(4250)).unwrap();
        assert_eq!((roster.report(at(4400)), roster.due()), (None, Some(at(9100))));
    }

    #[test]
    fn when_nobody_waits_any_more_nothing_is_told() {
        let start = Instant::now();
        let mut roster = Roster::default();
        roster.seat(Join { report_ms: 500, ..join(1, 2, 10) }, start).unwrap();
        roster.vacate(1, start);
        assert_eq!(roster.report(start + Duration::from_secs(1)), None);
    }

    #[test]
    fn the_shortest_patience_counts_and_the_missing_are_named() {
        let start = Instant::now();
        let deaf = Some("Too many open files".to_owned());
        let mut roster = Roster { strangers: 2, deaf, ..Roster::default() };
        for rank in [0, 1, 2, 4, 6] {
            roster.seat(join(rank, 12, rank), start).unwrap();
        }
        let hasty = Join { patience_ms: 500, ..join(7, 12, 7) };
        roster.seat(hasty, start).unwrap();
        roster.vacate(4, start);
        assert!(roster.expired(start + Duration::from_millis(499)).is_none());
        let failure = roster.expired(start + Duration::from_millis(500)).unwrap();
        assert_eq!(
            failure.why,
            "waited 0.5 s; ranks 3, 5, 8-11 of 12 never came; \
             rank 4 (process 4 on h) came and went; \
             2 connection(s) could not prove the job's secret; \
             the root could not take a connection: Too many open files"
        );
    }
}
