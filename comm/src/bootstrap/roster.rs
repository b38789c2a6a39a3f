//! Who has come, who is missing, and who cannot be right: the root before all ranks are there.
//!
//! A pure machine: it has no sockets and is told the time. Everybody it hears of has proved the
//! secret, so what does not fit is a mistake in how the job was started, and everybody is told.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, Instant};

use super::process::DRAWN_BYTES;
use super::vigil::{Reports, remains};
use crate::control::frame::{Join, NEVER, Table, Unable, VERSION};
use crate::control::{Member, RANKS_MAX, Refusal};
use crate::numbers::count_of;

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
    /// Who says that it cannot come: on which host, and why.
    unable: BTreeMap<usize, (String, String)>,
    /// Ranks that have gone once, and those whose end or excuse is to be told at this time.
    gone: BTreeSet<usize>,
    going: Vec<usize>,
    tell_at: Option<Instant>,
    /// How many connections could not prove the secret.
    pub(super) strangers: usize,
    /// What somebody speaks who was turned away for speaking another version.
    pub(super) other_version: Option<u16>,
    /// Why the system refused the root a connection, if it did.
    pub(super) deaf: Option<String>,
    /// What makes it doubtful that ranks look for their root here.
    doubt: Option<String>,
}

#[derive(Debug)]
struct Seat {
    process: [u8; 16],
    member: Member,
    card: Vec<u8>,
    /// Whether the process is still connected.
    present: bool,
    /// Whether it encrypts what it says: all shall, or none.
    encrypts: bool,
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
    /// Of a world of which nobody has come, at a root that may be in doubt.
    pub(super) fn new(doubt: Option<String>) -> Self {
        Self { doubt, ..Self::default() }
    }

    /// Give `join` its seat, which encrypts or does not. A process that lost its connection may
    /// take its own seat again.
    pub(super) fn seat(
        &mut self,
        join: Join,
        encrypts: bool,
        now: Instant,
    ) -> Result<usize, Failure> {
        let rank = self.place(join.rank, join.ranks, &join.process, &join.member)?;
        self.agree_on_encryption(&join, encrypts)?;
        let patience = Duration::from_millis(join.patience_ms.into());
        let due = Due { at: now + patience, patience };
        self.due = Some(self.due.filter(|earlier| earlier.at <= due.at).unwrap_or(due));
        if join.report_ms != NEVER && self.reports.is_none() {
            let after = Duration::from_millis(join.report_ms.into());
            self.reports = Some(Reports::new(now, Some(after)));
        }
        let Join { process, member, card, .. } = join;
        self.seats[rank] = Some(Seat { process, member, card, present: true, encrypts });
        self.unable.remove(&rank);
        Ok(rank)
    }

    /// That a rank encrypts if and only if those who are there do.
    fn agree_on_encryption(&self, join: &Join, encrypts: bool) -> Result<(), Failure> {
        let mut seats = self.seats.iter().enumerate();
        let other = seats.find_map(|(rank, seat)| {
            let differs = |seat: &&Seat| seat.present && seat.encrypts != encrypts;
            Some((rank, &seat.as_ref().filter(differs)?.member))
        });
        let Some((rank, member)) = other else { return Ok(()) };
        let seated = format!("rank {rank} ({})", named_process(member));
        let joining = format!("rank {} ({})", join.rank, named_process(&join.member));
        let (does, does_not) = if encrypts { (joining, seated) } else { (seated, joining) };
        let why = format!("{does} encrypts what it sends and {does_not} does not");
        Err(Failure { kind: Refusal::EncryptionDiffers, why })
    }

    /// A rank has no card. Another process may come in its place, so that is told soon, once for
    /// each reason, and again if nobody comes. Returns it in words.
    pub(super) fn excuse(&mut self, unable: Unable, now: Instant) -> Result<String, Failure> {
        let Unable { rank, ranks, process, member, why } = unable;
        let rank = self.place(rank, ranks, &process, &member)?;
        let said = (member.host, why);
        if self.unable.get(&rank) != Some(&said) {
            self.unable.insert(rank, said);
            self.going.push(rank);
            self.tell_at.get_or_insert(now + SETTLING);
        }
        Ok(self.excuses())
    }

