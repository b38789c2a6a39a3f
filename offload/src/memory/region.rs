//! The mapping under an arena, and the windows that transfers see. The wall to `mmap`.

use std::io;
use std::ptr::NonNull;

use super::sys;

/// Where buffers begin: a multiple of this, which every direct transfer accepts.
pub const ALIGNMENT: usize = 4096;

const HUGE: usize = 2 << 20;

/// The pages that memory lies on, from the best to the worst for transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pages {
    /// 4 KiB, scattered: transfers run at a half to a third of the device's speed.
    Small,
    /// 2 MiB as far as the kernel found them when the memory was first touched.
    Transparent,
    /// 2 MiB, set aside by the machine's owner (`vm.nr_hugepages`).
    Huge,
}

/// A private mapping that lives as long as this value, populated: all of it is there.
#[derive(Debug)]
pub(super) struct Region {
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    base: NonNull<u8>,
    bytes: usize,
    pages: Pages,
    /// Why the pages are no better, or how many of them are huge.
    note: String,
}

// SAFETY: the region is plain memory without an owner thread; who may touch which part of it is
// settled by the arena's books.
unsafe impl Send for Region {}
// SAFETY: as above; `Region` itself never reads or writes the memory.
unsafe impl Sync for Region {}

impl Region {
    /// Map `bytes`, on the best pages up to `best`. With reserved huge pages the length is rounded
    /// down to a multiple of 2 MiB.
    ///
    /// Errors: the kernel's, when there is not that much memory.
    pub(super) fn map(bytes: usize, best: Pages) -> io::Result<Self> {
        let mut note = String::new();
        if best == Pages::Huge && bytes >= HUGE {
            match Self::map_huge(bytes / HUGE * HUGE) {
                Ok(region) => return Ok(region),
                Err(e) if e.raw_os_error() == Some(libc::ENOMEM) => {
                    note = String::from("no huge pages are free in vm.nr_hugepages, so ");
                }
                Err(e) => note = format!("no reserved huge pages ({e}), so "),
            }
        }
        Self::map_plain(bytes, best >= Pages::Transparent && bytes >= HUGE, note)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn pages(&self) -> Pages {
        self.pages
    }

    pub(super) fn note(&self) -> &str {
        &self.note
    }

    fn map_huge(bytes: usize) -> io::Result<Self> {
        let base = map(bytes, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB)?;
        let note = String::from("reserved huge pages of 2 MiB");
        let pages = Pages::Huge;
        let mut region = Self { mapped: base, mapped_bytes: bytes, base, bytes, pages, note };
        region.come_near();
        // A limit of the control group shows only here; without this it would be a bus error later.
        populate(base, bytes)?;
        Ok(region)
    }

    fn map_plain(bytes: usize, wants_huge: bool, mut note: String) -> io::Result<Self> {
        // The margin is never touched, so it costs addresses only.
        let mapped_bytes = bytes + HUGE;
        let mapped = map(mapped_bytes, 0)?;
        let skip = mapped.as_ptr().align_offset(HUGE);
        // SAFETY: the mapping is HUGE bytes longer than asked for, and `skip` is less than HUGE.
        let base = unsafe { mapped.add(skip) };
        let (pages, empty) = (Pages::Small, String::new());
        let mut region = Self { mapped, mapped_bytes, base, bytes, pages, note: empty };
        let advice = if wants_huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        if let Err(e) = advise(base, bytes, advice)
            && wants_huge
        {
            note += &format!("no transparent huge pages ({e}), so ");
        }
        region.come_near();
        populate(base, bytes)?;
        let huge = if wants_huge { transparent_bytes(base, bytes) } else { 0 };
        let percent = (huge as f64 / bytes as f64 * 100.0).round();
        if huge * 2 >= bytes {
            region.pages = Pages::Transparent;
            note += &format!("transparent huge pages are under {percent} % of it");
        } else {
            note += &format!("pages of 4 KiB, {percent} % of it on huge ones");
        }
        region.note.insert_str(0, &note);
        Ok(region)
    }

    /// Where memory is at several nodes, take it from the one of this thread: said before the first
    /// page is touched. Where it is not so, the note says why.
    fn come_near(&mut self) {
        let nodes = sys::nodes();
        if nodes < 2 {
            return;
        }
        let near = sys::node_here().and_then(|node| {
            sys::prefer(self.base, self.bytes, node)?;
            Ok(node)
        });
        self.note += &match near {
            Ok(node) => format!(", near node {node} of {nodes}"),
            Err(e) => format!(", wherever the kernel finds it ({e})"),
        };
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nothing refers to it any more: buffers and
        // engines hold the arena that holds this region.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

/// Memory that a transfer reads or writes: part of a buffer, without its lifetime.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: who makes a window promises that its memory stays and that nobody else touches it, on
// whatever thread the transfer runs.
unsafe impl Send for Window {}

impl Window {
    /// A window on `bytes` from `start`.
    ///
    /// # Safety
    /// The memory must stay valid, and nobody may touch it, until every transfer that was given
    /// this window or a part of it has completed.
    pub(crate) unsafe fn new(start: *mut u8, bytes: usize) -> Self {
        Self { start, bytes }
    }

    pub(crate) fn pointer(self) -> *mut u8 {
        self.start
    }

    pub(crate) fn bytes(self) -> usize {
        self.bytes
    }

    /// The part of `bytes` bytes from `start` on.
    ///
    /// Panics: when that is not within the window.
    pub(crate) fn part(self, start: usize, bytes: usize) -> Self {
        assert!(start.checked_add(bytes).is_some_and(|end| end <= self.bytes));
        Self { start: self.start.wrapping_add(start), bytes }
    }

    /// Run a transfer that copies, from or into the window's memory.
    pub(crate) fn with<T>(self, transfer: impl FnOnce(&mut [u8]) -> T) -> T {
        // SAFETY: the maker of the window promised that the memory is valid and untouched by
        // others until the transfer, which is this one, has completed.
        transfer(unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) })
    }
}

fn map(bytes: usize, flags: i32) -> io::Result<NonNull<u8>> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new private mapping without a wished address touches nothing that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start.cast());
    let start = start.ok_or_else(|| io::Error::other("mapped at address zero"))?;
    // Memory that is registered for transfers is copied at a fork, all of it and at once, for a
    // child that mostly needs none of it. Should the kernel decline, it is; no more than that.
    let _ = advise(start, bytes, libc::MADV_DONTFORK);
    Ok(start)
}

