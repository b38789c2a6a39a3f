//! How the root judges: what it hears from the ranks becomes at most one verdict for all.
//!
//! A pure machine: it has no sockets and is told the time. Whoever runs it hands it what each rank
//! says and which connections ended, and sends what it answers.
//!
//! * A connection that ends without [`Frame::Leave`] is a lost rank, at once.
//! * A rank that others report as lost while its own connection stands gets [`GRACE`]: it may be
//!   leaving at this moment, its farewell just behind the report. Then it is lost for everybody,
//!   so that all survivors name the same rank.
//! * What a rank has called is a fact that does not age. Where two ranks that have stood still say
//!   different things about the same call of the same communicator, they disagree. The rank that is
//!   ahead may have left that call behind: it tells its last calls, too.
//! * Who has left a communicator is told to those who stand or ask there, and to nobody else.
//! * The first verdict stands. What comes later only tells who is still there.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::frame::{Frame, Waiting};
use super::verdict::{Verdict, WaitingReport};
use crate::header::Header;

/// How long a rank that others report as lost may still say that it is leaving.
const GRACE: Duration = Duration::from_millis(50);
/// Stands for the call to come where a rank waits for something between two calls.
pub(crate) const NO_SIGNATURE: [u8; 32] = [0; 32];
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
    groups: BTreeMap<u64, BTreeMap<usize, Stand>>,
    /// Who has left which communicator, in the order in which the first has.
    partings: VecDeque<(u64, Vec<usize>)>,
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

/// What a rank last said about a call that keeps it waiting, and when.
#[derive(Debug)]
struct Stand {
    since: Instant,
    said: Waiting,
}

impl Stand {
    /// The signature of call `seq`, if this rank has told it.
    fn signature(&self, seq: u64) -> Option<&[u8; 32]> {
        match self.said.seq.checked_sub(seq)? {
            0 => Some(&self.said.signature).filter(|signature| **signature != NO_SIGNATURE),
            back => self.said.past.get(usize::try_from(back - 1).ok()?),
        }
    }

    /// Call `seq` in words.
    fn words(&self, seq: u64) -> String {
        if seq == self.said.seq {
            return self.said.description.clone();
        }
        let header = self.signature(seq).map(|bytes| Header::from_bytes(*bytes));
        let words = header.and_then(|header| header.describe());
        format!("#{seq} {}", words.as_deref().unwrap_or("another one"))
    }
}

