//! How tensors of a [`Store`] move between memory and files, and who makes room for whom.

use std::time::Duration;

use super::error::StoreError;
use super::held::Held;
use super::run::{Broken, Run};
use super::slot::{Slot, Tier};
use super::tiers::Store;
use crate::memory::Buffer;
use crate::storage::Priority;

impl Store {
    /// Have a tensor in memory, and whether it was changed since it was last in the files. Each
    /// transfer may take `limit`.
    pub(super) fn bring(
        &mut self,
        index: usize,
        limit: Duration,
    ) -> Result<(Buffer, bool), StoreError> {
        let tier = std::mem::replace(&mut self.slots[index].tier, Tier::File);
        let is_done = match &tier {
            Tier::Coming(run) => run.is_done(),
            Tier::Host { .. } | Tier::Going(_) => true,
            Tier::File | Tier::Lent { .. } => false,
        };
        self.tally.hits += u64::from(is_done);
        match tier {
            Tier::Host { buffer, is_changed } => return Ok((buffer, is_changed)),
            Tier::Coming(run) => {
                self.tally.late += u64::from(!is_done);
                self.slots[index].tier = Tier::Coming(run);
            }
            Tier::Going(run) => self.slots[index].tier = Tier::Going(run),
            Tier::File | Tier::Lent { .. } => {
                self.tally.misses += 1;
                let buffer = self.room(index, limit)?;
                match self.fetch(index, buffer, Priority::Urgent) {
                    Ok(run) => self.slots[index].tier = Tier::Coming(run),
                    Err(mut new) => {
                        new.fill(0);
                        return Ok((new, false));
                    }
                }
            }
        }
        self.slots[index].plan.is_wanted = true;
        self.settle(index, limit)?;
        match std::mem::replace(&mut self.slots[index].tier, Tier::File) {
            Tier::Host { buffer, is_changed } => Ok((buffer, is_changed)),
            _ => unreachable!("what is wanted stays in memory"),
        }
    }

    /// Fetch what is needed next, as far as there is room or something that is needed later makes
    /// it; and write what was changed and will have to make room, before its room is needed.
    pub(super) fn look_ahead(&mut self) -> Result<(), StoreError> {
        for index in 0..self.slots.len() {
            if matches!(&self.slots[index].tier, Tier::Going(run) if run.is_done()) {
                self.settle(index, self.carrier.wait_limit)?;
            }
        }
        let mut is_next = vec![self.order.is_empty(); self.slots.len()];
        let next = self.needed_next(&mut is_next);
        for (index, is_next) in is_next.into_iter().enumerate() {
            let is_changed = matches!(self.slots[index].tier, Tier::Host { is_changed: true, .. });
            if is_changed && !is_next && !self.slots[index].plan.is_wanted {
                self.leave(index)?;
            }
        }
        for index in next {
            if matches!(self.slots[index].tier, Tier::File) && !self.fetch_ahead(index)? {
                break;
            }
        }
        Ok(())
    }

    /// What fits into memory of that which is needed from here on, beside what is lent out; marked
    /// in `is_next` as well.
    fn needed_next(&self, is_next: &mut [bool]) -> Vec<usize> {
        let mut bytes = self.held().lent;
        let mut next = Vec::new();
        for index in self.order.ahead() {
            let Slot { span, tier, .. } = &self.slots[index];
            if matches!(tier, Tier::Lent { .. }) || is_next[index] {
                continue;
            }
            bytes += span;
            if bytes > self.host_bytes_max {
                break;
            }
            is_next[index] = true;
            next.push(index);
        }
        next
    }

