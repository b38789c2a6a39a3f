//! How the root judges: what it hears from the ranks becomes at most one verdict for all.
//!
//! A pure machine: it has no sockets and is told the time. Whoever runs it hands it what each rank
//! says and which connections ended, and sends what it answers.
//!
//! * A connection that ends without [`Frame::Leave`] is a lost rank, at once.
//! * A rank that others report as lost while its own connection stands gets [`GRACE`]: it may be
//!   leaving at this moment, its farewell just behind the report. Then it is lost for everybody,
//!   so that all survivors name the same rank.
//! * The first verdict stands. What comes later only tells who is still there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::frame::Frame;
use super::verdict::{Verdict, WaitingReport};

/// How long a rank that others report as lost may still say that it is leaving.
const GRACE: Duration = Duration::from_millis(50);
/// The most communicators whose waiting calls are remembered.
const GROUPS_MAX: usize = 1024;

/// Who is to hear something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    One(usize),
    All,
}

/// Something to be said to someone.
pub(crate) type Order = (Audience, Frame);

/// The state of a world whose ranks have all joined.
#[derive(Debug)]
pub(crate) struct Court {
    presence: Vec<Presence>,
    verdict: Option<Verdict>,
    accused: BTreeMap<usize, Accusation>,
    groups: BTreeMap<u64, BTreeMap<usize, Waiting>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Here,
    Left,
    Lost,
}

#[derive(Debug)]
struct Accusation {
    due: Instant,
    how: String,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    seq: u64,
    signature: [u8; 32],
    description: String,
}

impl Court {
    pub(crate) fn new(ranks: usize) -> Self {
        Self {
            presence: vec![Presence::Here; ranks],
            verdict: None,
            accused: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }

    /// Whether nobody is left to serve.
    pub(crate) fn is_over(&self) -> bool {
        self.presence.iter().all(|presence| *presence != Presence::Here)
    }

    /// Whether there is nothing more to say to `rank`.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        self.presence[rank] != Presence::Here
    }

    /// When to call [`Court::tick`] next.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.accused.values().map(|accusation| accusation.due).min()
    }

    /// `from` says `frame`.
    pub(crate) fn hear(&mut self, from: usize, frame: Frame, now: Instant) -> Vec<Order> {
        match frame {
            Frame::Leave => self.leave(from),
            Frame::ReportLost { rank, how } => self.accuse(from, rank as usize, &how, now),
            Frame::ReportMismatch(verdict @ Verdict::Mismatch { .. }) => self.decide(verdict),
            Frame::Abort { why } => self.decide(Verdict::Aborted { rank: from, why }),
            Frame::Waiting { group, seq, signature, description } => {
                self.compare(from, group, Waiting { since: now, seq, signature, description })
            }
            Frame::Ask { token, group } => {
                vec![(Audience::One(from), self.answer(token, group, now))]
            }
            _ => self.ended(from, "it sent a frame that only the root sends"),
        }
    }

    /// The connection of `rank` ended.
    pub(crate) fn ended(&mut self, rank: usize, how: &str) -> Vec<Order> {
        if self.presence[rank] != Presence::Here {
            return Vec::new();
        }
        self.presence[rank] = Presence::Lost;
        self.decide(Verdict::Lost { rank, how: how.to_owned() })
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Instant) -> Vec<Order> {
        let ripe = self.accused.iter().find(|(_, accusation)| accusation.due <= now);
        let Some(rank) = ripe.map(|(rank, _)| *rank) else {
            return Vec::new();
        };
        match self.accused.remove(&rank) {
            Some(accusation) => self.decide(Verdict::Lost { rank, how: accusation.how }),
            None => Vec::new(),
        }
    }

    fn leave(&mut self, rank: usize) -> Vec<Order> {
        self.presence[rank] = Presence::Left;
        self.accused.remove(&rank);
        vec![(Audience::All, Frame::Left { rank: wire(rank) })]
    }

    fn accuse(&mut self, by: usize, rank: usize, how: &str, now: Instant) -> Vec<Order> {
        let here = self.presence.get(rank).is_some_and(|presence| *presence == Presence::Here);
        if here && rank != by && self.verdict.is_none() {
            let how = format!("{how} (seen by rank {by})");
            self.accused.entry(rank).or_insert(Accusation { due: now + GRACE, how });
        }
        Vec::new()
    }

    fn decide(&mut self, verdict: Verdict) -> Vec<Order> {
        if self.verdict.is_some() {
            return Vec::new();
        }
        self.accused.clear();
        self.verdict = Some(verdict.clone());
        vec![(Audience::All, Frame::Verdict(verdict))]
    }

    fn compare(&mut self, rank: usize, group: u64, waiting: Waiting) -> Vec<Order> {
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&group) {
            self.forget_the_oldest_group();
        }
        let members = self.groups.entry(group).or_default();
        let other = members
            .iter()
            .find(|(_, other)| other.seq == waiting.seq && other.signature != waiting.signature);
        let verdict = other.map(|(other_rank, other)| Verdict::Mismatch {
            rank_a: *other_rank,
            call_a: other.description.clone(),
            rank_b: rank,
            call_b: waiting.description.clone(),
            group,
            seq: waiting.seq,
        });
        members.insert(rank, waiting);
        verdict.map_or(Vec::new(), |verdict| self.decide(verdict))
    }

    fn forget_the_oldest_group(&mut self) {
        let latest = |members: &BTreeMap<usize, Waiting>| members.values().map(|w| w.since).max();
        let oldest = self.groups.iter().min_by_key(|(_, members)| latest(members));
        if let Some(group) = oldest.map(|(group, _)| *group) {
            self.groups.remove(&group);
        }
    }

    fn answer(&self, token: u32, group: u64, now: Instant) -> Frame {
        let report = |(rank, waiting): (&usize, &Waiting)| WaitingReport {
            rank: *rank,
            seq: waiting.seq,
            age_ms: u32::try_from((now - waiting.since).as_millis()).unwrap_or(u32::MAX),
            description: waiting.description.clone(),
        };
        let reports = self.groups.get(&group).into_iter().flatten().map(report).collect();
        Frame::Answer { token, reports }
    }
}

