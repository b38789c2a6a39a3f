//! The wall to the system's calls on files: raw, each turned into a `Result`.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::wake::Wake;
use crate::memory::Window;

/// How often the system may put something off, or break it off, before that is its answer.
pub(super) const REPEATS_MAX: u32 = 10_000;

/// Read at `offset` into the window, perhaps less than all of it.
pub(super) fn read_at(descriptor: i32, window: Window, offset: u64) -> io::Result<usize> {
    let (to, bytes) = (window.pointer().cast(), window.bytes());
    // SAFETY: the maker of the window keeps its memory valid and to itself until this returns.
    let got = unsafe { libc::pread(descriptor, to, bytes, file_offset(offset)?) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}

/// Write from the window at `offset`, perhaps less than all of it.
pub(super) fn write_at(descriptor: i32, window: Window, offset: u64) -> io::Result<usize> {
    let (from, bytes) = (window.pointer().cast_const().cast(), window.bytes());
    // SAFETY: the maker of the window keeps its memory valid and unchanged until this returns.
    let put = unsafe { libc::pwrite(descriptor, from, bytes, file_offset(offset)?) };
    usize::try_from(put).map_err(|_| io::Error::last_os_error())
}

/// Make what was written survive, by descriptor.
pub(super) fn sync_data(descriptor: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    uninterrupted(|| check(unsafe { libc::fdatasync(descriptor) }))
}

/// Reserve the space from 0 to `bytes`, so that no write into it can find the device full.
pub(super) fn allocate(file: &fs::File, bytes: u64) -> io::Result<()> {
    let (descriptor, end) = (file.as_raw_fd(), file_offset(bytes)?);
    // SAFETY: no memory is involved.
    uninterrupted(|| check(unsafe { libc::fallocate(descriptor, 0, 0, end) }))
}

/// Bytes that this process could still put on the file's device.
pub(super) fn free_bytes(file: &fs::File) -> io::Result<u64> {
    // SAFETY: all fields of statvfs are plain numbers, for which zero is a value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is writable for as long as the call.
    check(unsafe { libc::fstatvfs(file.as_raw_fd(), &raw mut found) })?;
    // File systems without a size of their own count no blocks at all.
    let is_counted = found.f_blocks > 0;
    Ok(if is_counted { found.f_bavail.saturating_mul(found.f_frsize) } else { u64::MAX })
}

/// What direct transfers of this file need: multiples of bytes in the file and in memory. None when
/// the kernel says that there are none; zeros when it does not say.
pub(super) fn direct_grain(path: &Path) -> Option<(usize, usize)> {
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: all fields of statx are plain numbers, for which zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: `name` ends with a zero, and `found` is writable for as long as the call.
    let rc = unsafe {
        libc::statx(libc::AT_FDCWD, name.as_ptr(), 0, libc::STATX_DIOALIGN, &raw mut found)
    };
    if rc != 0 || found.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Some((0, 0));
    }
    let grain = (found.stx_dio_offset_align as usize, found.stx_dio_mem_align as usize);
    (grain.0 > 0).then_some(grain)
}

/// Where this process finds what it has open, by number.
pub(super) const OWN_FILES: &str = "/proc/self/fd";

/// A way to what this process has open by that number, whatever its name leads to.
pub(super) fn own_file(descriptor: i32) -> PathBuf {
    Path::new(OWN_FILES).join(descriptor.to_string())
}

/// Give a file a name that nothing has yet.
pub(super) fn link(file: &fs::File, path: &Path) -> io::Result<()> {
    let from = CString::new(format!("{OWN_FILES}/{}", file.as_raw_fd()))?;
    let to = CString::new(path.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both names end with a zero and outlive the call.
    check(unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) })
}

/// The file's bytes as memory.
pub(super) fn map_to_read(file: &fs::File) -> io::Result<memmap2::Mmap> {
    // SAFETY: the file must not change while it is mapped, which `Mapped` asks of its users.
    unsafe { memmap2::Mmap::map(file) }
}

/// The limit on locked memory, as one says it.
pub(super) fn memlock() -> String {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is writable for as long as the call.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    match (rc, limit.rlim_cur) {
        (0, libc::RLIM_INFINITY) => String::from("no limit on locked memory"),
        (0, bytes) => format!("limit on locked memory {} KiB", bytes >> 10),
        _ => String::from("limit on locked memory unknown"),
    }
}

/// A counter in the kernel that ends a wait on its descriptor.
#[derive(Debug)]
pub(super) struct Bell {
    counter: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        check(descriptor.min(0))?;
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self { counter: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    pub(super) fn descriptor(&self) -> i32 {
        self.counter.as_raw_fd()
    }

    /// Forget the rings so far.
    pub(super) fn quiet(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes of `count` are writable. That nobody rang is no error here.
        unsafe { libc::read(self.descriptor(), (&raw mut count).cast(), 8) };
    }
}

impl Wake for Bell {
    fn wake(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes of `one` are readable. The counter is full only when it rings.
        unsafe { libc::write(self.descriptor(), (&raw const one).cast(), 8) };
    }
}

fn file_offset(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

fn check(rc: i32) -> io::Result<()> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a call gives that a signal may break off, which says nothing of the file: it is made again,
/// but not for ever, as some file systems begin anew each time.
fn uninterrupted(mut call: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 1..REPEATS_MAX {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
    call()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_no_answer_but_is_not_asked_for_ever() {
        for (interruptions, is_done) in [(0, true), (3, true), (u32::MAX, false)] {
            let mut calls = 0;
            let result = uninterrupted(|| {
                calls += 1;
                match calls <= interruptions {
                    true => Err(io::Error::from_raw_os_error(libc::EINTR)),
                    false => Ok(()),
                }
            });
            assert_eq!(result.is_ok(), is_done, "{result:?}");
            assert_eq!(calls, interruptions.saturating_add(1).min(REPEATS_MAX));
        }
        let mut calls = 0;
        let refused = uninterrupted(|| {
            calls += 1;
            Err(io::Error::from_raw_os_error(libc::EIO))
        });
        assert_eq!((refused.unwrap_err().raw_os_error(), calls), (Some(libc::EIO), 1));
    }
}
