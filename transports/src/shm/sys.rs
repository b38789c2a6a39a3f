//! The system calls of shared memory, each as a function that returns `io::Result` or owns what
//! it made. Nothing here knows what a ring or a group is.

use std::fs::File;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use crate::opened;
use crate::sys::raise_file_limit;

/// The page size that layouts within an area are rounded to. Larger pages of other machines are
/// multiples of it, and areas are made of those.
pub(super) const PAGE_BYTES: usize = 4096;

/// An anonymous file in memory that can be sealed. It has a name only for `/proc`.
pub(super) fn memory_file() -> io::Result<OwnedFd> {
    const NOEXEC_SEAL: libc::c_uint = 8;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string that ends in zero; the call touches no other memory of ours.
    let create = |flags| unsafe { libc::memfd_create(c"brigade".as_ptr(), flags) };
    // Kernels before 6.3 do not know the flag that keeps the file from being executed.
    opened(|| match create(flags | NOEXEC_SEAL) {
        -1 => own(create(flags)),
        fd => own(fd),
    })
}

/// The longest file this process may make.
pub(super) fn file_bytes_max() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid place for the answer.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Fix the length of a memory file for good.
pub(super) fn seal_length(fd: &OwnedFd) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call takes a descriptor and a number.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }).map(drop)
}

/// The length of a memory file, if it is sealed so that no peer can cut it from under a mapping.
pub(super) fn sealed_length(fd: &OwnedFd) -> io::Result<u64> {
    // SAFETY: the call takes a descriptor.
    let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    Ok(File::from(opened(|| fd.try_clone())?).metadata()?.len())
}

/// How many bytes of a memory file are backed by memory now.
#[cfg(test)]
pub(super) fn resident_bytes(fd: &OwnedFd) -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(File::from(fd.try_clone()?).metadata()?.blocks() * 512)
}

/// Give the memory behind a stretch of a memory file back. It reads as zeros from then on.
pub(super) fn punch_hole(fd: &OwnedFd, offset: u64, bytes: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
    // SAFETY: the call takes a descriptor and numbers.
    check(unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset, bytes) }).map(drop)
}

/// A stretch of a memory file in our address space, unmapped when dropped.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory; whoever reads or writes it through `base` answers for races.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` alone gives out nothing but the address.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Map `bytes` of `fd` from `offset` on, readable, writable, shared and without reserving
    /// memory.
    pub(super) fn new(fd: &OwnedFd, offset: u64, bytes: usize) -> io::Result<Self> {
        assert!(bytes > 0);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let (place, offset) = (std::ptr::null_mut(), offset as libc::off_t);
        // SAFETY: the kernel chooses a free place, so no memory of ours is replaced.
        let base = unsafe { libc::mmap(place, bytes, protection, flags, fd.as_raw_fd(), offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes })
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: we made this mapping and nothing that points into it outlives its owner.
        let unmapped = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert_eq!(unmapped, 0);
    }
}

/// Sleep while `word` is `expected`, until somebody wakes it or the timeout. Spurious returns are
/// normal.
pub(super) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) -> io::Result<()> {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word and the timeout are valid for the length of the call.
    let slept = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, &timeout, 0, 0)
    };
    if slept == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT) => Ok(()),
        _ => Err(error),
    }
}

/// Wake whoever sleeps at `word`.
pub(super) fn futex_wake(word: &AtomicU32) -> io::Result<()> {
    // SAFETY: the word is valid for the length of the call.
    let woken = unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0)
    };
    if woken < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Let other processes' [`memory_barrier`] reach the threads of this one, and say whether that,
/// and issuing such barriers, works here.
pub(super) fn register_memory_barrier() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED).is_ok() && memory_barrier().is_ok()
}

/// A full memory barrier on every running thread of every registered process.
pub(super) fn memory_barrier() -> io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers.
    let done = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A descriptor that becomes readable when process `pid` ends.
pub(super) fn watch_process(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes numbers.
    opened(|| own(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as RawFd))
}

/// The position of the first of these descriptors that is readable, waiting for one at most as
/// long as `patience`.
pub(super) fn first_readable(
    fds: &[BorrowedFd<'_>],
    patience: Duration,
) -> io::Result<Option<usize>> {
    let patience_ms = patience.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
    let ask =
        |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<_> = fds.iter().map(ask).collect();
    let count = polled.len() as libc::nfds_t;
    // SAFETY: `polled` has `count` entries.
    match check(unsafe { libc::poll(polled.as_mut_ptr(), count, patience_ms) }) {
        Ok(_) => Ok(polled.iter().position(|one| one.revents != 0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// The user who made the other end of a Unix socket.
pub(super) fn peer_user(socket: &impl AsRawFd) -> io::Result<u32> {
    let mut who = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let place = (&raw mut who).cast();
    // SAFETY: `place` has room for `len` bytes, and any bytes make a valid `ucred`.
    check(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut len)
    })?;
    Ok(who.uid)
}

/// Our effective user.
pub(super) fn own_user() -> u32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// Room for one descriptor in a control message, aligned as the kernel wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Send one byte with a descriptor over a Unix socket.
pub(super) fn send_descriptor(socket: &impl AsRawFd, fd: &OwnedFd) -> io::Result<()> {
    let mut byte = [1_u8];
    let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 64]);
    let message = header(&mut piece, &mut control, size_of::<RawFd>());
    // SAFETY: the header names `piece`, `byte` and `control`, which outlive the call, and
    // `control` has room for the one descriptor that is written behind the message's head.
    let sent = unsafe {
        let head = &mut *libc::CMSG_FIRSTHDR(&message);
        head.cmsg_level = libc::SOL_SOCKET;
        head.cmsg_type = libc::SCM_RIGHTS;
        head.cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    if sent == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Receive one byte with a descriptor; `None` when the other end closed or sent no descriptor. An
/// error of this process's when it came and there was no room for it.
pub(super) fn receive_descriptor(socket: &impl AsRawFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0_u8];
    let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut control = Control([0; 64]);
    let mut message = header(&mut piece, &mut control, size_of::<RawFd>());
    // SAFETY: the header names `piece`, `byte` and `control`, which outlive the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    if got < 0 {
        return Err(io::Error::last_os_error());
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        // It comes again when it is asked for again; there should be room then.
        let _raised = raise_file_limit();
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    // SAFETY: the kernel has filled the control buffer in; the first message, if any, is whole
    // when its length says so, and a descriptor received is ours to own.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&message);
        if head.is_null()
            || (*head).cmsg_level != libc::SOL_SOCKET
            || (*head).cmsg_type != libc::SCM_RIGHTS
            || (*head).cmsg_len as usize != libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize
        {
            return Ok(None);
        }
        own(libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned()).map(Some)
    }
}

fn header(piece: &mut libc::iovec, control: &mut Control, payload: usize) -> libc::msghdr {
    // SAFETY: a header of zeros names nothing.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: the macro only computes.
    let space = unsafe { libc::CMSG_SPACE(payload as u32) } as usize;
    assert!(space <= control.0.len());
    message.msg_controllen = space as _;
    message
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn own(fd: RawFd) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else has its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether [`ticks`] counts.
pub(super) const HAS_TICKS: bool = cfg!(target_arch = "x86_64");

/// A clock that costs no system call; its unit is the processor's. Zero where there is none.
#[inline]
pub(super) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, and it touches no memory.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}
