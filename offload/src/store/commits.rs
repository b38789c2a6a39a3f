//! How a [`Store`] commits, and goes back where it cannot.

use super::checkpoint::open_common;
use super::error::StoreError;
use super::slot::Tier;
use super::tiers::{Shelf, Store};
use crate::layout::{NOTE_BYTES_MAX, Unsealable};

impl Store {
    /// Make the contents of all tensors survive a loss of power, as one generation.
    ///
    /// Errors: a tensor is lent out, or the note is too long, and nothing is done; or something
    /// could not be written, and the store is back at the last commit, in memory as in the files
    /// (in these once they can be written, if they cannot be now). If that cannot be had, the error
    /// tells of that, and whatever the store is asked for next tries again first.
    pub fn commit(&mut self, label: u64, note: &[u8]) -> Result<(), StoreError> {
        if let Some(lent) = self.slots.iter().find(|slot| matches!(slot.tier, Tier::Lent { .. })) {
            return Err(StoreError::Lent { name: lent.placed.tensor.name.clone() });
        }
        if note.len() > NOTE_BYTES_MAX {
            return Err(Unsealable::Note { bytes: note.len() }.into());
        }
        self.be_steady()?;
        let committed = self.flush().and_then(|()| self.seal(label, note));
        if committed.is_err() {
            self.revert()?;
        }
        committed
    }

    /// Number and label of the last commit, if there was one.
    pub fn last(&self) -> Option<(u64, u64)> {
        // A commit that has failed may have been one for some of them.
        let newest = self.shelves.iter().map(|shelf| shelf.state.generation());
        let newest = newest.collect::<Option<Vec<_>>>()?;
        let common = newest.into_iter().min_by_key(|generation| generation.number)?;
        Some((common.number, common.label))
    }

    /// Write everything that is in memory alone to the next generation. It stays in memory.
    fn flush(&mut self) -> Result<(), StoreError> {
        for shelf in &mut self.shelves {
            if std::mem::take(&mut shelf.has_failed) {
                // What could not be written is written below: the commit's sync need not tell.
                shelf.state.drain()?;
            }
        }
        let mut runs = Vec::new();
        for index in 0..self.slots.len() {
            if matches!(self.slots[index].tier, Tier::Going(_)) {
                self.settle(index, self.carrier.wait_limit)?;
            }
            let is_new = !self.is_written(index);
            let tier = std::mem::replace(&mut self.slots[index].tier, Tier::File);
            let buffer = match tier {
                Tier::Host { buffer, is_changed } if is_changed || is_new => buffer,
                Tier::File if is_new => {
                    let mut buffer = self.room(index, self.carrier.wait_limit)?;
                    buffer.fill(0);
                    buffer
                }
                other => {
                    self.slots[index].tier = other;
                    continue;
                }
            };
            let run = self.send(index, buffer).map_err(|broken| self.keep(index, broken))?;
            runs.push(index);
            self.slots[index].tier = Tier::Going(run);
        }
        for index in runs {
            let tier = std::mem::replace(&mut self.slots[index].tier, Tier::File);
            if let Tier::Going(run) = tier {
                let buffer =
                    run.wait(self.carrier.wait_limit).map_err(|broken| self.keep(index, broken))?;
                self.slots[index].tier = Tier::Host { buffer, is_changed: false };
            }
        }
        Ok(())
    }

    /// Make the next generation of every shelf the newest.
    fn seal(&mut self, label: u64, note: &[u8]) -> Result<(), StoreError> {
        self.claim()?;
        // What has failed is gone from all of them before one says anything newer.
        (0..self.shelves.len()).try_for_each(|shelf| self.mend(shelf))?;
        for Shelf { state, draft, .. } in &mut self.shelves {
            state.commit_draft(draft, label, note)?;
        }
        for Shelf { state, draft, .. } in &mut self.shelves {
            *draft = state.begin_unmended();
        }
        Ok(())
    }

    /// Go back to the last commit if that could not be done when one failed.
    pub(super) fn be_steady(&mut self) -> Result<(), StoreError> {
        if self.is_adrift { self.revert() } else { Ok(()) }
    }

    /// Go back to the last commit that all shelves have.
    fn revert(&mut self) -> Result<(), StoreError> {
        self.is_adrift = true;
        for slot in &mut self.slots {
            slot.tier = Tier::File;
        }
        if let Err(error) = self.claim() {
            return self.follow(error);
        }
        let numbers = self.shelves.iter().map(|shelf| Some(shelf.state.generation()?.number));
        let common = numbers.collect::<Option<Vec<u64>>>().and_then(|all| all.into_iter().min());
        for Shelf { state, draft, has_failed } in &mut self.shelves {
            state.go_back(common)?;
            (*draft, *has_failed) = (state.begin_unmended(), false);
        }
        for shelf in 0..self.shelves.len() {
            // Where the device takes no writes now, it is done before the next one.
            let _ = self.mend(shelf);
        }
        self.is_adrift = false;
        Ok(())
    }

    /// Somebody else has written to the files, and we have not: be where they are.
    ///
    /// Errors: `error`, which told of them, if it is not this store any more.
    fn follow(&mut self, error: StoreError) -> Result<(), StoreError> {
        let states = open_common(&self.carrier, &self.paths)?;
        let mut pairs = self.shelves.iter().zip(&states);
        if !pairs.all(|(shelf, state)| shelf.state.is_same(state)) {
            return Err(error);
        }
        self.shelves = states.into_iter().map(Shelf::new).collect();
        self.is_adrift = false;
        Ok(())
    }

    /// Own all files, found as they were opened, before anything is written to one of them: whoever
    /// opened some before and some behind another's commit would erase that from the first.
    pub(super) fn claim(&mut self) -> Result<(), StoreError> {
        for shelf in 0..self.shelves.len() {
            if let Err(error) = self.shelves[shelf].state.claim() {
                // All or none: who has the rest of them shall not wait for these.
                self.shelves[..shelf].iter_mut().for_each(|shelf| shelf.state.let_go());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Do what is to be done before anything is written to a shelf. If that fails nothing of the
    /// draft is there yet, and another one takes its place.
    pub(super) fn mend(&mut self, shelf: usize) -> Result<(), StoreError> {
        let Shelf { state, draft, .. } = &mut self.shelves[shelf];
        let mended = state.mend();
        if mended.is_err() {
            *draft = state.begin_unmended();
        }
        mended
    }
}
