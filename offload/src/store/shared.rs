//! What a state and its drafts have in common, and its blocks on their way into memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::carrier::{Carrier, damaged};
use super::error::StoreError;
use super::opening::{is_same, overtaken, slots};
use crate::layout::{
    Blueprint, Candidate, Checksum, Entry, Fault, Geometry, Place, Step, Superblock, Wrong,
    checksum, recover,
};
use crate::memory::Buffer;
use crate::storage::{File, Pending, Priority, StorageError};

/// What drafts and states have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) carrier: Carrier,
    pub(super) files: Vec<File>,
    pub(super) blueprint: Arc<Blueprint>,
    /// The generations that were there when it was opened, the newest first, and which of them was.
    pub(super) seen: Vec<Candidate>,
    pub(super) opened: u64,
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
        (opened, seen): (u64, Vec<Candidate>),
    ) -> Self {
        let (carrier, is_ours) = (carrier.clone(), AtomicBool::new(false));
        let (last_draft, written_by) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { carrier, files, blueprint, seen, opened, is_ours, last_draft, written_by }
    }

    /// Of the same state, with its files opened anew: whose they were they are. What elder drafts
    /// have written is no longer under way, and they write nothing more.
    pub(super) fn renewed(&self) -> Result<Self, StoreError> {
        let Self { carrier, files, blueprint, seen, opened, is_ours, last_draft, written_by } =
            self;
        last_draft.fetch_add(1, Ordering::AcqRel);
        if let Err(error @ StoreError::Storage(StorageError::Late { .. })) = carrier.drain(files) {
            return Err(error);
        }
        written_by.store(0, Ordering::Release);
        let anew = files.iter().map(|file| carrier.storage.reopen(file));
        let anew = anew.collect::<Result<_, _>>()?;
        let mut shared = Self::opened(carrier, anew, blueprint.clone(), (*opened, seen.clone()));
        *shared.is_ours.get_mut() = is_ours.load(Ordering::Acquire);
        Ok(shared)
    }

    /// The superblocks of the generation that was opened, written once more.
    pub(super) fn superblocks(&self) -> Vec<Step> {
        let opened = self.seen.iter().find(|seen| seen.number() == self.opened);
        let write = |superblock: &Superblock| Step::Write {
            stripe: superblock.stripe,
            offset: Geometry::slot_offset((superblock.generation % 2) as usize),
            bytes: superblock.encode(),
        };
        opened.into_iter().flat_map(Candidate::stripes).map(write).collect()
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
            let is_older = self.seen.first().map(Candidate::number) != Some(self.opened);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Directory, Dtype, Placed, Tensor};
    use crate::memory::{Arena, Budget};
    use crate::storage::{Settings, Storage};
    use crate::store::{StateFile, Which};

    #[test]
    fn files_that_are_opened_anew_stay_ours() {
        let [path, elsewhere] = ["anew", "anew-elsewhere"].map(|name| {
            std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()))
        });
        let arena = Arena::new(Budget::new(16 << 20)).unwrap();
        let carrier = Carrier::new(&Storage::new(&arena, Settings::default()).unwrap(), &arena);
        let create = || {
            let directory = Directory::pack([Tensor::whole("t", Dtype::U8, &[9])], 64).unwrap();
            StateFile::create(&carrier, &[&path], directory, 4096)
        };
        let mut state = create().unwrap();
        for _ in 0..2 {
            state.go_back(None).unwrap();
            let error = create().map(drop).unwrap_err();
            let is_owned = matches!(error, StoreError::Storage(StorageError::Owned { .. }));
            assert!(is_owned, "{error}");
        }
        // Whatever its name leads to by now.
        std::fs::rename(&path, &elsewhere).unwrap();
        drop(create().unwrap());
        state.go_back(None).unwrap();
        let sevens = |_: &Placed, _, target: &mut [u8]| {
            target.fill(7);
            Ok(())
        };
        state.save(1, b"", sevens).unwrap();
        let mut seen = [0; 9];
        state.read(0, &mut seen).unwrap();
        assert_eq!(seen, [7; 9]);
        drop(state);
        StateFile::open(&carrier, &[&elsewhere], Which::Newest).unwrap();
        let nothing = StateFile::open(&carrier, &[&path], Which::Newest).unwrap_err();
        assert!(nothing.to_string().contains("nothing was ever committed"), "{nothing}");
        [path, elsewhere].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    }
}
