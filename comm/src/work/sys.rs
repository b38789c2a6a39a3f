//! The system call that makes an event.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use brigade_transports::opened;

/// A counter behind a file descriptor, which can be read from once it is not zero.
pub(super) fn event() -> io::Result<File> {
    let fd = opened(|| {
        // SAFETY: the call takes no memory.
        match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(fd),
        }
    })?;
    // SAFETY: the descriptor was made by this call, and nobody else knows it.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