/// A rank as it travels.
pub(crate) fn wire(rank: usize) -> u32 {
    u32::try_from(rank).expect("ranks are bounded by RANKS_MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(seq: u64, signature: u8) -> Frame {
        let description = format!("call {signature}");
        Frame::Waiting { group: 7, seq, signature: [signature; 32], description }
    }

    fn verdict(orders: &[Order]) -> Option<&Verdict> {
        orders.iter().find_map(|(audience, frame)| match frame {
            Frame::Verdict(verdict) if *audience == Audience::All => Some(verdict),
            _ => None,
        })
    }

    #[test]
    fn the_first_loss_stands() {
        let mut court = Court::new(4);
        let first = court.ended(2, "reset");
        assert!(matches!(verdict(&first), Some(Verdict::Lost { rank: 2, .. })));
        assert!(court.ended(3, "reset").is_empty());
        let abort = Frame::Abort { why: "late".into() };
        assert!(court.hear(0, abort, Instant::now()).is_empty());
    }

    #[test]
    fn a_farewell_within_the_grace_clears_the_accused() {
        let now = Instant::now();
        let mut court = Court::new(3);
        let report = Frame::ReportLost { rank: 2, how: "reset".into() };
        assert!(court.hear(0, report.clone(), now).is_empty());
        assert_eq!(court.hear(2, Frame::Leave, now).len(), 1);
        assert!(court.tick(now + 2 * GRACE).is_empty());
        assert!(court.hear(0, report, now).is_empty(), "nobody is accused after a farewell");
        assert!(court.due().is_none());
    }

    #[test]
    fn an_accused_who_says_nothing_is_lost_for_all() {
        let now = Instant::now();
        let mut court = Court::new(3);
        court.hear(1, Frame::ReportLost { rank: 2, how: "timed out".into() }, now);
        assert!(court.tick(now).is_empty());
        let orders = court.tick(now + GRACE);
        let Some(Verdict::Lost { rank: 2, how }) = verdict(&orders) else {
            panic!("rank 2 is lost: {orders:?}");
        };
        assert_eq!(how, "timed out (seen by rank 1)");
    }

    #[test]
    fn only_equal_numbers_with_other_signatures_are_a_mismatch() {
        let now = Instant::now();
        let mut court = Court::new(3);
        assert!(court.hear(0, waiting(5, 1), now).is_empty());
        assert!(court.hear(1, waiting(5, 1), now).is_empty());
        assert!(court.hear(2, waiting(6, 2), now).is_empty());
        let orders = court.hear(2, waiting(5, 2), now);
        let Some(Verdict::Mismatch { rank_a: 0, rank_b: 2, seq: 5, group: 7, call_a, call_b }) =
            verdict(&orders)
        else {
            panic!("ranks 0 and 2 disagree: {orders:?}");
        };
        assert_eq!((call_a.as_str(), call_b.as_str()), ("call 1", "call 2"));
    }

    #[test]
    fn nonsense_from_a_rank_is_its_own_loss_and_wild_ranks_are_ignored() {
        let now = Instant::now();
        let mut court = Court::new(2);
        let wild = Frame::ReportLost { rank: u32::MAX, how: String::new() };
        assert!(court.hear(0, wild, now).is_empty() && court.due().is_none());
        let orders = court.hear(1, Frame::RootEnds, now);
        assert!(matches!(verdict(&orders), Some(Verdict::Lost { rank: 1, .. })));
    }

    #[test]
    fn remembered_groups_are_bounded() {
        let start = Instant::now();
        let mut court = Court::new(2);
        for group in 0..2 * GROUPS_MAX as u64 {
            let description = String::new();
            let frame = Frame::Waiting { group, seq: 0, signature: [0; 32], description };
            court.hear(0, frame, start + Duration::from_millis(group));
        }
        assert_eq!(court.groups.len(), GROUPS_MAX);
        assert!(court.groups.contains_key(&(2 * GROUPS_MAX as u64 - 1)));
    }
}
