//! What a state and its drafts have in common, and its blocks on their way into memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::carrier::{Carrier, damaged};
use super::error::StoreError;
use super::opening::{is_same, overtaken, slots};
use crate::layout::{Blueprint, Checksum, Entry, Fault, Place, Wrong, checksum, recover};
use crate::memory::Buffer;
use crate::storage::{File, Pending, Priority, StorageError};

/// What drafts and states have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) carrier: Carrier,
    pub(super) files: Vec<File>,
    pub(super) blueprint: Arc<Blueprint>,
    /// The generations that were there when it was opened, the newest first, and which of them was.
    pub(super) seen: Vec<u64>,
    opened: u64,
    /// Whether we own the files; who opens them does so before the first write.
    pub(super) is_ours: AtomicBool,
    /// Of the drafts begun, the last.
    pub(super) last_draft: AtomicU64,
    /// The draft that has written something since the last commit; 0 for none.
    pub(super) written_by: AtomicU64,
}

/// A block on its way into memory.
#[derive(Debug)]
#[must_use = "only the outcome says whether the block is what was written"]
pub struct PendingBlock {
    pending: Pending,
    shared: Arc<Shared>,
    place: Place,
    wanted: Checksum,
}

impl Shared {
    /// Of a state that was made, with its files.
    pub(super) fn created(carrier: &Carrier, files: Vec<File>, blueprint: Arc<Blueprint>) -> Self {
        let mut shared = Self::opened(carrier, files, blueprint, (0, Vec::new()));
        *shared.is_ours.get_mut() = true;
        shared
    }

    /// Of a state that was opened at a generation, when these were there.
    pub(super) fn opened(
        carrier: &Carrier,
        files: Vec<File>,
        blueprint: Arc<Blueprint>,
        (opened, seen): (u64, Vec<u64>),
    ) -> Self {
        let (carrier, is_ours) = (carrier.clone(), AtomicBool::new(false));
        let (last_draft, written_by) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { carrier, files, blueprint, seen, opened, is_ours, last_draft, written_by }
    }

    pub(super) fn read_entry(
        self: &Arc<Self>,
        entry: &Entry,
        block: u64,
        buffer: Buffer,
        priority: Priority,
    ) -> PendingBlock {
        let geometry = &self.blueprint.geometry;
        let place = geometry.place(block, entry.side);
        let (file, bytes) = (&self.files[place.stripe as usize], geometry.block_bytes() as usize);
        let pending = self.carrier.storage.read(file, place.offset, buffer, 0..bytes, priority);
        PendingBlock { pending, shared: self.clone(), place, wanted: entry.checksum }
    }

    /// Why a block is not what its generation says: somebody else has written to the state since it
    /// was opened, or does so now, where an older generation is, or else it is damaged.
    #[cold]
    pub(super) fn blame(&self, place: Place, wanted: Checksum, found: Checksum) -> StoreError {
        let file = &self.files[place.stripe as usize];
        if !self.is_ours.load(Ordering::Acquire) {
            // Where not even the superblocks can be read now, this changes nothing.
            let now = slots(&self.carrier, &self.files).map(|slots| recover(&slots));
            if let Some(now) = now.ok().filter(|now| !is_same(&self.seen, now)) {
                return overtaken(&self.files, &self.seen, &now);
            }
            let is_older = self.seen.first() != Some(&self.opened);
            let owner = self.carrier.storage.owner(file).filter(|_| is_older);
            if owner.is_some() {
                return StorageError::Owned { path: file.path().into(), owner }.into();
            }
        }
        let (Checksum(wanted), Checksum(found)) = (wanted, found);
        let wrong = Wrong::Checksum { what: "a block", wanted, found };
        damaged(file, Fault { offset: place.offset, wrong })
    }
}

impl Drop for Shared {
    /// When nobody holds the state or its drafts any more, nothing is under way to its places: who
    /// opens it next may write there at once.
    fn drop(&mut self) {
        if *self.written_by.get_mut() != 0 {
            // What failed belongs to a draft that is void; nobody is left to be told.
            let _ = self.carrier.drain(&self.files);
        }
    }
}

impl PendingBlock {
    /// Whether waiting would end at once.
    pub fn is_done(&self) -> bool {
        self.pending.is_done()
    }

    /// The block, checked.
    ///
    /// Errors: it cannot be read; it is damaged; `Overtaken` or `Owned` where somebody else writes
    /// over it.
    pub fn wait(self, carrier: &Carrier) -> Result<Buffer, StoreError> {
        let buffer = carrier.land(self.pending)?;
        let bytes = self.shared.blueprint.geometry.block_bytes() as usize;
        let found = checksum(&buffer[..bytes]);
        match found == self.wanted {
            true => Ok(buffer),
            false => Err(self.shared.blame(self.place, self.wanted, found)),
        }
    }
}
