//! Whose the files of a state are, and how it gets over what has failed: a sync that did ends what
//! an open file is good for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::StoreError;
use super::opening::{Which, take_over};
use super::shared::Shared;
use super::state::StateFile;
use crate::layout::{Candidate, erase};

impl StateFile {
    /// Own the files. Cost: where an older generation than the newest was opened, it is read once.
    /// Errors: somebody else does, or has written to them since they were opened.
    pub(super) fn claim(&mut self) -> Result<(), StoreError> {
        let Shared { carrier, files, seen, opened, is_ours, .. } = &*self.shared;
        if !is_ours.load(Ordering::Acquire) {
            take_over(carrier, files, seen)?;
            is_ours.store(true, Ordering::Release);
            // Who wrote meanwhile and committed nothing did so over an older generation than the
            // newest: that must not go for what is not whole.
            if seen.first().map(Candidate::number) != Some(*opened)
                && let Err(error) = self.verify()
            {
                self.let_go();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Wait until nothing is under way to the files, failed or not.
    pub(super) fn drain(&self) -> Result<(), StoreError> {
        self.shared.carrier.drain(&self.shared.files)
    }

    /// Let others own the files again, of which nothing was written.
    pub(super) fn let_go(&mut self) {
        let Shared { carrier, files, is_ours, .. } = &*self.shared;
        files.iter().for_each(|file| carrier.storage.disown(file));
        is_ours.store(false, Ordering::Release);
    }

    /// Do what must be done before anything is written. Cost: nothing the second time.
    ///
    /// Errors: somebody else owns the files; or it has failed, and the drafts begun before are
    /// void.
    pub(super) fn mend(&mut self) -> Result<(), StoreError> {
        self.claim()?;
        let Shared { carrier, files, last_draft, written_by, .. } = &*self.shared;
        let writer = written_by.load(Ordering::Acquire);
        let was_dropped = writer != 0 && writer != last_draft.load(Ordering::Acquire);
        // Writes of a draft that was dropped may be under way still, to the same places.
        let mut mended = if was_dropped { carrier.drain(files) } else { Ok(()) };
        if mended.is_ok() && !self.mend.is_empty() {
            mended = carrier.run(files, &self.mend);
        }
        if mended.is_err() {
            let is_as_opened =
                self.newest.as_ref().is_some_and(|newest| newest.number == self.shared.opened);
            // Another time it need not fail. What was read as it was opened may be lost with the
            // sync that was to make it stay, and no other tells of that: it is written again.
            if self.renew().is_ok() && is_as_opened && !self.mend.is_empty() {
                self.mend.splice(0..0, self.shared.superblocks());
            }
            return mended;
        }
        if was_dropped {
            written_by.store(0, Ordering::Release);
        }
        self.mend.clear();
        Ok(())
    }

    /// Open the files anew, since after a sync that failed no other succeeds on them as they are.
    ///
    /// Errors: what was written is still under way; the system's.
    pub(super) fn renew(&mut self) -> Result<(), StoreError> {
        self.shared = Arc::new(self.shared.renewed()?);
        Ok(())
    }

    /// Be where it was when this generation was the newest, or none was there yet, with the files
    /// opened anew. What came after is ours and has failed: it is erased before anything is
    /// written, even where it is whole and only the last sync was refused.
    pub(super) fn go_back(&mut self, number: Option<u64>) -> Result<(), StoreError> {
        let Some(number) = number else {
            (self.newest, self.mend) = (None, erase(self.geometry().stripes()));
            return self.renew();
        };
        self.renew()?;
        if self.newest.as_ref().is_none_or(|newest| newest.number != number) {
            let Shared { carrier, files, .. } = &*self.shared;
            let elder = Self::open_files(carrier, files.clone(), Which::Number(number), true)?;
            (self.newest, self.mend) = (elder.newest, elder.mend);
        }
        Ok(())
    }

    /// Whether it is the same state, and not another one in the same files.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.shared.blueprint.state == other.shared.blueprint.state
    }
}
