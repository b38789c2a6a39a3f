//! Raw calls that the standard library does not offer: something to be woken by.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::sys::check;

/// Something to wake a sleeper by. Each ring is seen by those who wait for changes.
pub(super) struct Gong(OwnedFd);

impl AsFd for Gong {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Gong {
    pub(super) fn new() -> io::Result<Gong> {
        // SAFETY: takes no pointers; the result is checked before it is owned.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: `fd` was just made and belongs to nobody else.
        Ok(Gong(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Wake whoever sleeps there. Can only fail after 2^64 rings that nobody heard.
    pub(super) fn ring(&self) {
        let one = 1_u64;
        // SAFETY: eight bytes of a number that lives through the call.
        let _rung = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}
