//! The memory that ranks of a host share: one sparse file, a directory, and an area per group.
//!
//! ```text
//! 0        magic | length
//! 64       next: where the unused rest begins
//! 4 KiB    directory: key -> offset, bytes              (64 bytes an entry)
//! ...      areas, whole pages of any kernel, given back to the kernel by the last to leave
//! ```
//!
//! Whoever comes first for a key reserves the area; the others find it. Nobody sends a message, so
//! a second communicator costs one look-up and one `mmap`. A value read from here was written by a
//! process that proved the secret, but it is checked like any other: a wrong one is an error.
//!
//! An entry is in use while its area is, or waits on the free list with it; then another group gets
//! it, so that groups that follow each other do not use the directory up. A key may be in the
//! entries of one *bucket* only, whose word says which of them are claimed and counts the changes.
//! Whoever has not found the key claims an entry by changing the word that it read before it
//! looked: then nobody else has claimed one meanwhile, and no key is there twice (`claims`).

mod claims;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::held::Held;
use super::region::{Line, Shared, plain};
use super::sys::{self, Mapping, PAGE_BYTES};
use crate::{TransportError, opened};

const MAGIC: u64 = u64::from_le_bytes(*b"BRGSHM03");
/// How many areas a region can have at a time, those that were given back among them.
pub(super) const ENTRIES: usize = 1 << 16;
/// How many entries a key may be in: one for each bit of half a word.
const BUCKET: usize = 32;
/// Areas begin and end at multiples of this: no kernel has larger pages, and none maps parts of
/// them.
const AREA_ALIGN: usize = 64 << 10;
const AREAS_FROM: u64 =
    (PAGE_BYTES + ENTRIES * size_of::<Entry>()).next_multiple_of(AREA_ALIGN) as u64;
/// Lengths to try for the file. It is sparse: length costs nothing, but some systems bound it.
const LENGTHS: [u64; 3] = [1 << 40, 1 << 36, 1 << 32];
/// How long whoever needs an entry for itself waits for others to fill in theirs.
const SETTLING: Duration = Duration::from_secs(1);
/// Areas are rounded up to a power of two, so that what one group leaves another can take.
const CLASSES: usize = 64;

plain! {
    /// The head of the file.
    struct Head {
        magic: AtomicU64,
        bytes: AtomicU64,
        next: Line<AtomicU64>,
        /// For each power of two, the entries whose areas were given back: a count of changes in
        /// the upper half, an entry's number plus one in the lower.
        free: [AtomicU64; CLASSES],
    }

    /// What the directory knows of one area.
    struct Entry {
        /// Stored last: what is behind a key is settled.
        key: AtomicU64,
        offset: AtomicU64,
        bytes: AtomicU64,
        /// Of a bucket's first entry: a count of changes in the upper half, and a bit for each
        /// claimed entry of the bucket in the lower.
        claims: AtomicU64,
        /// The next entry of the free list, plus one.
        next_free: AtomicU32,
    }
}

/// The key of an entry that is claimed and not filled in yet, and of one that nobody has.
const UNSETTLED: u64 = 0;
/// The key of an entry that only its number leads to.
const NAMELESS: u64 = 1;
/// Keys of groups are no less.
pub(super) const KEY_MIN: u64 = 2;

/// The file that some ranks of a host share.
pub(super) struct Region {
    fd: OwnedFd,
    head: Arc<Mapping>,
    bytes: u64,
    /// What is mapped of it behind the directory, by offset and length.
    mapped: Held<(u64, usize), Mapping>,
}