fn advise(start: NonNull<u8>, bytes: usize, advice: i32) -> io::Result<()> {
    // SAFETY: the range lies within a mapping of ours, and no advice given here drops contents that
    // this process has.
    match unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Touch every page, so that a shortage shows now and the memory lies near the calling thread.
fn populate(start: NonNull<u8>, bytes: usize) -> io::Result<()> {
    match advise(start, bytes, libc::MADV_POPULATE_WRITE) {
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
            for page in (0..bytes).step_by(ALIGNMENT) {
                // SAFETY: within the mapping, which nobody else knows yet.
                unsafe { start.add(page).write_volatile(0) };
            }
            Ok(())
        }
        other => other,
    }
}

/// How much of the range lies on transparent huge pages, as the kernel's list of mappings says.
fn transparent_bytes(start: NonNull<u8>, bytes: usize) -> usize {
    let first = start.as_ptr().addr();
    let Ok(list) = std::fs::read_to_string("/proc/self/smaps") else { return 0 };
    let (mut inside, mut huge) = (false, 0);
    for line in list.lines() {
        let mut words = line.split_whitespace();
        let Some(head) = words.next() else { continue };
        if let Some((from, to)) = head.split_once('-') {
            let hex = |text| usize::from_str_radix(text, 16).ok();
            if let (Some(from), Some(to)) = (hex(from), hex(to)) {
                inside = from < first + bytes && first < to;
            }
        } else if inside && head == "AnonHugePages:" {
            huge += words.next().and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) << 10;
        }
    }
    huge.min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_begin_on_a_huge_page_and_say_what_they_lie_on() {
        for best in [Pages::Small, Pages::Transparent, Pages::Huge] {
            let region = Region::map(6 << 20, best).unwrap();
            assert_eq!(region.base().as_ptr().addr() % HUGE, 0);
            assert_eq!(region.bytes(), 6 << 20);
            assert!(region.pages() <= best, "{region:?}");
            assert!(!region.note().is_empty());
        }
    }

    #[test]
    fn a_fork_does_not_copy_it() {
        for best in [Pages::Small, Pages::Huge] {
            let region = Region::map(4 << 20, best).unwrap();
            let list = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let address = region.base().as_ptr().addr();
            let has = |line: &str| {
                let (from, to) = line.split_whitespace().next()?.split_once('-')?;
                let hex = |text| usize::from_str_radix(text, 16).ok();
                Some((hex(from)?..hex(to)?).contains(&address))
            };
            let mut lines = list.lines().skip_while(|line| has(line) != Some(true));
            let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap();
            assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
        }
    }

    #[test]
    fn more_than_there_is_cannot_be_mapped() {
        assert!(Region::map(1 << 52, Pages::Huge).is_err());
    }
}
