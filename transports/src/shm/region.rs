//! The memory that ranks of a host share: one sparse file, a directory, and an area per group.
//!
//! ```text
//! 0        magic | length
//! 64       next: where the unused rest begins
//! 4 KiB    directory: key -> offset, bytes, ready       (64 bytes an entry)
//! ...      areas, page-aligned, given out once, given back to the kernel by the last to leave
//! ```
//!
//! Whoever comes first for a key reserves the area; the others find it. Nobody sends a message, so
//! a second communicator costs one look-up and one `mmap`. A value read from here was written by a
//! process that proved the secret, but it is checked like any other: a wrong one is an error.

use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::sys::{self, Mapping, PAGE_BYTES};
use crate::TransportError;

const MAGIC: u64 = u64::from_le_bytes(*b"BRGSHM01");
const ENTRIES: usize = 1 << 16;
const AREAS_FROM: u64 = (PAGE_BYTES + ENTRIES * size_of::<Entry>()) as u64;
/// Lengths to try for the file. It is sparse: length costs nothing, but some systems bound it.
const LENGTHS: [u64; 3] = [1 << 40, 1 << 36, 1 << 32];
/// Areas are rounded up to a power of two, so that what one group leaves another can take.
const CLASSES: usize = 64;

/// The head of the file.
#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    bytes: AtomicU64,
    next: Line<AtomicU64>,
    /// For each power of two, the entries whose areas were given back: a count of changes in the
    /// upper half, an entry's number plus one in the lower.
    free: [AtomicU64; CLASSES],
}

/// What the directory knows of one area.
#[repr(C, align(64))]
struct Entry {
    key: AtomicU64,
    offset: AtomicU64,
    bytes: AtomicU64,
    state: AtomicU32,
    /// The next entry of the free list, plus one.
    next_free: AtomicU32,
}

const RESERVING: u32 = 0;
const READY: u32 = 1;
const LEFT: u32 = 2;
const FULL: u32 = 3;

/// A value with a cache line of its own.
#[repr(C, align(64))]
pub(super) struct Line<T>(pub(super) T);

/// What may be looked at through a [`Shared`]: atomics, and plain bytes behind a protocol.
///
/// # Safety
/// Every pattern of bits is a valid value, and all of it may change behind a shared reference.
pub(super) unsafe trait Plain {}
// SAFETY: an atomic word has no invalid pattern.
unsafe impl Plain for AtomicU32 {}
// SAFETY: as above.
unsafe impl Plain for AtomicU64 {}
// SAFETY: a line is its content and padding.
unsafe impl<T: Plain> Plain for Line<T> {}
// SAFETY: only atomics.
unsafe impl Plain for Head {}
// SAFETY: only atomics.
unsafe impl Plain for Entry {}
// SAFETY: an array of such values.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// The file that some ranks of a host share.
pub(super) struct Region {
    fd: OwnedFd,
    head: Arc<Mapping>,
    bytes: u64,
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

    /// The area that all who ask with this key get, as the one in `seat` of `members`: at least
    /// `bytes` long, zeroed for the first. It is given back when all have dropped theirs.
    pub(super) fn area(
        self: &Arc<Self>,
        key: u64,
        bytes: usize,
        (seat, members): (u32, u32),
        deadline: Instant,
    ) -> Result<Area, TransportError> {
        assert!(seat < members && bytes >= area_head_bytes(members));
        let bytes = bytes.next_multiple_of(PAGE_BYTES).next_power_of_two();
        let index = self.find(key, bytes as u64, deadline)?;
        let entry = &self.directory()[index];
        let offset = entry.offset.load(Ordering::Relaxed);
        let found = entry.bytes.load(Ordering::Relaxed);
        self.check_area(offset, found)?;
        if found != bytes as u64 {
            let why = format!(
                "members lay out a group's memory differently ({found} and {bytes} bytes): \
                 do all use the same version and settings?"
            );
            return Err(TransportError::Refused { why });
        }
        let map = Mapping::new(&self.fd, offset, bytes).map_err(|e| {
            TransportError::from_io("mmap", &e, format!("mapping {bytes} bytes of an area"))
        })?;
        Ok(Area { region: self.clone(), map: Arc::new(map), index, seat, members })
    }

