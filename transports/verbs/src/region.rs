//! Memory that devices read and write, and its registration.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE, ibv_mr,
};
use crate::{ProtectionDomain, Result, VerbsError};

/// Whole pages of a fixed length, zeroed at first. A device may change them at any time, so they
/// are copied from and to, and only looked at where a protocol says that they are settled. A child
/// made by `fork` has none of them: where kernels before 5.9 let it share pages with its parent,
/// the parent's next write would be to other pages than the device's.
pub struct Memory {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain bytes; the protocol of their users orders accesses.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `bytes` of it, rounded up to whole pages, at least one.
    ///
    /// # Panics
    ///
    /// When there is no such memory to be had.
    pub fn zeroed(bytes: usize) -> Arc<Self> {
        let page = page_bytes();
        let bytes = bytes.max(1).next_multiple_of(page);
        let layout = Layout::from_size_align(bytes, page).expect("a length of memory");
        // SAFETY: the layout has a length.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        let base = base.unwrap_or_else(|| handle_alloc_error(layout));
        let memory = Self { base, layout };
        memory.advise(libc::MADV_DONTFORK);
        Arc::new(memory)
    }

    fn advise(&self, advice: c_int) {
        // SAFETY: whole pages of ours, whose bytes stay what they are. A kernel that does not know
        // the advice leaves them to children.
        let _taken = unsafe { libc::madvise(self.base.as_ptr().cast(), self.bytes(), advice) };
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        assert!(offset <= self.bytes() && bytes <= self.bytes() - offset, "outside of the memory");
        // SAFETY: `offset` is within the memory, as just asserted.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Copy `bytes` to `offset`.
    ///
    /// # Panics
    ///
    /// When they do not lie within.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let place = self.at(offset, bytes.len());
        // SAFETY: as long as `bytes`, which is no memory of ours: nobody has a slice of that kind
        // beyond `with`, whose user by its protocol writes elsewhere.
        unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copy from `offset` to `target`. What a device is writing there arrives in any state.
    ///
    /// # Panics
    ///
    /// When it does not lie within.
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        let place = self.at(offset, target.len());
        // SAFETY: as long as `target`, which does not overlap it.
        unsafe { place.copy_to_nonoverlapping(target.as_mut_ptr(), target.len()) }
    }

    /// Show `bytes` at `offset` to `sink`.
    ///
    /// # Panics
    ///
    /// When they do not lie within.
    ///
    /// # Safety
    ///
    /// No device and no thread writes there until `sink` returns: a completion has said that the
    /// bytes have arrived, and whoever wrote them has not been told yet that it may write again. A
    /// peer that breaks its word is one that has proved to belong to the job.
    pub unsafe fn with<T>(&self, offset: usize, bytes: usize, sink: impl FnOnce(&[u8]) -> T) -> T {
        let place = self.at(offset, bytes);
        // SAFETY: within the memory, initialised since the beginning, and settled, as promised.
        sink(unsafe { slice::from_raw_parts(place, bytes) })
    }

    /// A counter at `offset` that a device may add to.
    ///
    /// # Panics
    ///
    /// When it does not lie within, or not at a multiple of eight.
    pub fn counter(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8));
        let place: *mut u64 = self.at(offset, 8).cast();
        // SAFETY: within the memory, aligned, and only ever touched as an atomic or by a device.
        unsafe { AtomicU64::from_ptr(place) }.load(Ordering::Acquire)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Whoever gets the pages next may want them in children.
        self.advise(libc::MADV_DOFORK);
        // SAFETY: allocated with this layout; registrations hold the memory, so none is left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

fn page_bytes() -> usize {
    // SAFETY: the call takes a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

/// What a peer may do to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: only our own device reads and writes it.
    Local,
    /// Write into it.
    Write,
    /// Write, read, and add to counters.
    Everything,
}

impl Access {
    /// As verbs name it. Devices may always write, which only we can have them do: so the kernel
    /// gives the memory pages of its own where it shared them, and they stay what they are.
    pub(crate) fn flags(self) -> c_int {
        IBV_ACCESS_LOCAL_WRITE
            | match self {
                Access::Local => 0,
                Access::Write => IBV_ACCESS_REMOTE_WRITE,
                Access::Everything => {
                    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
                }
            }
    }
}

/// Whose memory a region is, and where.
enum Backing {
    /// Ours.
    Owned(Arc<Memory>),
    /// Somebody else's.
    Foreign { address: usize, bytes: usize },
    /// A device's, which no instruction of ours reaches; it is named by its offset.
    Dmabuf { offset: u64, bytes: usize },
}

