//! Raw calls that the standard library does not offer: a set of descriptors to sleep at, and one to
//! be woken by.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// How many descriptors one `epoll_wait` reports; the rest stay in the kernel's list.
const EVENTS_AT_ONCE: usize = 16;

/// A set of descriptors, any of which can end a wait.
pub(super) struct Epoll(OwnedFd);

impl AsFd for Epoll {
    /// Readable when a change has been seen.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Epoll {
    /// An empty set.
    pub(super) fn new() -> io::Result<Epoll> {
        // SAFETY: takes no pointers; the result is checked before it is owned.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: `fd` was just made and belongs to nobody else.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// From now on, whatever can be read at `fd` ends a wait, once each time.
    pub(super) fn add(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let events = libc::EPOLLIN | libc::EPOLLET;
        let mut event = libc::epoll_event { events: events as u32, u64: 0 };
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: both descriptors are open and `event` outlives the call, which copies it.
        check(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event) })?;
        Ok(())
    }

    /// Wait until some descriptor changed or `timeout_ms` passed; how many changes were consumed.
    pub(super) fn wait(&self, timeout_ms: i32) -> io::Result<usize> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_AT_ONCE];
        let room = EVENTS_AT_ONCE as i32;
        // SAFETY: the kernel writes at most `room` events, and there is room for that many.
        let count =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), room, timeout_ms) };
        match check(count) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            other => other.map(|count| count as usize),
        }
    }

    /// Forget changes that happened before now.
    pub(super) fn drain(&self) -> io::Result<()> {
        while self.wait(0)? == EVENTS_AT_ONCE {}
        Ok(())
    }
}

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

fn check(code: libc::c_int) -> io::Result<libc::c_int> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}