impl Court {
    pub(crate) fn new(ranks: usize) -> Self {
        Self {
            presence: vec![Presence::Here; ranks],
            verdict: None,
            accused: BTreeMap::new(),
            groups: BTreeMap::new(),
            partings: VecDeque::new(),
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
            Frame::LeaveGroup { group } => self.part(from, group),
            Frame::Waiting(said) => {
                let mut orders = self.partings_for(from, said.group);
                orders.extend(self.compare(from, Stand { since: now, said }));
                orders
            }
            Frame::Ask { token, group } => {
                let mut orders = self.partings_for(from, group);
                orders.push((Audience::One(from), self.answer(token, group, now)));
                orders
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

    fn part(&mut self, rank: usize, group: u64) -> Vec<Order> {
        match self.partings.iter_mut().find(|(known, _)| *known == group) {
            Some((_, parted)) if parted.contains(&rank) => {}
            Some((_, parted)) => parted.push(rank),
            None => self.partings.push_back((group, vec![rank])),
        }
        if self.partings.len() > GROUPS_MAX {
            self.partings.pop_front();
        }
        let waiters = self.groups.get(&group).into_iter().flatten().map(|(waiter, _)| *waiter);
        let left = Frame::LeftGroup { rank: wire(rank), group };
        let others = waiters.filter(|waiter| *waiter != rank);
        others.map(|waiter| (Audience::One(waiter), left.clone())).collect()
    }

    /// What `to` should know before it waits for anybody in `group`.
    fn partings_for(&self, to: usize, group: u64) -> Vec<Order> {
        let parted = self.partings.iter().find(|(known, _)| *known == group);
        let left = |rank: &usize| Frame::LeftGroup { rank: wire(*rank), group };
        let parted = parted.into_iter().flat_map(|(_, parted)| parted);
        parted.map(|rank| (Audience::One(to), left(rank))).collect()
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

    fn compare(&mut self, rank: usize, stand: Stand) -> Vec<Order> {
        let group = stand.said.group;
        if self.groups.len() >= GROUPS_MAX && !self.groups.contains_key(&group) {
            self.forget_the_oldest_group();
        }
        let stands = self.groups.entry(group).or_default();
        let verdict = stands.iter().filter(|(other, _)| **other != rank).find_map(|(other, it)| {
            let seq = it.said.seq.min(stand.said.seq);
            let differ = it.signature(seq)? != stand.signature(seq)?;
            differ.then(|| Verdict::Mismatch {
                rank_a: *other,
                call_a: it.words(seq),
                rank_b: rank,
                call_b: stand.words(seq),
                group,
                seq,
            })
        });
        stands.insert(rank, stand);
        verdict.map_or(Vec::new(), |verdict| self.decide(verdict))
    }

    fn forget_the_oldest_group(&mut self) {
        let latest = |stands: &BTreeMap<usize, Stand>| stands.values().map(|it| it.since).max();
        let oldest = self.groups.iter().min_by_key(|(_, stands)| latest(stands));
        if let Some(group) = oldest.map(|(group, _)| *group) {
            self.groups.remove(&group);
        }
    }

    fn answer(&self, token: u32, group: u64, now: Instant) -> Frame {
        let report = |(rank, stand): (&usize, &Stand)| WaitingReport {
            rank: *rank,
            seq: stand.said.seq,
            age_ms: u32::try_from((now - stand.since).as_millis()).unwrap_or(u32::MAX),
            description: stand.said.description.clone(),
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

    fn waiting(seq: u64, signature: u8, past: &[u8]) -> Frame {
        Frame::Waiting(Waiting {
            group: 7,
            seq,
            signature: [signature; 32],
            past: past.iter().map(|&signature| [signature; 32]).collect(),
            description: format!("call {signature}"),
        })
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
        assert!(court.hear(0, waiting(5, 1, &[]), now).is_empty());
        assert!(court.hear(1, waiting(5, 1, &[]), now).is_empty());
        assert!(court.hear(2, waiting(6, 2, &[]), now).is_empty());
        let orders = court.hear(2, waiting(5, 2, &[]), now);
        let Some(Verdict::Mismatch { rank_a: 0, rank_b: 2, seq: 5, group: 7, call_a, call_b }) =
            verdict(&orders)
        else {
            panic!("ranks 0 and 2 disagree: {orders:?}");
        };
        assert_eq!((call_a.as_str(), call_b.as_str()), ("call 1", "call 2"));
    }

    #[test]
    fn a_rank_that_is_ahead_is_judged_by_what_it_called_before() {
        let now = Instant::now();
        let mut court = Court::new(4);
        // Ranks 0 and 1 are two calls ahead of rank 2, and all made the same fifth call.
        assert!(court.hear(0, waiting(7, 9, &[8, 1, 3]), now).is_empty());
        assert!(court.hear(2, waiting(5, 1, &[3]), now).is_empty());
        assert!(court.hear(1, waiting(7, 9, &[8, 1]), now).is_empty());
        // Between its calls a rank has made none that could differ.
        assert!(court.hear(3, waiting(5, 0, &[3, 4]), now).is_empty());
        // Too far ahead to remember: nothing can be said.
        assert!(court.hear(3, waiting(99, 4, &[4, 4]), now).is_empty());
        let orders = court.hear(3, waiting(6, 8, &[2]), now);
        let Some(Verdict::Mismatch { rank_a: 2, rank_b: 3, seq: 5, call_a, call_b, .. }) =
            verdict(&orders)
        else {
            panic!("ranks 2 and 3 disagree about the fifth call: {orders:?}");
        };
        assert_eq!((call_a.as_str(), call_b.as_str()), ("call 1", "#5 another one"));
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
    fn who_waits_in_a_group_hears_of_those_who_leave_it() {
        let now = Instant::now();
        let mut court = Court::new(4);
        let left = |rank, group| Frame::LeftGroup { rank, group };
        assert!(court.hear(1, Frame::LeaveGroup { group: 7 }, now).is_empty(), "nobody waits");
        let orders = court.hear(0, waiting(5, 1, &[]), now);
        assert_eq!(orders, [(Audience::One(0), left(1, 7))]);
        let orders = court.hear(2, Frame::LeaveGroup { group: 7 }, now);
        assert_eq!(orders, [(Audience::One(0), left(2, 7))]);
        assert!(court.hear(2, Frame::LeaveGroup { group: 8 }, now).is_empty(), "another group");
        let orders = court.hear(3, Frame::Ask { token: 1, group: 7 }, now);
        assert_eq!(orders.len(), 3, "both partings, and the answer: {orders:?}");
        // Numbers of groups are in no order.
        for group in (0..2 * GROUPS_MAX as u64).rev() {
            court.hear(1, Frame::LeaveGroup { group }, now);
        }
        assert_eq!(court.partings.len(), GROUPS_MAX);
        assert_eq!(court.partings_for(0, 0), [(Audience::One(0), left(1, 0))], "the latest");
    }

    #[test]
    fn remembered_groups_are_bounded() {
        let start = Instant::now();
        let mut court = Court::new(2);
        for group in 0..2 * GROUPS_MAX as u64 {
            let Frame::Waiting(said) = waiting(0, 0, &[]) else { unreachable!() };
            let frame = Frame::Waiting(Waiting { group, ..said });
            court.hear(0, frame, start + Duration::from_millis(group));
        }
        assert_eq!(court.groups.len(), GROUPS_MAX);
        assert!(court.groups.contains_key(&(2 * GROUPS_MAX as u64 - 1)));
    }
}