    fn map(fd: OwnedFd, bytes: u64) -> Result<Self, TransportError> {
        let head = Mapping::new(&fd, 0, AREAS_FROM as usize)
            .map_err(|e| TransportError::from_io("mmap", &e, "mapping a region's directory"))?;
        Ok(Self { fd, head: Arc::new(head), bytes })
    }

    fn head(&self) -> Shared<Head> {
        Shared::new(&self.head, 0)
    }

    fn directory(&self) -> Shared<[Entry; ENTRIES]> {
        Shared::new(&self.head, PAGE_BYTES)
    }

    /// The entry of `key`, made by us or by whoever came first.
    fn find(&self, key: u64, bytes: u64, deadline: Instant) -> Result<usize, TransportError> {
        assert_ne!(key, 0);
        let directory = self.directory();
        for probe in 0..ENTRIES {
            let index = (key as usize).wrapping_add(probe) % ENTRIES;
            let entry = &directory[index];
            match entry.key.compare_exchange(0, key, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return self.reserve(entry, bytes).map(|()| index),
                Err(found) if found == key => return await_ready(entry, deadline).map(|()| index),
                Err(_) => continue,
            }
        }
        let why = format!("{ENTRIES} communicators have been made in one world; no more fit");
        Err(TransportError::Refused { why })
    }

    /// Fill in an entry that is ours to fill: from the free list, else from the unused rest.
    fn reserve(&self, entry: &Entry, bytes: u64) -> Result<(), TransportError> {
        let offset = self.recycled(bytes).or_else(|| {
            let next = &self.head().next.0;
            let rest = |next: u64| next.checked_add(bytes).filter(|end| *end <= self.bytes);
            next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).ok()
        });
        let Some(offset) = offset else {
            entry.state.store(FULL, Ordering::Release);
            return Err(full());
        };
        entry.offset.store(offset, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry.state.store(READY, Ordering::Release);
        Ok(())
    }

    /// Take an area of exactly `bytes` off the free list.
    fn recycled(&self, bytes: u64) -> Option<u64> {
        let (head, directory) = (self.head(), self.directory());
        let free = &head.free[bytes.trailing_zeros() as usize];
        let mut top = free.load(Ordering::Acquire);
        loop {
            let entry = directory.get((top as u32).checked_sub(1)? as usize)?;
            let offset = entry.offset.load(Ordering::Relaxed);
            let next = u64::from(entry.next_free.load(Ordering::Relaxed));
            let changed = ((top >> 32) + 1) << 32 | next;
            match free.compare_exchange_weak(top, changed, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(offset).filter(|o| self.check_area(*o, bytes).is_ok()),
                Err(now) => top = now,
            }
        }
    }

    /// Give the memory of entry `index` back to the kernel, and its place to whoever needs one.
    fn give_back(&self, index: usize) {
        let entry = &self.directory()[index];
        let (offset, bytes) =
            (entry.offset.load(Ordering::Relaxed), entry.bytes.load(Ordering::Relaxed));
        entry.state.store(LEFT, Ordering::Release);
        // A hole that cannot be punched leaves its memory to be freed with the region; an area
        // that is not zeroed must not be given out again.
        if self.check_area(offset, bytes).is_ok()
            && sys::punch_hole(&self.fd, offset, bytes).is_ok()
        {
            self.recycle(index, bytes);
        }
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
            || !offset.is_multiple_of(PAGE_BYTES as u64)
            || end.is_none_or(|end| end > self.bytes)
        {
            let why = format!("the shared directory is damaged: {bytes} bytes at {offset}");
            return Err(TransportError::Refused { why });
        }
        Ok(())
    }
}

fn full() -> TransportError {
    TransportError::Refused { why: "the host's shared region has no room for this group".into() }
}

