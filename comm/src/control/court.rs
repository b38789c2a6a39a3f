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
//!   ahead may have left that call behind: it tells its last calls, too. Who goes on says so, and
//!   counts no longer as one who waits.
//! * Who has left a communicator is told to those who stand or ask there, once, and to nobody else.
//!   Where it stood before is forgotten, unless it says that it stands there still. What all
//!   members have left is forgotten soon, anything else (see `partings`) only where it is too much.
//! * Who holds something until others have left a communicator needs the root until it has let go.
//! * The first verdict stands. Who is lost after it is told to all, for those who want to go on.

mod partings;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::codec::wire;
use super::frame::{Frame, Waiting};
use super::order::{Audience, Order};
use super::verdict::{Verdict, WaitingReport};
use crate::header::Header;
use partings::{GROUPS_MAX, Partings};

/// How long a rank that others report as lost may still say that it is leaving.
const GRACE: Duration = Duration::from_millis(50);
/// Stands for the call to come where a rank waits for something between two calls.
pub(crate) const NO_SIGNATURE: [u8; 32] = [0; 32];
/// How often it is remembered that a rank has left a communicator in which others still are: some
/// 50 bytes each.
const PARTINGS_MAX: usize = 1 << 20;

/// The state of a world whose ranks have all joined.
#[derive(Debug)]
pub(crate) struct Court {
    presence: Vec<Presence>,
    verdict: Option<Verdict>,
    accused: BTreeMap<usize, Accusation>,
    groups: BTreeMap<u64, BTreeMap<usize, Stand>>,
    /// Who has left which communicator.
    partings: Partings,
    /// Who holds something until others have left which one.
    holds: BTreeSet<(usize, u64)>,
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
    /// Whether it has gone on since.
    is_over: bool,
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
            partings: Partings::new(PARTINGS_MAX),
            holds: BTreeSet::new(),
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

    /// Ranks that want to hear of others before they let go of what they hold.
    pub(crate) fn holders(&self) -> Vec<usize> {
        let mut holders: Vec<usize> = match self.verdict {
            // They have heard all that matters.
            Some(_) => Vec::new(),
            None => self.holds.iter().map(|(rank, _)| *rank).collect(),
        };
        holders.dedup();
        holders
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
            Frame::Hold { group } => self.hold(from, group),
            Frame::LetGo { group } => {
                self.holds.remove(&(from, group));
                Vec::new()
            }
            Frame::LeaveGroup { group, members, why } => {
                self.part(from, (group, members as usize), why)
            }
            Frame::Waiting(said) => {
                let mut orders = self.partings.tell(from, said.group);
                let stand = Stand { since: now, said, is_over: false };
                orders.extend(self.compare(from, stand));
                orders
            }
            Frame::GoesOn { group } => {
                let stand = self.groups.get_mut(&group).and_then(|stands| stands.get_mut(&from));
                if let Some(stand) = stand {
                    stand.is_over = true;
                }
                Vec::new()
            }
            Frame::Ask { token, group } => {
                let mut orders = self.partings.tell(from, group);
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
        self.holds.retain(|(holder, _)| *holder != rank);
        if self.verdict.is_some() {
            return vec![(Audience::All, Frame::Lost { rank: wire(rank), how: how.to_owned() })];
        }
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
        self.holds.retain(|(holder, _)| *holder != rank);
        vec![(Audience::All, Frame::Left { rank: wire(rank) })]
    }

    fn hold(&mut self, rank: usize, group: u64) -> Vec<Order> {
        if self.holds.len() < self.presence.len() * GROUPS_MAX {
            self.holds.insert((rank, group));
        }
        Vec::new()
    }

    fn part(&mut self, rank: usize, group: (u64, usize), why: String) -> Vec<Order> {
        self.partings.add(rank, group, why);
        let Entry::Occupied(mut stands) = self.groups.entry(group.0) else { return Vec::new() };
        stands.get_mut().remove(&rank);
        let mut orders = Vec::new();
        for waiter in stands.get().keys() {
            orders.extend(self.partings.tell(*waiter, group.0));
        }
        if stands.get().is_empty() {
            stands.remove();
        }
        orders
    }

    fn accuse(&mut self, by: usize, rank: usize, how: &str, now: Instant) -> Vec<Order> {
        let here = self.presence.get(rank).is_some_and(|presence| *presence == Presence::Here);
        if here && rank != by && self.verdict.is_none() {
            let or_left = match self.partings.has_forgotten() {
                true => ", unless it has only left that communicator: too many were left to know",
                false => "",
            };
            let how = format!("{how} (seen by rank {by}{or_left})");
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
            let headers = [it.signature(seq)?, stand.signature(seq)?];
            let [one, second] = headers.map(|bytes| Header::from_bytes(*bytes));
            (one != second).then(|| Verdict::Mismatch {
                rank_a: *other,
                call_a: it.words(seq),
                rank_b: rank,
                call_b: one.named_beside(&second, &stand.words(seq)),
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
        let stands = self.groups.get(&group).into_iter().flatten();
        let reports = stands.filter(|(_, stand)| !stand.is_over).map(report).collect();
        Frame::Answer { token, reports }
    }
}

#[cfg(test)]
mod tests;
