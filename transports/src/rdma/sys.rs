//! Raw calls that the standard library does not offer: something to be woken by, and memory
//! that is exported as devices do it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::opened;
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
        let make = || check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) });
        let fd = opened(make)?;
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

/// `UDMABUF_CREATE` of `linux/udmabuf.h`: `_IOW('u', 0x42, struct udmabuf_create)`.
const UDMABUF_CREATE: u32 = 1 << 30 | (size_of::<UdmabufCreate>() as u32) << 16 | 0x75 << 8 | 0x42;

#[repr(C)]
struct UdmabufCreate {
    memory: u32,
    flags: u32,
    offset: u64,
    bytes: u64,
}

/// Some new memory, exported as devices export theirs.
pub(super) fn udmabuf(bytes: usize) -> io::Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/udmabuf")?;
    // SAFETY: a name that ends with a zero.
    let memory = check(unsafe {
        libc::memfd_create(c"brigade".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    })?;
    // SAFETY: just made, and belongs to nobody else.
    let memory = File::from(unsafe { OwnedFd::from_raw_fd(memory) });
    memory.set_len(bytes as u64)?;
    let fd = memory.as_raw_fd();
    // SAFETY: an open descriptor, and no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) })?;
    let wish = UdmabufCreate { memory: fd as u32, flags: 1, offset: 0, bytes: bytes as u64 };
    // SAFETY: the structure that the call reads, which lives through it.
    let made = check(unsafe {
        libc::ioctl(device.as_raw_fd(), libc::c_ulong::from(UDMABUF_CREATE) as _, &raw const wish)
    })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
