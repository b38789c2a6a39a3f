//! Files read through the page cache, without an engine: for what is read once, or by many.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::error::{Operation, StorageError};
use super::sys;

/// A file in the process's addresses, to be read only.
///
/// For files that nobody writes meanwhile, as checkpoints of others: who cuts such a file off ends
/// every process that reads beyond its new end with a bus error.
#[derive(Debug)]
pub struct Mapped {
    path: Arc<Path>,
    file: fs::File,
    map: memmap2::Mmap,
}

impl Mapped {
    /// Map the whole file.
    ///
    /// Errors: the system's.
    pub fn open(path: &Path) -> Result<Self, StorageError> {
        let mapped = fs::File::open(path).and_then(|file| {
            let map = sys::map_to_read(&file)?;
            // The kernel reads ahead further then; that it declines is no error.
            let _ = map.advise(memmap2::Advice::Sequential);
            Ok(Self { path: path.into(), file, map })
        });
        mapped.map_err(|e| StorageError::Refused {
            operation: Operation::Open,
            path: path.into(),
            offset: 0,
            wanted_bytes: 0,
            got_bytes: 0,
            errno: e.raw_os_error().unwrap_or(libc::EIO),
        })
    }

    /// Its length in bytes, as of mapping.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }

    /// Ask the kernel to read this part soon. Costs no waiting.
    pub fn ahead(&self, range: Range<usize>) {
        if range.end <= self.map.len() {
            // Advice: without it the bytes come later, that is all.
            let _ = self.map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
    }

    /// Copy what is at `offset` into `to`.
    ///
    /// Errors: the file is not that long, or not any more. Nothing was copied then.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), StorageError> {
        let length = self.file.metadata().map_or(0, |found| found.len()).min(self.bytes());
        let left = length.saturating_sub(offset);
        if left < to.len() as u64 {
            return Err(StorageError::Truncated {
                path: Arc::clone(&self.path),
                offset,
                wanted_bytes: to.len() as u64,
                got_bytes: left,
            });
        }
        let start = offset as usize;
        to.copy_from_slice(&self.map[start..start + to.len()]);
        Ok(())
    }
}
