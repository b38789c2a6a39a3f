//! Tensors on their way that nobody waits for yet: handles, and the times they are needed by.

use std::time::{Duration, Instant};

use super::error::StoreError;
use super::slot::Tier;
use super::tiers::{Loan, Store};
use crate::memory::Buffer;
use crate::storage::Priority;

/// A tensor on its way into memory or to its file. To be asked or waited for, as often as one
/// likes; dropped, the tensor goes on.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    index: usize,
    /// Which of the tensor's moves it is; another one means that this one has ended.
    number: u64,
}

impl Work {
    /// Whether waiting would end at once.
    pub fn is_done(&self, store: &mut Store) -> bool {
        store.note_missed();
        match &mut store.slots[self.index] {
            slot if slot.plan.moves != self.number => true,
            slot => match &mut slot.tier {
                Tier::Coming(run) | Tier::Going(run) => run.wait_until_done(Duration::ZERO),
                _ => true,
            },
        }
    }

    /// Wait for at most `limit`. What is waited for goes before what nobody waits for.
    ///
    /// Errors: the transfer's; [`StoreError::Late`], and the tensor is still on its way.
    pub fn wait(&self, store: &mut Store, limit: Duration) -> Result<(), StoreError> {
        store.note_missed();
        if store.slots[self.index].plan.moves != self.number {
            return Ok(());
        }
        let was_there = store.slots[self.index].is_there();
        let result = store.settle(self.index, limit);
        if !was_there {
            store.note_wait(self.index);
        }
        result
    }
}

impl Store {
    /// Start to bring a tensor into memory, to be there when it is needed. Whether it was is looked
    /// at when the store or one of its works is next used, and counted: [`Store::missed`].
    ///
    /// Cost: waits only where memory has to be freed for it. Errors: what must leave memory cannot
    /// be written, or all memory is lent out.
    pub fn prefetch(&mut self, name: &str, needed_by: Option<Instant>) -> Result<Work, StoreError> {
        let index = self.index(name)?;
        self.be_steady()?;
        if matches!(self.slots[index].tier, Tier::File) {
            let buffer = self.room(index, self.carrier.wait_limit)?;
            self.slots[index].tier = match self.fetch(index, buffer, Priority::Background) {
                Ok(run) => Tier::Coming(run),
                Err(mut buffer) => {
                    buffer.fill(0);
                    Tier::Host { buffer, is_changed: false }
                }
            };
        }
        let plan = &mut self.slots[index].plan;
        (plan.needed_by, plan.is_wanted) = (needed_by, true);
        Ok(Work { index, number: plan.moves })
    }

    /// Give a tensor back with new contents, and start to write them to the next generation. They
    /// leave memory once they are there.
    ///
    /// Errors: they cannot be written; they stay in memory then, as after [`Store::put`].
    pub fn put_out(&mut self, loan: Loan) -> Result<Work, StoreError> {
        let index = self.take_back(loan);
        self.leave(index)?;
        Ok(Work { index, number: self.slots[index].plan.moves })
    }

    /// Which tensors were not in memory at the time they were needed by, and how often.
    pub fn missed(&self) -> impl Iterator<Item = (&str, u64)> {
        let slots = self.slots.iter().filter(|slot| slot.plan.missed > 0);
        slots.map(|slot| (slot.placed.tensor.name.as_str(), slot.plan.missed))
    }

    /// Have a tensor in memory, and find out whether it was there in time.
    pub(super) fn bring_in_time(
        &mut self,
        index: usize,
        limit: Duration,
    ) -> Result<(Buffer, bool), StoreError> {
        self.note_missed();
        let was_there = self.slots[index].is_there();
        let brought = self.bring(index, limit);
        if !was_there {
            self.note_wait(index);
        }
        if brought.is_ok() {
            let plan = &mut self.slots[index].plan;
            (plan.is_wanted, plan.needed_by) = (false, None);
        }
        brought
    }

    /// Look at every tensor that should be in memory by now.
    fn note_missed(&mut self) {
        for slot in &mut self.slots {
            if slot.plan.is_due() {
                slot.plan.needed_by = None;
                if !slot.is_there() {
                    slot.plan.missed += 1;
                    self.tally.missed += 1;
                }
            }
        }
    }

    /// Look at a tensor that was not there and was waited for.
    fn note_wait(&mut self, index: usize) {
        let plan = &mut self.slots[index].plan;
        if plan.is_due() {
            plan.needed_by = None;
            plan.missed += 1;
            self.tally.missed += 1;
        }
    }
}
