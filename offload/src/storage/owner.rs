//! Who writes to a file: one open file at a time, by the kernel's own locks.
//!
//! The kernel lets go of a lock when its holder has died, and not before the holder's last transfer
//! has ended: so nothing stale is ever left to be judged, and a new owner meets no write of the old
//! one.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::{Operation, StorageError};

/// How long what a dead process had under way may take to end.
const GRACE: Duration = Duration::from_secs(5);
/// The same of this process: a request lets go of its file a moment after its outcome is there.
const OWN_GRACE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// Own this file until it is closed or [`disown`]ed.
///
/// Errors: somebody else does, who lives.
pub(super) fn own(file: &File, path: &Path) -> Result<(), StorageError> {
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::Error(e)) => return unlockable(path, &e),
            Err(TryLockError::WouldBlock) => {}
        }
        let owner = owner(file);
        let patience = match owner {
            Some(owner) if owner == std::process::id() => OWN_GRACE,
            Some(owner) if Path::new(&format!("/proc/{owner}")).exists() => Duration::ZERO,
            // Dead; or of another machine or container, which cannot be told from that.
            _ => GRACE,
        };
        if start.elapsed() >= patience {
            return Err(StorageError::Owned { path: path.into(), owner });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Let others own it, even while the kernel still has it open for a ring that is going.
pub(super) fn disown(file: &File) {
    // Where there are no locks there is nothing to let go of.
    let _ = file.unlock();
}

/// Some file systems have no locks: then nobody is told of anybody.
fn unlockable(path: &Path, e: &io::Error) -> Result<(), StorageError> {
    match e.raw_os_error() {
        Some(libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL) => Ok(()),
        errno => Err(StorageError::Refused {
            operation: Operation::Open,
            path: path.into(),
            offset: 0,
            wanted_bytes: 0,
            got_bytes: 0,
            errno: errno.unwrap_or(libc::EIO),
        }),
    }
}

/// The process that holds the lock, where the system tells.
pub(super) fn owner(file: &File) -> Option<u32> {
    let found = file.metadata().ok()?;
    let (major, minor) = (libc::major(found.dev()), libc::minor(found.dev()));
    let list = std::fs::read_to_string("/proc/locks").ok()?;
    owner_in(&list, &format!("{major:02x}:{minor:02x}:{}", found.ino()))
}

/// The holder of the whole-file lock on this file: `1: FLOCK  ADVISORY  WRITE 77 fe:00:12 0 EOF`.
fn owner_in(list: &str, file: &str) -> Option<u32> {
    list.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let is_lock = words.next() == Some("FLOCK");
        let pid = words.nth(2)?;
        (is_lock && words.next() == Some(file)).then(|| pid.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_found_in_the_kernels_list() {
        let list = "1: POSIX  ADVISORY  WRITE 11 fe:00:12 0 EOF\n\
                    2: FLOCK  ADVISORY  WRITE 22 fe:00:12 0 EOF\n\
                    2: -> FLOCK  ADVISORY  WRITE 33 fe:00:13 0 EOF\n\
                    3: FLOCK\n";
        assert_eq!(owner_in(list, "fe:00:12"), Some(22));
        assert_eq!(owner_in(list, "fe:00:13"), None, "it only waits");
        assert_eq!(owner_in(list, "fe:00:1"), None);
    }
}