/// Memory that a device knows. Known to no device any more once this is dropped.
pub struct MemoryRegion {
    raw: NonNull<ibv_mr>,
    backing: Backing,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs may be called from any thread; the keys do not change.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Register all of `memory` with the device of `domain`. Pins it.
    ///
    /// # Errors
    ///
    /// When the device refuses, mostly because too much memory is locked (`ulimit -l`).
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        memory: &Arc<Memory>,
        access: Access,
    ) -> Result<Self> {
        let (start, bytes) = (memory.base.as_ptr().cast(), memory.bytes());
        let raw = register(domain, start, bytes, access)?;
        let backing = Backing::Owned(Arc::clone(memory));
        Ok(Self { raw, backing, domain: Arc::clone(domain) })
    }

    /// Register `bytes` at `address`, which somebody else owns. Pins the pages that are there now:
    /// the device goes on seeing those, whatever the address comes to mean.
    ///
    /// # Errors
    ///
    /// When the device refuses: nothing writable is there, or too much memory is locked.
    ///
    /// # Safety
    ///
    /// While work requests that name the region are posted or not completed, the memory stays
    /// mapped. If peers may write there, or a request does, nobody else looks at it meanwhile. A
    /// region whose memory has gone is harmless otherwise.
    pub unsafe fn foreign(
        domain: &Arc<ProtectionDomain>,
        address: usize,
        bytes: usize,
        access: Access,
    ) -> Result<Self> {
        let start = std::ptr::with_exposed_provenance_mut(address);
        let raw = register(domain, start, bytes, access)?;
        let backing = Backing::Foreign { address, bytes };
        Ok(Self { raw, backing, domain: Arc::clone(domain) })
    }

    /// Register `bytes` at `offset` of a buffer of another device, which it has exported as `file`.
    /// There is no way to ask a device whether it can do that other than trying.
    ///
    /// # Errors
    ///
    /// When the library or the kernel is too old, or the device cannot.
    pub fn of_dmabuf(
        domain: &Arc<ProtectionDomain>,
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: Access,
    ) -> Result<Self> {
        let call = "ibv_reg_dmabuf_mr";
        let name = domain.device.name();
        let Some(reg_dmabuf_mr) = domain.device.library.reg_dmabuf_mr else {
            let what = "libibverbs is older than 34 and does not have it".into();
            return Err(VerbsError::Call { call, errno: libc::ENOSYS, what });
        };
        let (pd, flags) = (domain.raw.as_ptr(), access.flags());
        // SAFETY: a live domain and an open file, whose memory the registration holds by itself.
        // Its offset is what devices name, so no address of ours is.
        let raw = unsafe { reg_dmabuf_mr(pd, offset, bytes, offset, file.as_raw_fd(), flags) };
        let failed = || VerbsError::last(call, format!("memory of another device, at {name}"));
        let raw = NonNull::new(raw).ok_or_else(failed)?;
        let backing = Backing::Dmabuf { offset, bytes };
        Ok(Self { raw, backing, domain: Arc::clone(domain) })
    }

    /// The memory.
    ///
    /// # Panics
    ///
    /// When it is not ours.
    pub fn memory(&self) -> &Arc<Memory> {
        match &self.backing {
            Backing::Owned(memory) => memory,
            _ => panic!("only memory of ours can be looked at"),
        }
    }

    /// The address by which devices name its beginning.
    pub fn address(&self) -> u64 {
        match &self.backing {
            Backing::Owned(memory) => memory.base.as_ptr().addr() as u64,
            Backing::Foreign { address, .. } => *address as u64,
            Backing::Dmabuf { offset, .. } => *offset,
        }
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        match &self.backing {
            Backing::Owned(memory) => memory.bytes(),
            Backing::Foreign { bytes, .. } | Backing::Dmabuf { bytes, .. } => *bytes,
        }
    }

    /// Whether our own processor can read it, as it does for bytes that travel with a request.
    pub(crate) fn is_ours_to_read(&self) -> bool {
        !matches!(self.backing, Backing::Dmabuf { .. })
    }

    /// The address of `bytes` at `offset`, and the key for our own device.
    pub(crate) fn place(&self, offset: usize, bytes: usize) -> (u64, u32) {
        let length = self.bytes();
        assert!(offset <= length && bytes <= length - offset, "outside of the region");
        // SAFETY: registered until this is dropped.
        (self.address() + offset as u64, unsafe { self.raw.as_ref() }.lkey)
    }

    /// The key that a peer shows to reach it.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: registered until this is dropped.
        unsafe { self.raw.as_ref() }.rkey
    }
}

fn register(
    domain: &ProtectionDomain,
    start: *mut c_void,
    bytes: usize,
    access: Access,
) -> Result<NonNull<ibv_mr>> {
    let library = domain.device.library;
    // SAFETY: a live domain. The kernel checks that there is memory, and holds its pages.
    let raw = unsafe { (library.reg_mr)(domain.raw.as_ptr(), start, bytes, access.flags()) };
    NonNull::new(raw).ok_or_else(|| {
        let what = format!(
            "registering {bytes} bytes with {}; is `ulimit -l` large enough?",
            domain.device.name()
        );
        VerbsError::last("ibv_reg_mr", what)
    })
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered once and deregistered once. Devices do not touch it afterwards.
        let _gone = unsafe { (self.domain.device.library.dereg_mr)(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says of the pages around an address, by the names of `/proc/PID/smaps`.
    fn flags_at(address: usize) -> Vec<String> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut is_here, mut lines) = (false, smaps.lines());
        let found = lines.find_map(|line| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            if let Some((first, end)) = range
                && let Ok(first) = usize::from_str_radix(first, 16)
                && let Ok(end) = usize::from_str_radix(end, 16)
            {
                is_here = (first..end).contains(&address);
            }
            line.strip_prefix("VmFlags:").filter(|_| is_here)
        });
        found.expect("the address is mapped").split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn children_have_none_of_it() {
        for bytes in [1, 5000, 3 << 20] {
            let memory = Memory::zeroed(bytes);
            let (first, last) = (memory.at(0, 1).addr(), memory.at(bytes - 1, 1).addr());
            for address in [first, last] {
                assert!(flags_at(address).contains(&"dc".to_owned()), "{bytes} bytes");
            }
        }
    }
}
