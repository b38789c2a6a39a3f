//! Who has left which communicator.
//!
//! Those in which somebody still is are remembered for as long as there is room for them: a rank
//! that is waited for there in vain has left, and is not lost. Of those that all members have left
//! only the last ones are, for who closes a group with others and hears of them afterwards.

use std::collections::{BTreeMap, VecDeque};

use crate::control::codec::wire;
use crate::control::frame::Frame;
use crate::control::order::{Audience, Order};

/// The most communicators that are remembered although all members have left them; and, in the
/// court, those whose waiting calls are.
pub(super) const GROUPS_MAX: usize = 1024;

/// Who has left which communicator, and what has been told of that.
#[derive(Debug)]
pub(super) struct Partings {
    groups: BTreeMap<u64, Parted>,
    /// Those in which somebody is, by the order in which the first one left.
    open: BTreeMap<u64, u64>,
    /// Those that all members have left, in the order in which they were.
    empty: VecDeque<u64>,
    /// How many members have left communicators that are not empty, and of how many that is kept.
    count: usize,
    most: usize,
    /// How many communicators were left by somebody before this one.
    begun: u64,
    has_forgotten: bool,
}

/// Who has left one communicator.
#[derive(Debug)]
struct Parted {
    /// When the first has: how many others there were before.
    number: u64,
    /// How many can leave it; none if nobody has said that yet.
    members: usize,
    /// Each with why, if it could not join.
    ranks: Vec<(usize, String)>,
    /// How many of these each rank has been told, the first ones first: thousands may have left
    /// when somebody asks again and again.
    told: BTreeMap<usize, usize>,
}

impl Parted {
    fn is_empty(&self) -> bool {
        self.members > 0 && self.ranks.len() >= self.members
    }
}

impl Partings {
    /// Of at most so many ranks, if a rank counts as often as it has left something.
    pub(super) fn new(most: usize) -> Self {
        let (groups, open, empty) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        Self { groups, open, empty, count: 0, most, begun: 0, has_forgotten: false }
    }

    /// Whether something was forgotten that somebody may still want to know.
    pub(super) fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }

    /// `rank` has left `group`, which has so many members or none that are known.
    pub(super) fn add(&mut self, rank: usize, (group, members): (u64, usize), why: String) {
        let parted = self.groups.entry(group).or_insert_with(|| {
            self.begun += 1;
            self.open.insert(self.begun, group);
            let (ranks, told) = (Vec::new(), BTreeMap::new());
            Parted { number: self.begun, members: 0, ranks, told }
        });
        // Whoever leaves forgets what it has heard.
        parted.told.remove(&rank);
        let was_empty = parted.is_empty();
        if parted.members == 0 {
            // All say the same of one group.
            parted.members = members;
        }
        if parted.ranks.iter().all(|(known, _)| *known != rank) {
            parted.ranks.push((rank, why));
            self.count += usize::from(!was_empty);
        }
        if !was_empty && parted.is_empty() {
            self.count = self.count.saturating_sub(parted.ranks.len());
            self.open.remove(&parted.number);
            self.empty.push_back(group);
            if self.empty.len() > GROUPS_MAX
                && let Some(oldest) = self.empty.pop_front()
            {
                self.groups.remove(&oldest);
            }
        }
        while self.count > self.most && self.forget_the_oldest() {}
    }

    /// Make room; whether that could be done.
    fn forget_the_oldest(&mut self) -> bool {
        let oldest = self.open.pop_first();
        let Some(parted) = oldest.and_then(|(_, group)| self.groups.remove(&group)) else {
            return false;
        };
        self.count = self.count.saturating_sub(parted.ranks.len());
        self.has_forgotten = true;
        true
    }

    /// What `to` has not been told yet of `group`, and is told now.
    pub(super) fn tell(&mut self, to: usize, group: u64) -> Vec<Order> {
        let Some(Parted { ranks, told, .. }) = self.groups.get_mut(&group) else {
            return Vec::new();
        };
        let known = told.insert(to, ranks.len()).unwrap_or(0);
        let left = |(rank, why): &(usize, String)| {
            let left = Frame::LeftGroup { rank: wire(*rank), group, why: why.clone() };
            (Audience::One(to), left)
        };
        ranks[known..].iter().map(left).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(partings: &mut Partings, rank: usize, group: u64) {
        partings.add(rank, (group, 3), String::new());
    }

    #[test]
    fn what_all_have_left_is_forgotten_before_anything_else() {
        let mut partings = Partings::new(2 * GROUPS_MAX);
        // Rank 2 is still in the first one, and rank 1 in every other one.
        for group in 0..3 * GROUPS_MAX as u64 {
            leave(&mut partings, 0, group);
            leave(&mut partings, if group == 0 { 1 } else { 2 }, group);
            if group > 0 {
                assert_eq!(partings.tell(1, group).len(), 2);
                leave(&mut partings, 1, group);
            }
        }
        assert_eq!(partings.groups.len(), GROUPS_MAX + 1);
        assert_eq!(partings.tell(2, 0).len(), 2, "it has been there from the beginning");
        assert_eq!(partings.count, 2);
        assert!(partings.tell(1, 1).is_empty() && !partings.has_forgotten());
    }

    /// A root does not end by what one rank says.
    #[test]
    fn who_says_that_a_group_has_other_members_changes_no_count() {
        let mut partings = Partings::new(8);
        for (rank, members) in [(0, 1), (1, 3), (2, 3), (3, 9)] {
            partings.add(rank, (7, members), String::new());
        }
        assert_eq!(partings.count, 0);
        leave(&mut partings, 0, 8);
        assert_eq!(partings.count, 1);
    }

    #[test]
    fn who_left_what_others_are_in_is_forgotten_only_where_that_is_too_much() {
        let mut partings = Partings::new(8);
        for group in 0..4 {
            leave(&mut partings, 0, group);
            leave(&mut partings, 1, group);
        }
        assert!(!partings.has_forgotten());
        assert_eq!(partings.tell(2, 0).len(), 2);
        leave(&mut partings, 1, 4);
        assert!(partings.has_forgotten());
        assert!(partings.tell(2, 0).is_empty(), "the first one");
        assert_eq!((partings.tell(2, 1).len(), partings.tell(2, 4).len()), (2, 1));
    }
}