fn set_length(fd: &OwnedFd) -> Result<u64, TransportError> {
    // Growing past the process's limit would raise SIGXFSZ, so such lengths are not tried.
    let most = sys::file_bytes_max();
    let mut refused = std::io::Error::from_raw_os_error(libc::EFBIG);
    let file = fd
        .try_clone()
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

/// Wait for whoever reserves the area of `entry`. It takes microseconds, unless that rank died.
fn await_ready(entry: &Entry, deadline: Instant) -> Result<(), TransportError> {
    let start = Instant::now();
    for turn in 0_u32.. {
        match entry.state.load(Ordering::Acquire) {
            READY => return Ok(()),
            RESERVING => {}
            LEFT => {
                let why = "this communicator number was used before in this world".into();
                return Err(TransportError::Refused { why });
            }
            _ => return Err(full()),
        }
        if Instant::now() >= deadline {
            break;
        }
        match turn {
            0..100 => std::hint::spin_loop(),
            100..1000 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    Err(TransportError::Timeout {
        what: "the first member's reservation of a group's memory".into(),
        waited_ms: start.elapsed().as_millis() as u64,
    })
}

/// One group's memory, as one member sees it. Dropping it leaves the group; the last to leave
/// gives the memory back.
pub(super) struct Area {
    region: Arc<Region>,
    map: Arc<Mapping>,
    index: usize,
    seat: u32,
    members: u32,
}

/// What the head of an area takes: how many have left, then a line for each that says whether it
/// has.
pub(super) const fn area_head_bytes(members: u32) -> usize {
    (1 + members as usize) * size_of::<Line<AtomicU32>>()
}

impl Area {
    /// A value at `offset` of the area.
    ///
    /// # Panics
    /// When the value does not lie, aligned, within the area.
    pub(super) fn shared<T: Plain>(&self, offset: usize) -> Shared<T> {
        Shared::new(&self.map, offset)
    }

    /// Plain bytes of the area.
    ///
    /// # Panics
    /// When they do not lie within the area.
    pub(super) fn bytes(&self, offset: usize, bytes: usize) -> Bytes {
        Bytes::new(&self.map, offset, bytes)
    }

    /// Take zeroed memory for a window, which lives until the last member leaves.
    pub(super) fn expose(self: &Arc<Self>, bytes: usize) -> Result<Arc<Stretch>, TransportError> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES).next_power_of_two();
        let mut key = [0; 8];
        getrandom::fill(&mut key).map_err(|e| TransportError::Refused {
            why: format!("the system gives no random bytes: {e}"),
        })?;
        let index =
            self.region.find(u64::from_le_bytes(key).max(1), bytes as u64, Instant::now())?;
        let entry = &self.region.directory()[index];
        let windows = self.windows();
        let chain = |next| {
            entry.next_free.store(next, Ordering::Relaxed);
            Some(index as u32 + 1)
        };
        let chained = windows.fetch_update(Ordering::AcqRel, Ordering::Relaxed, chain);
        assert!(chained.is_ok(), "the update always has a next value");
        self.import(entry.offset.load(Ordering::Relaxed), bytes)
    }

    /// Map memory that another member has taken for a window.
    pub(super) fn import(
        self: &Arc<Self>,
        offset: u64,
        bytes: usize,
    ) -> Result<Arc<Stretch>, TransportError> {
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        self.region.check_area(offset, bytes as u64)?;
        let map = Mapping::new(&self.region.fd, offset, bytes).map_err(|e| {
            TransportError::from_io("mmap", &e, format!("mapping {bytes} bytes of a window"))
        })?;
        Ok(Arc::new(Stretch { map: Arc::new(map), offset, _area: self.clone() }))
    }

    /// The window entries of this group: the first one's number plus one.
    fn windows(&self) -> Shared<AtomicU32> {
        self.shared(size_of::<AtomicU32>())
    }

    /// Whether the member in `seat` has left in good order.
    pub(super) fn has_left(&self, seat: u32) -> bool {
        self.mark(seat).0.load(Ordering::Acquire) != 0
    }

    fn mark(&self, seat: u32) -> Shared<Line<AtomicU32>> {
        assert!(seat < self.members);
        self.shared(area_head_bytes(seat))
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        self.mark(self.seat).0.store(1, Ordering::Release);
        let count: Shared<AtomicU32> = self.shared(0);
        let left = count.fetch_add(1, Ordering::AcqRel) + 1;
        if left != self.members {
            return;
        }
        let mut window = self.windows().load(Ordering::Acquire);
        let directory = self.region.directory();
        for _ in 0..ENTRIES {
            let Some(index) = window.checked_sub(1) else { break };
            let Some(entry) = directory.get(index as usize) else { break };
            window = entry.next_free.load(Ordering::Relaxed);
            self.region.give_back(index as usize);
        }
        self.region.give_back(self.index);
    }
}

/// Memory of a window.
pub(super) struct Stretch {
    map: Arc<Mapping>,
    offset: u64,
    /// Keeps us a member while the window is in use, and so the window in place.
    _area: Arc<Area>,
}

impl Stretch {
    /// Where in the region it lies.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// A value at `offset`; as [`Area::shared`].
    pub(super) fn shared<T: Plain>(&self, offset: usize) -> Shared<T> {
        Shared::new(&self.map, offset)
    }

    /// Plain bytes; as [`Area::bytes`].
    pub(super) fn bytes(&self, offset: usize, bytes: usize) -> Bytes {
        Bytes::new(&self.map, offset, bytes)
    }
}

/// A value in shared memory, kept mapped as long as this lives.
pub(super) struct Shared<T> {
    place: NonNull<T>,
    _map: Arc<Mapping>,
    _type: PhantomData<T>,
}

// SAFETY: what lies there is `Plain`: shared by its nature, between processes even.
unsafe impl<T: Plain> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Shared<T> {}

impl<T: Plain> Shared<T> {
    fn new(map: &Arc<Mapping>, offset: usize) -> Self {
        let end = offset.checked_add(size_of::<T>());
        assert!(
            end.is_some_and(|end| end <= map.bytes()) && offset.is_multiple_of(align_of::<T>())
        );
        // SAFETY: `offset` is within the mapping, as just asserted; mappings are page-aligned.
        let place = unsafe { map.base().add(offset) }.cast();
        Self { place, _map: map.clone(), _type: PhantomData }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { place: self.place, _map: self._map.clone(), _type: PhantomData }
    }
}

impl<T: Plain> Deref for Shared<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the place is mapped while `_map` lives, aligned, and any bits there are a `T`
        // whose parts may change behind this reference.
        unsafe { self.place.as_ref() }
    }
}

