//! What carries blocks: a storage, an arena to stage them in, and how long a wait may take.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::error::StoreError;
use crate::layout::{Fault, Step};
use crate::memory::{Arena, Buffer, Category};
use crate::storage::{File, Pending, Priority, Storage, StorageError};

/// Superblocks and indices are staged in pieces of this size, so that a commit finds room in an
/// arena that is used up but for one of them. \[bytes\]
const STAGING_BYTES: usize = 64 << 10;

/// A storage, and an arena to stage blocks in. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Carrier {
    pub(super) storage: Storage,
    pub(super) arena: Arena,
    pub(super) wait_limit: Duration,
    pub(super) depth: usize,
}

/// Blocks on their way, oldest first, and the buffers that are free again.
pub(super) struct Convoy<'a, P> {
    carrier: &'a Carrier,
    bytes: usize,
    category: Category,
    spare: Vec<Buffer>,
    under_way: VecDeque<P>,
}

impl Carrier {
    /// Waits end after 10 minutes; 8 blocks of one request are on their way at once.
    pub fn new(storage: &Storage, arena: &Arena) -> Self {
        let (storage, arena) = (storage.clone(), arena.clone());
        Self { storage, arena, wait_limit: Duration::from_secs(600), depth: 8 }
    }

    /// Let no wait for the device take longer than this.
    pub fn wait_limit(self, wait_limit: Duration) -> Self {
        Self { wait_limit, ..self }
    }

    /// Let so many blocks of one request be on their way at once: as many are staged. At least 1.
    pub fn depth(self, depth: usize) -> Self {
        assert!(depth > 0, "at least one block must be on its way");
        Self { depth, ..self }
    }

    /// How long a wait may take.
    pub(crate) fn patience(&self) -> Duration {
        self.wait_limit
    }

    pub(super) fn buffer(&self, bytes: u64, category: Category) -> Result<Buffer, StoreError> {
        Ok(self.arena.take(bytes as usize, category)?)
    }

    /// Wait for a request and get its buffer back.
    pub(super) fn land(&self, pending: Pending) -> Result<Buffer, StoreError> {
        Ok(pending.wait(self.wait_limit).into_buffer()?)
    }

    /// Read bytes that are not part of a block. How many, a file may have said: what no memory
    /// holds is an error.
    pub(super) fn read_all(
        &self,
        file: &File,
        offset: u64,
        bytes: u64,
    ) -> Result<Vec<u8>, StoreError> {
        let mut all = Vec::new();
        all.try_reserve_exact(bytes as usize).map_err(|error| {
            let what = format!("an index of {bytes} bytes: {error}");
            StoreError::Foreign { path: file.path().into(), what }
        })?;
        all.resize(bytes as usize, 0);
        let mut convoy = self.convoy(STAGING_BYTES as u64, Category::Staging);
        let mut land = |(at, end, pending): (usize, usize, Pending)| {
            let buffer = self.land(pending)?;
            all[at..end].copy_from_slice(&buffer[..end - at]);
            Ok(buffer)
        };
        for at in (0..bytes as usize).step_by(STAGING_BYTES) {
            let end = (at + STAGING_BYTES).min(bytes as usize);
            let buffer = convoy.buffer(&mut land)?;
            let (from, priority) = (offset + at as u64, Priority::Urgent);
            let pending = self.storage.read(file, from, buffer, 0..end - at, priority);
            convoy.send((at, end, pending));
        }
        convoy.finish(&mut land)?;
        Ok(all)
    }

    /// Do the steps of a protocol: a write waits for every sync before it, and a sync for every
    /// write.
    pub(super) fn run(&self, files: &[File], steps: &[Step]) -> Result<(), StoreError> {
        let mut convoy = self.convoy(STAGING_BYTES as u64, Category::Staging);
        let mut land = |pending| self.land(pending);
        let mut syncs: Vec<Pending> = Vec::new();
        let settle = |syncs: &mut Vec<Pending>| -> Result<(), StoreError> {
            for sync in syncs.drain(..) {
                sync.wait(self.wait_limit).result?;
            }
            Ok(())
        };
        for step in steps {
            match step {
                Step::Write { stripe, offset, bytes } => {
                    settle(&mut syncs)?;
                    let parts = (*offset..).step_by(STAGING_BYTES);
                    for (at, part) in parts.zip(bytes.chunks(STAGING_BYTES)) {
                        let mut buffer = convoy.buffer(&mut land)?;
                        buffer[..part.len()].copy_from_slice(part);
                        let (file, priority) = (&files[*stripe as usize], Priority::Urgent);
                        let range = 0..part.len();
                        convoy.send(self.storage.write(file, at, buffer, range, priority));
                    }
                }
                Step::Sync { stripe } => {
                    convoy.finish(&mut land)?;
                    syncs.push(self.storage.sync(&files[*stripe as usize]));
                }
            }
        }
        convoy.finish(&mut land)?;
        settle(&mut syncs)
    }

    /// Wait until nothing that was written to these files is under way any more, failed or not.
    ///
    /// Errors: `Late`, and something may be; any other is that of a sync, and nothing is.
    pub(super) fn drain(&self, files: &[File]) -> Result<(), StoreError> {
        let syncs: Vec<Pending> = files.iter().map(|file| self.storage.sync(file)).collect();
        let mut failed = None;
        for sync in syncs {
            match sync.wait(self.wait_limit).result {
                Ok(_) | Err(StorageError::WriteFailed { .. }) => {}
                Err(error @ StorageError::Late { .. }) => return Err(error.into()),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    pub(super) fn convoy<P>(&self, bytes: u64, category: Category) -> Convoy<'_, P> {
        let (spare, under_way) = (Vec::new(), VecDeque::new());
        Convoy { carrier: self, bytes: bytes as usize, category, spare, under_way }
    }
}

impl<P> Convoy<'_, P> {
    /// A free buffer, if need be the one of the oldest block on its way, once that has landed.
    pub(super) fn buffer(
        &mut self,
        land: &mut impl FnMut(P) -> Result<Buffer, StoreError>,
    ) -> Result<Buffer, StoreError> {
        if let Some(buffer) = self.spare.pop() {
            return Ok(buffer);
        }
        if self.under_way.len() < self.carrier.depth {
            // Where the arena has no room for as many as one would like, fewer do.
            match self.carrier.arena.take(self.bytes, self.category) {
                Ok(buffer) => return Ok(buffer),
                Err(over) if self.under_way.is_empty() => return Err(over.into()),
                Err(_) => {}
            }
        }
        land(self.under_way.pop_front().expect("the depth is at least one"))
    }

    pub(super) fn send(&mut self, pending: P) {
        self.under_way.push_back(pending);
    }

    /// Wait for everything.
    pub(super) fn finish(
        &mut self,
        land: &mut impl FnMut(P) -> Result<Buffer, StoreError>,
    ) -> Result<(), StoreError> {
        while let Some(pending) = self.under_way.pop_front() {
            self.spare.push(land(pending)?);
        }
        Ok(())
    }
}

/// Something wrong in this file.
pub(super) fn damaged(file: &File, fault: Fault) -> StoreError {
    let path: Arc<Path> = file.path().into();
    StoreError::Damaged { path, fault }
}