    /// Fetch a tensor that is needed later. False: its room is not free yet.
    fn fetch_ahead(&mut self, index: usize) -> Result<bool, StoreError> {
        let span = self.slots[index].span;
        loop {
            match self.try_room(span) {
                Ok(buffer) => {
                    // What nobody ever wrote is not fetched: it is zero when it is asked for.
                    if let Ok(run) = self.fetch(index, buffer, Priority::Background) {
                        self.slots[index].tier = Tier::Coming(run);
                    }
                    return Ok(true);
                }
                Err(_) => {
                    let is_freed = self.evict(self.order.distance(index))?;
                    if is_freed != Some(true) {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// Whether the files know anything of a tensor.
    pub(super) fn is_written(&self, index: usize) -> bool {
        let Slot { shelf, placed, span, .. } = &self.slots[index];
        let shelf = &self.shelves[*shelf];
        let first = placed.offset / shelf.state.geometry().block_bytes();
        *span == 0 || shelf.draft.entry(first).is_some()
    }

    /// Start to read a tensor. The buffer comes back where there is nothing to be read yet.
    pub(super) fn fetch(
        &mut self,
        index: usize,
        buffer: Buffer,
        priority: Priority,
    ) -> Result<Run, Buffer> {
        let Slot { shelf, placed, span, .. } = &self.slots[index];
        let shelf = &self.shelves[*shelf];
        let first = placed.offset / shelf.state.geometry().block_bytes();
        let run = Run::read(&shelf.draft, first, *span, buffer, priority)?;
        self.tally.read_bytes += *span as u64;
        self.slots[index].plan.moves += 1;
        Ok(run)
    }

    /// Start to write a tensor to the next generation.
    pub(super) fn send(&mut self, index: usize, mut buffer: Buffer) -> Result<Run, Broken> {
        if let Err(error) = self.claim().and_then(|()| self.mend(self.slots[index].shelf)) {
            return Err(Broken { error: Box::new(error), buffer: Some(buffer) });
        }
        let Slot { shelf, placed, span, .. } = &self.slots[index];
        let shelf = &mut self.shelves[*shelf];
        buffer[placed.tensor.bytes() as usize..].fill(0);
        let first = placed.offset / shelf.state.geometry().block_bytes();
        let run = Run::write(&mut shelf.draft, first, *span, buffer, Priority::Background)?;
        self.tally.written_bytes += *span as u64;
        self.slots[index].plan.moves += 1;
        Ok(run)
    }

    /// A write has failed: the contents stay in memory, where they are.
    pub(super) fn keep(&mut self, index: usize, Broken { error, buffer }: Broken) -> StoreError {
        self.shelves[self.slots[index].shelf].has_failed = true;
        if let Some(buffer) = buffer {
            self.slots[index].tier = Tier::Host { buffer, is_changed: true };
        }
        *error
    }

    /// A buffer for a tensor that is needed now. Each transfer that must make room may take
    /// `limit`.
    pub(super) fn room(&mut self, index: usize, limit: Duration) -> Result<Buffer, StoreError> {
        let span = self.slots[index].span;
        loop {
            let refused = match self.try_room(span) {
                Ok(buffer) => return Ok(buffer),
                Err(refused) => refused,
            };
            let find =
                |wanted: fn(&Tier) -> bool| self.slots.iter().position(|slot| wanted(&slot.tier));
            let going = find(|tier| matches!(tier, Tier::Going(_)));
            let coming = find(|tier| matches!(tier, Tier::Coming(_)));
            if let Some(going) = going {
                self.settle(going, limit)?;
            } else if self.evict(None)?.is_none() {
                match coming {
                    Some(coming) => self.settle(coming, limit)?,
                    None => return Err(refused),
                }
            }
        }
    }

    fn try_room(&self, span: usize) -> Result<Buffer, StoreError> {
        let held = self.held();
        let Held { clean, changed, moving, lent, .. } = held;
        let limit_bytes = self.host_bytes_max;
        if clean + changed + moving + lent + span > limit_bytes {
            return Err(StoreError::HostFull { wanted_bytes: span, limit_bytes, held });
        }
        self.carrier.buffer(span as u64, self.category)
    }

    /// Let the tensor leave memory that is needed last, if that is after `distance` more uses.
    /// True: its memory is free; false: it will be once it is written; None: there is no such
    /// tensor.
    fn evict(&mut self, distance: Option<usize>) -> Result<Option<bool>, StoreError> {
        let key = |index: &usize| match self.slots[*index].plan.is_wanted {
            true => 0,
            false => self.order.distance(*index).unwrap_or(usize::MAX),
        };
        let is_host = |index: &usize| {
            matches!(self.slots[*index].tier, Tier::Host { .. }) && self.slots[*index].span > 0
        };
        let last = (0..self.slots.len()).filter(is_host).max_by_key(key);
        let Some(last) = last.filter(|last| distance.is_none_or(|least| key(last) > least)) else {
            return Ok(None);
        };
        self.leave(last).map(Some)
    }

    /// Let a tensor leave memory. False: it must be written first.
    pub(super) fn leave(&mut self, index: usize) -> Result<bool, StoreError> {
        let tier = std::mem::replace(&mut self.slots[index].tier, Tier::File);
        let Tier::Host { buffer, is_changed: true } = tier else { return Ok(true) };
        let run = self.send(index, buffer).map_err(|broken| self.keep(index, broken))?;
        self.slots[index].tier = Tier::Going(run);
        self.slots[index].plan.is_wanted = false;
        Ok(false)
    }

    /// Wait for a tensor on its way: one that comes stays in memory, one that goes leaves it
    /// unless it is wanted.
    ///
    /// Errors: it has failed, or takes longer than `limit`, and is still on its way then.
    pub(super) fn settle(&mut self, index: usize, limit: Duration) -> Result<(), StoreError> {
        let slot = &mut self.slots[index];
        let (Tier::Coming(run) | Tier::Going(run)) = &mut slot.tier else { return Ok(()) };
        if !run.is_done() {
            // Somebody waits from here on.
            run.hurry();
        }
        if !run.wait_until_done(limit) {
            let is_write = matches!(slot.tier, Tier::Going(_));
            let waited_ms = limit.as_millis().min(u128::from(u64::MAX)) as u64;
            return Err(StoreError::Late {
                name: slot.placed.tensor.name.clone(),
                is_write,
                waited_ms,
            });
        }
        let is_wanted = std::mem::take(&mut slot.plan.is_wanted);
        match std::mem::replace(&mut slot.tier, Tier::File) {
            Tier::Going(run) => {
                let buffer = run.wait(limit).map_err(|broken| self.keep(index, broken))?;
                if is_wanted {
                    self.slots[index].tier = Tier::Host { buffer, is_changed: false };
                }
            }
            Tier::Coming(run) => {
                let buffer = run.wait(limit).map_err(|broken| *broken.error)?;
                self.slots[index].tier = Tier::Host { buffer, is_changed: false };
            }
            other => self.slots[index].tier = other,
        }
        Ok(())
    }
}
