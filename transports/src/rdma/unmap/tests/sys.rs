//! Memory that tests map and unmap by hand, and children.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::sys::check;

/// A mapping of its own, unmapped when it is dropped.
pub(in crate::rdma) struct Mapped {
    pub(in crate::rdma) start: usize,
    pub(in crate::rdma) bytes: usize,
}

/// What to do with a part of it.
#[derive(Clone, Copy, Debug)]
pub(in crate::rdma) enum Deed {
    Unmap,
    Empty,
    Free,
    MapOver,
}

fn map(at: usize, bytes: usize, more: libc::c_int, fd: i32) -> usize {
    let (access, own) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS);
    let kind = more | if fd < 0 { own } else { 0 };
    let at = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: new memory, or over such that its owner is done with.
    let start = unsafe { libc::mmap(at, bytes, access, kind, fd, 0) };
    assert!(start != libc::MAP_FAILED, "{}", io::Error::last_os_error());
    start.expose_provenance()
}

impl Mapped {
    pub(in crate::rdma) fn new(bytes: usize) -> Mapped {
        Mapped { start: map(0, bytes, libc::MAP_PRIVATE, -1), bytes }
    }

    pub(in crate::rdma) fn shared(bytes: usize) -> Mapped {
        Mapped { start: map(0, bytes, libc::MAP_SHARED, -1), bytes }
    }

    pub(in crate::rdma) fn of_file(file: &std::fs::File, bytes: usize) -> Mapped {
        Mapped { start: map(0, bytes, libc::MAP_PRIVATE, file.as_raw_fd()), bytes }
    }

    pub(in crate::rdma) fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start + self.bytes
    }

    /// Nothing else is at it, as long as there is one.
    pub(in crate::rdma) fn fill(&mut self, value: u8) {
        let start: *mut u8 = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: mapped and writable for this long, and nobody has a reference into it.
        unsafe { start.write_bytes(value, self.bytes) };
    }

    pub(in crate::rdma) fn act(&self, offset: usize, bytes: usize, deed: Deed) {
        assert!(offset + bytes <= self.bytes);
        let at = std::ptr::with_exposed_provenance_mut(self.start + offset);
        // SAFETY: within the mapping, into which nobody has a reference.
        let code = unsafe {
            match deed {
                Deed::Unmap => libc::munmap(at, bytes),
                Deed::Empty => libc::madvise(at, bytes, libc::MADV_DONTNEED),
                Deed::Free => libc::madvise(at, bytes, libc::MADV_FREE),
                Deed::MapOver => {
                    map(at.addr(), bytes, libc::MAP_PRIVATE | libc::MAP_FIXED, -1);
                    0
                }
            }
        };
        check(code).expect("memory of our own");
    }

    /// Make it longer or shorter, where it is or elsewhere; whether it is all of one kind, without
    /// which older kernels cannot.
    pub(in crate::rdma) fn resize(&mut self, bytes: usize, to: Option<usize>) -> bool {
        let at = std::ptr::with_exposed_provenance_mut(self.start);
        let flags = libc::MREMAP_MAYMOVE | to.map_or(0, |_| libc::MREMAP_FIXED);
        let to: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(to.unwrap_or(0));
        // SAFETY: the whole mapping, into which nobody has a reference; `to` is such another.
        let start = unsafe { libc::mremap(at, self.bytes, bytes, flags, to) };
        if start == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{error}");
            return false;
        }
        (self.start, self.bytes) = (start.expose_provenance(), bytes);
        true
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.act(0, self.bytes, Deed::Unmap);
        }
    }
}

/// A child of this process that empties a mapping and then sleeps. Killed when it is dropped.
pub(in crate::rdma) struct Child(libc::pid_t, OwnedFd);

impl Child {
    pub(in crate::rdma) fn that_unmaps(mapped: &Mapped) -> Child {
        let mut ends = [0; 2];
        let at = std::ptr::with_exposed_provenance_mut(mapped.start);
        // SAFETY: the child makes system calls only, and never returns from here.
        unsafe {
            check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC)).expect("a pipe");
            let pid = check(libc::fork()).expect("a child");
            if pid == 0 {
                libc::madvise(at, mapped.bytes, libc::MADV_DONTNEED);
                libc::munmap(at, mapped.bytes);
                libc::write(ends[1], ends.as_ptr().cast(), 1);
                libc::sleep(60);
                libc::_exit(0);
            }
            libc::close(ends[1]);
            Child(pid, OwnedFd::from_raw_fd(ends[0]))
        }
    }

    /// Whether it has unmapped within so many milliseconds.
    pub(in crate::rdma) fn is_done_within(&self, limit_ms: i32) -> bool {
        let (fd, events) = (self.1.as_raw_fd(), libc::POLLIN);
        let mut entry = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: one entry, which lives through the call.
        check(unsafe { libc::poll(&raw mut entry, 1, limit_ms) }).expect("poll") == 1
            && entry.revents & libc::POLLIN != 0
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child of ours that nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}