    /// The place of a rank among the seats, if that makes sense beside what others have said.
    fn place(
        &mut self,
        rank: u32,
        ranks: u32,
        process: &[u8; 16],
        member: &Member,
    ) -> Result<usize, Failure> {
        let who = format!("rank {rank} ({})", named_process(member));
        if ranks == 0 || ranks as usize > RANKS_MAX || rank >= ranks {
            let why = format!("{who} says that the job has {ranks} ranks");
            return Err(Failure { kind: Refusal::RankOutOfRange, why });
        }
        let first = self.first.get_or_insert_with(|| (rank, member.clone()));
        if self.seats.is_empty() {
            self.seats.resize_with(ranks as usize, || None);
        }
        if self.seats.len() != ranks as usize {
            let why = format!(
                "rank {} ({}) says that the job has {} ranks, {who} says {ranks}",
                first.0,
                named_process(&first.1),
                self.seats.len(),
            );
            return Err(Failure { kind: Refusal::RanksDiffer, why });
        }
        if let Some(seat) = &self.seats[rank as usize]
            && seat.present
            && (seat.process != *process || seat.member != *member)
        {
            let (one, other) = (named_process(&seat.member), named_process(member));
            let is_same =
                seat.member == *member && seat.process[..DRAWN_BYTES] == process[..DRAWN_BYTES];
            let why = if is_same {
                format!("two threads of {one} say that they are rank {rank} of {ranks}")
            } else {
                format!("two processes say that they are rank {rank} of {ranks}: {one} and {other}")
            };
            return Err(Failure { kind: Refusal::DuplicateRank, why });
        }
        Ok(rank as usize)
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
        // A root that had to wait for its place may have had no time left for ranks.
        let waited = match due.patience {
            short if short < Duration::from_millis(50) => String::new(),
            patience => format!("waited {:.1} s; ", patience.as_secs_f64()),
        };
        let why = format!("{waited}{}", self.missing());
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
        let mut text = match never.len() {
            0 if self.seats.is_empty() => "no rank came at all".to_owned(),
            0 => format!("all {} ranks came", self.seats.len()),
            1 => format!("{} of {} {one}", named_ranks(&never), self.seats.len()),
            _ => format!("{} of {} {several}", named_ranks(&never), self.seats.len()),
        };
        for (rank, seat) in gone {
            let _infallible =
                write!(text, "; rank {rank} ({}) came and went", named_process(&seat.member));
        }
        if !self.unable.is_empty() {
            let _infallible = write!(text, "; {}", self.excuses());
        }
        if self.strangers > 0 {
            let strangers = count_of(self.strangers, "connection");
            let _infallible = write!(text, "; {strangers} could not prove the job's secret");
        }
        if let Some(version) = self.other_version {
            let _infallible = write!(
                text,
                "; a connection that spoke version {version} was turned away, the root's is \
                 {VERSION}: have all ranks use one release"
            );
        }
        if let Some(why) = &self.deaf {
            let _infallible = write!(text, "; the root could not take a connection: {why}");
        }
        if let Some(doubt) = &self.doubt {
            let _infallible = write!(text, "; {doubt}");
        }
        text
    }

    /// Who cannot come and why, in words: those of a host that say the same together.
    fn excuses(&self) -> String {
        let mut ranks_of = BTreeMap::<_, Vec<usize>>::new();
        for (rank, said) in &self.unable {
            ranks_of.entry(said).or_default().push(*rank);
        }
        let excuse = |((host, why), ranks): (&(String, String), Vec<usize>)| {
            format!("{} on {host} cannot come: {why}", named_ranks(&ranks))
        };
        ranks_of.into_iter().map(excuse).collect::<Vec<_>>().join("; ")
    }

    /// Ranks of this process.
    pub(super) fn ranks_of(&self, process: &[u8; 16]) -> Vec<usize> {
        let seats = self.seats.iter().enumerate();
        let is_of = |seat: &Option<Seat>| seat.as_ref().is_some_and(|it| it.process == *process);
        seats.filter(|(_, seat)| is_of(seat)).map(|(rank, _)| rank).collect()
    }

    /// The table for everybody, once all are present. `process` is the root's own.
    pub(super) fn complete(&self, process: &[u8; 16], nonce: [u8; 32]) -> Option<Table> {
        let seats: Option<Vec<&Seat>> =
            self.seats.iter().map(|seat| seat.as_ref().filter(|seat| seat.present)).collect();
        let seats = seats.filter(|seats| !seats.is_empty())?;
        let hub_rank = seats.iter().position(|seat| seat.process == *process);
        Some(Table {
            hub_rank: hub_rank.map(crate::control::codec::wire),
            nonce,
            seats: seats.iter().map(|seat| (seat.member.clone(), seat.card.clone())).collect(),
        })
    }
}

fn is_absent(seat: &Option<Seat>) -> bool {
    seat.as_ref().is_none_or(|seat| !seat.present)
}

/// A process, in words.
fn named_process(member: &Member) -> String {
    format!("process {} on {}", member.pid, member.host)
}

/// "rank 3" or "ranks 3, 5-9, 12".
fn named_ranks(ranks: &[usize]) -> String {
    let plural = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{plural} {}", spans(ranks))
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
mod tests;