/// Plain bytes in shared memory, kept mapped as long as this lives. Whoever touches them follows
/// the ring's or the window's protocol.
pub(super) struct Bytes {
    base: NonNull<u8>,
    bytes: usize,
    _map: Arc<Mapping>,
}

// SAFETY: the bytes belong to nobody in particular; the protocol of their users orders accesses.
unsafe impl Send for Bytes {}

impl Bytes {
    fn new(map: &Arc<Mapping>, offset: usize, bytes: usize) -> Self {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= map.bytes()));
        // SAFETY: `offset` is within the mapping, as just asserted.
        let base = unsafe { map.base().add(offset) };
        Self { base, bytes, _map: map.clone() }
    }

    /// The address of the byte at `offset`, from which `bytes` may be touched.
    ///
    /// # Panics
    /// When they do not lie within.
    #[inline]
    pub(super) fn at(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset);
        // SAFETY: `offset` is within the bytes, as just asserted.
        unsafe { self.base.add(offset) }
    }

    /// Copy `bytes` to `offset`. By the protocol, nobody else touches that place now.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        let place = self.at(offset, bytes.len());
        // SAFETY: the place is mapped and as long as `bytes`, and no memory of ours overlaps it.
        unsafe { place.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copy from `offset` to `target`. What somebody is writing there arrives in any state.
    pub(super) fn read(&self, offset: usize, target: &mut [u8]) {
        let place = self.at(offset, target.len());
        // SAFETY: the place is mapped and as long as `target`, which does not overlap it.
        unsafe { place.as_ptr().copy_to_nonoverlapping(target.as_mut_ptr(), target.len()) }
    }
}
