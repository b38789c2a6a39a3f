//! Raw calls that the standard library does not offer: the kernel's word when memory of this
//! process goes away.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::forks::OursAlone;
use crate::sys::check;

/// A page of memory, in bytes: what registrations are counted in.
pub(in crate::rdma) fn page_bytes() -> usize {
    // SAFETY: takes no pointers.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("pages have a length")
}

/// Let no signal handler run on this thread.
pub(in crate::rdma) fn refuse_signals() {
    // SAFETY: zeroes are a value of the set, which is filled, and then read during the call.
    let _changed = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut())
    };
}

/// Wait until there is something to read at either. Returns whether there is at the second one.
pub(in crate::rdma) fn wait_for_either(
    one: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
) -> io::Result<bool> {
    let entry =
        |fd: BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut both = [entry(one), entry(other)];
    // SAFETY: two entries, which live through the call.
    check(unsafe { libc::poll(both.as_mut_ptr(), 2, -1) })?;
    Ok(both[1].revents != 0)
}

// From `linux/userfaultfd.h`.
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_API: u64 = 0xAA;
const UFFD_FEATURE_EVENT_REMAP: u64 = 1 << 2;
const UFFD_FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const UFFD_FEATURE_EVENT_UNMAP: u64 = 1 << 6;
const UFFDIO_REGISTER_MODE_WP: u64 = 1 << 1;
const UFFDIO_WRITEPROTECT_MODE_DONTWAKE: u64 = 1 << 1;
const UFFD_EVENT_REMAP: u8 = 0x14;
const UFFD_EVENT_REMOVE: u8 = 0x15;
const UFFD_EVENT_UNMAP: u8 = 0x16;
/// `_IOWR(0xAA, 0x3F, struct uffdio_api)`, whose words are: version, features, calls.
const UFFDIO_API: u32 = request(3, 0x3F, 3);
/// `_IOWR(0xAA, 0x00, struct uffdio_register)`: start, length, mode, calls.
const UFFDIO_REGISTER: u32 = request(3, 0x00, 4);
/// `_IOR(0xAA, 0x01, struct uffdio_range)`: start, length.
const UFFDIO_UNREGISTER: u32 = request(2, 0x01, 2);
/// `_IOWR(0xAA, 0x06, struct uffdio_writeprotect)`: start, length, mode.
const UFFDIO_WRITEPROTECT: u32 = request(3, 0x06, 3);

/// The number of a call that is given so many eight-byte words, as `asm-generic/ioctl.h` has it.
const fn request(direction: u32, number: u32, words: u32) -> u32 {
    direction << 30 | (words * 8) << 16 | 0xAA << 8 | number
}

/// A change of the address space, as the kernel tells it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    words: [u64; 3],
}
const _: () = assert!(size_of::<Message>() == 32);

/// What happened to addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rdma) enum Change {
    /// There is nothing any more, or something else.
    Unmapped { start: usize, end: usize },
    /// What was there is thrown away.
    Emptied { start: usize, end: usize },
    /// What was there is elsewhere.
    Moved { start: usize, to: usize, bytes: usize },
}

/// How many messages are read at a time.
const MESSAGES: usize = 16;

/// A descriptor at which the kernel tells what becomes of watched memory of this process
/// (userfaultfd). Whoever changes such memory waits until that has been read.
pub(in crate::rdma) struct Userfault {
    fd: OursAlone<OwnedFd>,
    /// A watched page of its own, at which it asks.
    page: usize,
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Userfault {
    /// A new one, that never blocks. Errors: the kernel cannot, or does not let us.
    pub(in crate::rdma) fn new() -> io::Result<Userfault> {
        // Pages are never protected, so there are no faults, of the kernel's either; those who may
        // only see their own program's need no privilege.
        let open = |mode: libc::c_int| {
            let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | mode;
            // SAFETY: takes no pointers.
            check(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as libc::c_int)
        };
        let fd = match open(UFFD_USER_MODE_ONLY) {
            // Before Linux 5.11.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0)?,
            other => other?,
        };
        // SAFETY: `fd` was just made and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // A child could read what we must see.
        let fd = OursAlone::new(fd);
        let features =
            UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP;
        call(&fd, UFFDIO_API, &mut [UFFD_API, features, 0])?;
        let (bytes, kind) = (page_bytes(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, wherever there is room.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let userfault = Userfault { fd, page: page.expose_provenance() };
        userfault.watch(userfault.page, bytes)?;
        Ok(userfault)
    }

    /// Tell what becomes of whole pages from now on. Errors: they are of a kind that cannot be
    /// watched, or somebody else watches them.
    pub(in crate::rdma) fn watch(&self, start: usize, bytes: usize) -> io::Result<()> {
        let words = &mut [start as u64, bytes as u64, UFFDIO_REGISTER_MODE_WP, 0];
        call(&self.fd, UFFDIO_REGISTER, words)
    }

    /// Do not tell any more.
    pub(in crate::rdma) fn unwatch(&self, start: usize, bytes: usize) -> io::Result<()> {
        call(&self.fd, UFFDIO_UNREGISTER, &mut [start as u64, bytes as u64])
    }

    /// Whether somebody is changing watched memory and that has not been read yet.
    ///
    /// The kernel refuses to unprotect pages meanwhile, ours, which is not protected, among them.
    pub(in crate::rdma) fn is_changing(&self) -> bool {
        let (start, bytes) = (self.page as u64, page_bytes() as u64);
        let words = &mut [start, bytes, UFFDIO_WRITEPROTECT_MODE_DONTWAKE];
        let answer = call(&self.fd, UFFDIO_WRITEPROTECT, words);
        answer.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    }

    /// Hand what there is to read to `sink`. Allocates and frees nothing.
    pub(in crate::rdma) fn read(&self, mut sink: impl FnMut(Change)) {
        let mut messages = [Message { event: 0, reserved: [0; 7], words: [0; 3] }; MESSAGES];
        loop {
            let room = size_of_val(&messages);
            // SAFETY: room for so many bytes, of which any are a value.
            let count =
                unsafe { libc::read(self.fd.as_raw_fd(), messages.as_mut_ptr().cast(), room) };
            let count = usize::try_from(count).unwrap_or(0) / size_of::<Message>();
            for Message { event, words, .. } in &messages[..count] {
                let [start, end, bytes] = words.map(|word| word as usize);
                match *event {
                    UFFD_EVENT_UNMAP => sink(Change::Unmapped { start, end }),
                    UFFD_EVENT_REMOVE => sink(Change::Emptied { start, end }),
                    UFFD_EVENT_REMAP => sink(Change::Moved { start, to: end, bytes }),
                    _ => {}
                }
            }
            if count < MESSAGES {
                return;
            }
        }
    }
}

impl Drop for Userfault {
    fn drop(&mut self) {
        let bytes = page_bytes();
        // Nobody reads any more, so to unmap a watched page would be to wait for ever.
        if self.unwatch(self.page, bytes).is_ok() {
            // SAFETY: mapped once and unmapped once; nobody has a reference into it.
            unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(self.page), bytes) };
        }
    }
}

/// A call of userfaultfd with a structure of eight-byte words.
fn call<const WORDS: usize>(fd: &OwnedFd, number: u32, words: &mut [u64; WORDS]) -> io::Result<()> {
    assert!((number >> 16 & 0x3FFF) as usize == size_of_val(words));
    // SAFETY: the structure is as long as the number says, and lives through the call. What is
    // asked for does not change what memory holds.
    check(unsafe {
        libc::ioctl(fd.as_raw_fd(), libc::c_ulong::from(number) as _, words.as_mut_ptr())
    })?;
    Ok(())
}
