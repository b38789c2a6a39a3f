//! A generation in the making.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::carrier::Carrier;
use super::error::StoreError;
use super::shared::{PendingBlock, Shared};
use crate::layout::{
    Checksum, Commit, Entry, Generation, Geometry, Place, Placed, Sealed, checksum,
};
use crate::memory::{Buffer, Category};
use crate::storage::{Pending, Priority};

/// The next generation of a state, while its blocks are written. Blocks that are not written keep
/// their old contents. Dropped, it leaves no trace; the last of a state and its drafts to be
/// dropped waits for what is still under way.
#[derive(Debug)]
pub struct Draft {
    shared: Arc<Shared>,
    commit: Commit,
    ticket: u64,
    /// How many of its runs have segments that are not handed in yet.
    unsent: Arc<AtomicUsize>,
}

impl Draft {
    pub(super) fn new(shared: &Arc<Shared>, newest: Option<&Generation>, ticket: u64) -> Self {
        let commit = Commit::begin(&shared.blueprint, newest);
        Self { shared: shared.clone(), commit, ticket, unsent: Arc::default() }
    }

    /// The number of the generation that it will be.
    pub fn number(&self) -> u64 {
        self.commit.number()
    }

    /// Write one block from the begin of the buffer, which has at least its size. What no tensor
    /// covers is made zero in it, so that equal tensors make equal files.
    ///
    /// Cost: a sum over the block on this thread, and one request. What has failed is in the
    /// outcome, and again in the error of the commit. Errors: a newer draft was begun.
    pub fn write_block(
        &mut self,
        block: u64,
        mut buffer: Buffer,
        priority: Priority,
    ) -> Result<Pending, StoreError> {
        let block_bytes = self.geometry().block_bytes();
        let (begin, bytes) = (block * block_bytes, block_bytes as usize);
        for gap in self.shared.blueprint.directory.gaps(begin, begin + block_bytes) {
            buffer[(gap.start - begin) as usize..(gap.end - begin) as usize].fill(0);
        }
        let place = self.note(block, checksum(&buffer[..bytes]))?;
        let Shared { carrier, files, .. } = &*self.shared;
        let file = &files[place.stripe as usize];
        Ok(carrier.storage.write(file, place.offset, buffer, 0..bytes, priority))
    }

    /// Read the copy of a block that this draft has so far: what it has written, or what the newest
    /// generation has. Its write must have been waited for. None: nobody ever wrote it.
    pub fn read_block(
        &self,
        block: u64,
        buffer: Buffer,
        priority: Priority,
    ) -> Option<PendingBlock> {
        let entry = self.commit.entry(block)?;
        Some(self.shared.read_entry(&entry, block, buffer, priority))
    }

    /// Write all blocks. `fill` gives the bytes of a tensor from the given one on.
    pub(super) fn fill(
        &mut self,
        fill: &mut impl FnMut(&Placed, u64, &mut [u8]) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let Shared { carrier, blueprint, .. } = &*shared;
        let block_bytes = blueprint.geometry.block_bytes();
        let mut convoy = carrier.convoy(block_bytes, Category::Checkpoint);
        let mut land = |pending| carrier.land(pending);
        let mut tensors = blueprint.directory.tensors();
        for block in 0..blueprint.geometry.blocks() {
            let mut buffer = convoy.buffer(&mut land)?;
            let (begin, end) = (block * block_bytes, (block + 1) * block_bytes);
            let behind = tensors.iter().take_while(|placed| placed.end() <= begin).count();
            tensors = &tensors[behind..];
            for placed in tensors.iter().take_while(|placed| placed.offset < end) {
                let (from, to) = (placed.offset.max(begin), placed.end().min(end));
                let target = &mut buffer[(from - begin) as usize..(to - begin) as usize];
                fill(placed, from - placed.offset, target)?;
            }
            convoy.send(self.write_block(block, buffer, Priority::Background)?);
        }
        convoy.finish(&mut land)
    }

    /// Change a part of a tensor. Blocks that it covers only in part are read, changed and written;
    /// those that nobody ever wrote are taken for zeros.
    pub fn put(&mut self, placed: &Placed, from: u64, source: &[u8]) -> Result<(), StoreError> {
        let shared = self.shared.clone();
        let Shared { carrier, blueprint, .. } = &*shared;
        let bytes = source.len() as u64;
        assert!(from + bytes <= placed.tensor.bytes(), "{from} + {bytes} of {placed:?}");
        let block_bytes = blueprint.geometry.block_bytes();
        let mut convoy = carrier.convoy(block_bytes, Category::Staging);
        let mut land = |pending| carrier.land(pending);
        let (begin, end) = (placed.offset + from, placed.offset + from + bytes);
        let mut at = begin;
        while at < end {
            let block = at / block_bytes;
            let within = (at % block_bytes) as usize;
            let stop = end.min((block + 1) * block_bytes);
            let part = &source[(at - begin) as usize..(stop - begin) as usize];
            let mut buffer = convoy.buffer(&mut land)?;
            if part.len() as u64 != block_bytes {
                buffer = self.old_or_zeros(block, buffer, carrier)?;
            }
            buffer[within..within + part.len()].copy_from_slice(part);
            convoy.send(self.write_block(block, buffer, Priority::Background)?);
            at = stop;
        }
        convoy.finish(&mut land)
    }

    fn old_or_zeros(
        &self,
        block: u64,
        mut buffer: Buffer,
        carrier: &Carrier,
    ) -> Result<Buffer, StoreError> {
        if self.commit.entry(block).is_none() {
            buffer.fill(0);
            return Ok(buffer);
        }
        let pending = self.read_block(block, buffer, Priority::Urgent);
        pending.expect("it has an entry").wait(carrier)
    }

    pub(super) fn geometry(&self) -> Geometry {
        self.shared.blueprint.geometry
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What tells it from others of its state, and the number of the generation that it will be.
    pub(super) fn mark(&self) -> (u64, u64) {
        (self.ticket, self.number())
    }

    pub(super) fn unsent(&self) -> &Arc<AtomicUsize> {
        &self.unsent
    }

    /// The copy of a block that this draft has so far.
    pub(super) fn entry(&self, block: u64) -> Option<Entry> {
        self.commit.entry(block)
    }

    /// Note what a block will sum to, and learn where it goes.
    pub(super) fn note(&mut self, block: u64, sum: Checksum) -> Result<Place, StoreError> {
        if self.shared.last_draft.load(Ordering::Acquire) != self.ticket {
            return Err(StoreError::Superseded { number: self.number() });
        }
        self.shared.written_by.store(self.ticket, Ordering::Release);
        let place = self.commit.place(block);
        self.commit.written(block, sum);
        Ok(place)
    }

    pub(super) fn seal(&self, label: u64, note: &[u8]) -> Result<Sealed, StoreError> {
        if self.shared.last_draft.load(Ordering::Acquire) != self.ticket {
            return Err(StoreError::Superseded { number: self.number() });
        }
        // What tells of it is written, too, even where no block was.
        self.shared.written_by.store(self.ticket, Ordering::Release);
        match self.unsent.load(Ordering::Acquire) {
            0 => Ok(self.commit.clone().seal(label, note)?),
            runs => Err(StoreError::Unsent { runs }),
        }
    }
}
