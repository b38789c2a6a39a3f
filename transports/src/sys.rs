//! Raw calls that more than one transport needs and the standard library does not offer: a set of
//! descriptors to sleep at, the limit of open files, and the cores of the calling thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A set of descriptors, any of which can end a wait.
pub(crate) struct Epoll(OwnedFd);

impl AsFd for Epoll {
    /// Readable when a change has been seen.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How many descriptors one `epoll_wait` reports; the rest stay in the kernel's list.
const EVENTS_AT_ONCE: usize = 64;

/// Changes of a descriptor that can end a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Changes {
    /// Something can be read.
    Readable,
    /// Bytes arrived, there is room to send, or the other side has closed.
    All,
}

impl Epoll {
    /// An empty set.
    pub(crate) fn new() -> io::Result<Epoll> {
        // SAFETY: takes no pointers; the result is checked before it is owned.
        let fd = opened(|| check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }))?;
        // SAFETY: `fd` was just made and belongs to nobody else.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// From now on, such changes of `fd` end a wait, once each.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, changes: Changes) -> io::Result<()> {
        let events = match changes {
            Changes::Readable => libc::EPOLLIN,
            Changes::All => libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP,
        };
        let mut event = libc::epoll_event { events: (events | libc::EPOLLET) as u32, u64: 0 };
        let (set, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: both descriptors are open and `event` outlives the call, which copies it.
        check(unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event) })?;
        Ok(())
    }

    /// Wait until some descriptor changed or `timeout_ms` passed; how many changes were consumed.
    pub(crate) fn wait(&self, timeout_ms: i32) -> io::Result<usize> {
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
    pub(crate) fn drain(&self) -> io::Result<()> {
        while self.wait(0)? == EVENTS_AT_ONCE {}
        Ok(())
    }
}

/// Open something; where this process has as many files open as it may, but may allow itself more,
/// it does that first. So ranks of a large world, and a rank of many groups, need no other limit
/// than most systems set.
pub fn opened<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let outcome = open();
    match &outcome {
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
            // Another thread may have done it just now.
            let _raised = raise_file_limit();
            open()
        }
        _ => outcome,
    }
}

/// Let this process open as many files as its administrator allows.
pub(crate) fn raise_file_limit() -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes one rlimit to a place that holds one.
    check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) })?;
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads one rlimit, which lives through the call.
    check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }).map(drop)
}

/// How many bytes say which cores a thread may run on, a bit for each.
pub(crate) const AFFINITY_BYTES: usize = size_of::<libc::cpu_set_t>();

/// Which cores the calling thread may run on. An error where the system has more of them than bits.
pub(crate) fn affinity() -> io::Result<[u8; AFFINITY_BYTES]> {
    let mut mask = [0u64; AFFINITY_BYTES / 8];
    // SAFETY: the kernel writes at most so many bytes, and there is room for them, aligned as the
    // type asks.
    check(unsafe { libc::sched_getaffinity(0, AFFINITY_BYTES, mask.as_mut_ptr().cast()) })?;
    let mut bytes = [0; AFFINITY_BYTES];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(mask) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    Ok(bytes)
}

/// Have the calling thread run on these cores only. Allocates nothing and takes no lock.
pub(crate) fn set_affinity(mask: &[u8; AFFINITY_BYTES]) -> io::Result<()> {
    let mut words = [0u64; AFFINITY_BYTES / 8];
    for (word, bytes) in words.iter_mut().zip(mask.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    // SAFETY: the kernel reads so many bytes, aligned as the type asks.
    check(unsafe { libc::sched_setaffinity(0, AFFINITY_BYTES, words.as_ptr().cast()) }).map(drop)
}

/// The core on which the calling thread runs.
pub(crate) fn current_core() -> io::Result<usize> {
    // SAFETY: the call takes nothing and touches no memory.
    Ok(check(unsafe { libc::sched_getcpu() })?.cast_unsigned() as usize)
}

/// The error of a call that returned a negative code.
pub(crate) fn check(code: libc::c_int) -> io::Result<libc::c_int> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code) }
}
