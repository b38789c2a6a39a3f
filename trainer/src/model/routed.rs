//! What gates make a rank send and hold, which no formula tells beforehand: it is counted as rows
//! are chosen.

use super::Gpt;
use crate::layout::Config;
use crate::moe::Mixture;
use crate::parallel::tensor::Group;

impl Gpt {
    /// Bytes that this rank has sent to those who divide the model with it. Not among them is what
    /// gates made it send, which no formula tells beforehand: only what it should have been when
    /// rows had been chosen is taken off, so a byte more or less would be seen.
    pub fn sent_bytes(&self) -> u64 {
        let all: u64 = self.division.groups().iter().map(Group::sent_bytes).sum();
        all - self.routed.get()
    }

    /// Bytes that this rank held at most for rows that gates chose: none before the first step.
    pub fn gated_bytes(&self) -> u64 {
        self.gated.get()[1]
    }

    /// Gates have made this rank send so many more.
    pub(crate) fn add_routed(&self, bytes: u64) {
        self.routed.set(self.routed.get() + bytes);
    }

    /// Instead of so many bytes, a mixture keeps others now, while some passed by.
    pub(super) fn keep_gated(&self, before: u64, now: u64, passing: u64) {
        let [held, most] = self.gated.get();
        let held = held.saturating_sub(before) + now;
        self.gated.set([held, most.max(held + passing)]);
    }

    /// Those who divide experts, and the mixtures' shape.
    pub(crate) fn mixture(&self) -> (Option<&Group>, Mixture) {
        let Config { width, experts, top, .. } = *self.layout.config();
        let group = self.division.groups().first();
        let (ranks, is_apart) = group.map_or((1, false), |all| (all.size(), all.is_ordered()));
        (group, Mixture { width, experts, top, ranks, is_apart })
    }
}