impl Region {
    /// Make the file.
    pub(super) fn create() -> Result<Self, TransportError> {
        let fd = sys::memory_file().map_err(|e| {
            TransportError::from_io("memfd_create", &e, "making the memory that ranks share")
        })?;
        let bytes = set_length(&fd)?;
        let region = Self::map(fd, bytes)?;
        let head = region.head();
        head.next.0.store(AREAS_FROM, Ordering::Relaxed);
        head.bytes.store(bytes, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok(region)
    }

    /// Use the file that member `from` handed over.
    pub(super) fn adopt(fd: OwnedFd, from: usize) -> Result<Self, TransportError> {
        let corrupt = |what: String| TransportError::Corrupt { peer: from, what };
        let bytes = sys::sealed_length(&fd)
            .map_err(|e| corrupt(format!("a descriptor that is no sealed memory: {e}")))?;
        if bytes < AREAS_FROM {
            return Err(corrupt(format!("a region of only {bytes} bytes")));
        }
        let region = Self::map(fd, bytes)?;
        let head = region.head();
        if head.magic.load(Ordering::Acquire) != MAGIC
            || head.bytes.load(Ordering::Relaxed) != bytes
        {
            return Err(corrupt("a region of another version".into()));
        }
        Ok(region)
    }

    /// The descriptor to hand to peers.
    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.fd
    }

    /// Map the area of entry `index`, if whoever made it wanted as many bytes.
    pub(super) fn map_alike(
        &self,
        index: usize,
        bytes: usize,
    ) -> Result<Arc<Mapping>, TransportError> {
        let found = self.area_bytes(index);
        if found != rounded(bytes) {
            let why = format!(
                "members lay out a group's memory differently ({found} and {bytes} bytes): \
                 do all use the same version and settings?"
            );
            return Err(TransportError::Refused { why });
        }
        self.map_area(self.offset(index), bytes)
    }

    pub(super) fn area_bytes(&self, index: usize) -> u64 {
        self.directory()[index].bytes.load(Ordering::Relaxed)
    }

    fn map(fd: OwnedFd, bytes: u64) -> Result<Self, TransportError> {
        let head = Mapping::new(&fd, 0, AREAS_FROM as usize)
            .map_err(|e| TransportError::from_io("mmap", &e, "mapping a region's directory"))?;
        Ok(Self { fd, head: Arc::new(head), bytes, mapped: Held::new() })
    }

    fn head(&self) -> Shared<Head> {
        Shared::new(&self.head, 0)
    }

    fn directory(&self) -> Shared<[Entry; ENTRIES]> {
        Shared::new(&self.head, PAGE_BYTES)
    }

    /// An entry that nobody else looks for, with an area at least `bytes` long, zeroed: one that
    /// was given back, or a fresh one. So windows that follow each other do not use them up.
    pub(super) fn take(&self, bytes: usize) -> Result<usize, TransportError> {
        if let Some(index) = self.recycled(rounded(bytes)) {
            return Ok(index);
        }
        let mut key = [0; 8];
        getrandom::fill(&mut key).map_err(|e| TransportError::Refused {
            why: format!("the system gives no random bytes: {e}"),
        })?;
        // Nobody else asks for this key, so there is nobody to wait for but those who are at
        // others of its bucket.
        self.find(u64::from_le_bytes(key).max(KEY_MIN), bytes, Instant::now() + SETTLING)
    }

