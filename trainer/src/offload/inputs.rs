//! What goes into blocks, in a file between forward and backward (Rajbhandari et al. 2021, §5.1.2):
//! written while the next blocks are computed, and read one block before it is needed.
//!
//! Bytes in one slot, both ways: 4 · rows · width for each block but the last, in whole pages.

use super::{DiskUse, arena};
use crate::error::Error;
use brigade_offload::memory::{Arena, Buffer, Category, span_bytes};
use brigade_offload::storage::{File, Pending, Priority, Settings, Storage};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one transfer may take.
const LIMIT: Duration = Duration::from_secs(600);
/// One is being read and another waited for, or several are being written.
const BUFFERS: usize = 3;
/// Transfers of whole pages go past the page cache.
const PAGE: usize = 4096;

/// Room in a file for the input of each block.
pub(crate) struct Inputs {
    arena: Arena,
    storage: Storage,
    path: PathBuf,
    file: File,
    /// Numbers of an input, and its bytes in the file.
    len: usize,
    span: usize,
    blocks: usize,
    /// By block, oldest first.
    writing: VecDeque<(usize, Pending)>,
    reading: VecDeque<(usize, Pending)>,
    buffers: Vec<Buffer>,
    used: DiskUse,
}

impl Inputs {
    /// For so many blocks, of which each takes `len` numbers.
    ///
    /// Errors: `Setting` or `Offload` for memory or a device that has not that much.
    pub(crate) fn new(
        folder: &Path,
        (rank, ranks): (usize, usize),
        blocks: usize,
        len: usize,
    ) -> Result<Inputs, Error> {
        let span = (4 * len).next_multiple_of(PAGE);
        let arena = arena(None, BUFFERS * span_bytes(span))?;
        let storage = Storage::new(&arena, Settings::default()).map_err(Error::offload)?;
        let path = folder.join(format!("inputs-{rank:05}-of-{ranks:05}.brigade"));
        let file = storage.create(&path, (blocks.max(1) * span) as u64).map_err(Error::offload)?;
        let buffers = (0..BUFFERS).map(|_| arena.take(span, Category::Activations));
        let buffers = buffers.collect::<Result<_, _>>().map_err(Error::offload)?;
        let (writing, reading, used) = Default::default();
        Ok(Inputs {
            arena,
            storage,
            path,
            file,
            len,
            span,
            blocks,
            writing,
            reading,
            buffers,
            used,
        })
    }

    /// Memory that transfers go through. \[bytes\]
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena.capacity() as u64
    }

    /// What it has cost so far.
    pub(crate) fn used(&self) -> DiskUse {
        self.used
    }

    /// What one slot reads and writes.
    pub(crate) fn formula(&self) -> DiskUse {
        let bytes = (self.blocks.saturating_sub(1) * self.span) as u64;
        DiskUse { read_bytes: bytes, written_bytes: bytes, ..DiskUse::default() }
    }

    /// A block has been computed: its input leaves memory. Blocks are counted from 0.
    pub(crate) fn put(&mut self, block: usize, input: &[f32]) -> Result<(), Error> {
        let mut buffer = self.buffer()?;
        buffer.view_mut::<f32>()[..self.len].copy_from_slice(input);
        let (at, bytes) = ((block * self.span) as u64, 0..self.span);
        let write = self.storage.write(&self.file, at, buffer, bytes, Priority::Background);
        self.used.written_bytes += self.span as u64;
        self.writing.push_back((block, write));
        Ok(())
    }

    /// The input of a block, and have that on its way which is needed next.
    pub(crate) fn get(&mut self, block: usize, input: &mut [f32]) -> Result<(), Error> {
        self.ahead(block)?;
        let (coming, read) = self.reading.pop_front().expect("it is on its way");
        assert_eq!(coming, block, "blocks go backwards");
        let buffer = self.land(read)?;
        input.copy_from_slice(&buffer.view::<f32>()[..self.len]);
        self.buffers.push(buffer);
        block.checked_sub(1).map_or(Ok(()), |next| self.ahead(next))
    }

    /// Start to read an input, unless that has been done.
    pub(crate) fn ahead(&mut self, block: usize) -> Result<(), Error> {
        if self.reading.iter().any(|(coming, _)| *coming == block) {
            return Ok(());
        }
        while self.writing.iter().any(|(going, _)| *going == block) {
            self.settle()?;
        }
        let buffer = self.buffer()?;
        let (at, bytes) = ((block * self.span) as u64, 0..self.span);
        let read = self.storage.read(&self.file, at, buffer, bytes, Priority::Urgent);
        self.used.read_bytes += self.span as u64;
        self.reading.push_back((block, read));
        Ok(())
    }

    fn buffer(&mut self) -> Result<Buffer, Error> {
        while self.buffers.is_empty() {
            self.settle()?;
        }
        Ok(self.buffers.pop().expect("one has come back"))
    }

    /// Wait for the oldest write.
    fn settle(&mut self) -> Result<(), Error> {
        let (_, write) = self.writing.pop_front().expect("what is not here is being written");
        let buffer = self.land(write)?;
        self.buffers.push(buffer);
        Ok(())
    }

    fn land(&mut self, transfer: Pending) -> Result<Buffer, Error> {
        let from = Instant::now();
        let buffer = transfer.wait(LIMIT).into_buffer().map_err(Error::offload);
        self.used.waited += from.elapsed();
        buffer
    }
}

impl Drop for Inputs {
    fn drop(&mut self) {
        // It is of no use to anybody; if it stays, the next run replaces it.
        let _gone = self.storage.remove(&self.path);
    }
}
