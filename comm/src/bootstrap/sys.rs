//! The system calls of bootstrap that the standard library does not have.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use brigade_transports::opened;

/// One descriptor to wait for.
#[repr(transparent)]
pub(crate) struct Watch(libc::pollfd);

impl Watch {
    /// Wait until `fd` can be read, and, if `write`, until it can be written.
    pub(crate) fn new(fd: BorrowedFd<'_>, write: bool) -> Self {
        let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
        Self(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 })
    }

    /// Whether anything happened, errors and hang-ups included.
    pub(crate) fn happened(&self) -> bool {
        self.0.revents != 0
    }
}

/// Sleep until something happens to one of `watches` or `timeout` is over. An interrupted sleep
/// is a short one.
pub(crate) fn poll(watches: &mut [Watch], timeout: Option<Duration>) -> io::Result<()> {
    // Rounded up, or the last millisecond before a deadline would be spent spinning.
    let timeout_ms = timeout.map_or(-1, |timeout| {
        i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    });
    let count = watches.len() as libc::nfds_t;
    // SAFETY: `Watch` is a transparent wrapper of one pollfd, the slice is
    // exclusively ours for the call, and `count` is its length.
    let ready = unsafe { libc::poll(watches.as_mut_ptr().cast(), count, timeout_ms) };
    if ready >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted {
        for watch in watches {
            watch.0.revents = 0;
        }
        return Ok(());
    }
    Err(error)
}

/// The name this host gives itself.
pub(super) fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer is ours, and one byte shorter for the call than it is, so that whatever
    // is written is followed by a zero.
    let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } != 0;
    match CStr::from_bytes_until_nul(&name) {
        Ok(name) if !failed => name.to_string_lossy().into_owned(),
        _ => "unknown host".into(),
    }
}

/// The user this process runs as.
pub(crate) fn user() -> u32 {
    // SAFETY: geteuid takes nothing, touches no memory of ours and cannot fail.
    unsafe { libc::geteuid() }
}

/// The addresses of interfaces that are up, without loopback and link-local ones.
pub(super) fn addresses() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    opened(|| {
        // SAFETY: `first` is a valid place for the result.
        match unsafe { libc::getifaddrs(&mut first) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    })?;
    let mut found = Vec::new();
    let mut next = first;
    while !next.is_null() {
        // SAFETY: `next` is an element of the list that getifaddrs made, which is freed only below.
        let interface = unsafe { &*next };
        let up = interface.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: the address belongs to the same living list element.
        let address = unsafe { address(interface.ifa_addr) };
        found.extend(address.filter(|address| up && reaches_other_hosts(*address)));
        next = interface.ifa_next;
    }
    // SAFETY: `first` came from getifaddrs, and nothing refers into the list any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to a socket address as large as its family says.
unsafe fn address(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, and every socket address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

fn reaches_other_hosts(address: IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !local && !address.is_loopback() && !address.is_unspecified()
}