    /// Take an entry with an area of exactly `bytes` off the free list.
    fn recycled(&self, bytes: u64) -> Option<usize> {
        let (head, directory) = (self.head(), self.directory());
        let free = &head.free[bytes.trailing_zeros() as usize];
        let mut top = free.load(Ordering::Acquire);
        loop {
            let index = (top as u32).checked_sub(1)? as usize;
            let entry = directory.get(index)?;
            let offset = entry.offset.load(Ordering::Relaxed);
            let next = u64::from(entry.next_free.load(Ordering::Relaxed));
            let changed = ((top >> 32) + 1) << 32 | next;
            match free.compare_exchange_weak(top, changed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index).filter(|_| self.check_area(offset, bytes).is_ok()),
                Err(now) => top = now,
            }
        }
    }

    /// Give the memory of entry `index` back to the kernel, and its place to whoever needs one.
    pub(super) fn give_back(&self, index: usize) {
        let entry = &self.directory()[index];
        let (offset, bytes) =
            (entry.offset.load(Ordering::Relaxed), entry.bytes.load(Ordering::Relaxed));
        entry.key.store(NAMELESS, Ordering::Release);
        // A hole that cannot be punched leaves its memory to be freed with the region; an area
        // that is not zeroed must not be given out again.
        if self.check_area(offset, bytes).is_ok()
            && sys::punch_hole(&self.fd, offset, bytes).is_ok()
        {
            self.recycle(index, bytes);
        }
    }

    /// What lies at `offset`, mapped once for this process, if an area can lie there.
    pub(super) fn map_area(
        &self,
        offset: u64,
        bytes: usize,
    ) -> Result<Arc<Mapping>, TransportError> {
        self.check_area(offset, bytes as u64)?;
        self.mapped.get_or((offset, bytes), || {
            Mapping::new(&self.fd, offset, bytes).map_err(|e| {
                TransportError::from_io("mmap", &e, format!("mapping {bytes} bytes at {offset}"))
            })
        })
    }

    /// A number kept with entry `index` while it is in use, for chains of areas.
    pub(super) fn link(&self, index: usize) -> Option<u32> {
        Some(self.directory().get(index)?.next_free.load(Ordering::Relaxed))
    }

    /// Set the number kept with entry `index`.
    pub(super) fn set_link(&self, index: usize, link: u32) {
        self.directory()[index].next_free.store(link, Ordering::Relaxed);
    }

    /// Where the area of entry `index` lies.
    pub(super) fn offset(&self, index: usize) -> u64 {
        self.directory()[index].offset.load(Ordering::Relaxed)
    }

    /// Put the area of entry `index` onto the free list; its memory has been given back.
    fn recycle(&self, index: usize, bytes: u64) {
        let (head, directory) = (self.head(), self.directory());
        let free = &head.free[bytes.trailing_zeros() as usize];
        let mut top = free.load(Ordering::Relaxed);
        loop {
            directory[index].next_free.store(top as u32, Ordering::Relaxed);
            let changed = ((top >> 32) + 1) << 32 | (index as u64 + 1);
            match free.compare_exchange_weak(top, changed, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    fn check_area(&self, offset: u64, bytes: u64) -> Result<(), TransportError> {
        let end = offset.checked_add(bytes);
        if offset < AREAS_FROM
            || bytes == 0
            || !offset.is_multiple_of(AREA_ALIGN as u64)
            || end.is_none_or(|end| end > self.bytes)
        {
            let why = format!("the shared directory is damaged: {bytes} bytes at {offset}");
            return Err(TransportError::Refused { why });
        }
        Ok(())
    }
}

/// Areas have whole pages of any kernel, a power of two of them.
fn rounded(bytes: usize) -> u64 {
    bytes.max(AREA_ALIGN).next_power_of_two() as u64
}

fn set_length(fd: &OwnedFd) -> Result<u64, TransportError> {
    // Growing past the process's limit would raise SIGXFSZ, so such lengths are not tried.
    let most = sys::file_bytes_max();
    let mut refused = std::io::Error::from_raw_os_error(libc::EFBIG);
    let file = opened(|| fd.try_clone())
        .map(std::fs::File::from)
        .map_err(|e| TransportError::from_io("dup", &e, "making the memory that ranks share"))?;
    for bytes in LENGTHS.into_iter().filter(|bytes| *bytes <= most) {
        match file.set_len(bytes).and_then(|()| sys::seal_length(fd)) {
            Ok(()) => return Ok(bytes),
            Err(error) => refused = error,
        }
    }
    let what = format!("making a sparse file of {} bytes in memory", LENGTHS[LENGTHS.len() - 1]);
    Err(TransportError::from_io("ftruncate", &refused, what))
}
