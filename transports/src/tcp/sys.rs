//! Raw calls that neither the standard library nor socket2 offers. Each is a line around the
//! system call; what the codes mean is decided by the callers.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, RawFd};

use crate::opened;
use crate::sys::check;

/// Wait until one of the descriptors has one of `events`, or is broken, or `timeout_ms` passed
/// (negative: for ever). Returns for each whether it is worth looking at.
pub(super) fn poll(fds: &[RawFd], events: i16, timeout_ms: i32) -> io::Result<Vec<bool>> {
    let mut entries: Vec<_> =
        fds.iter().map(|&fd| libc::pollfd { fd, events, revents: 0 }).collect();
    let count = entries.len() as libc::nfds_t;
    // SAFETY: `entries` holds `count` entries and lives through the call.
    match check(unsafe { libc::poll(entries.as_mut_ptr(), count, timeout_ms) }) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(vec![false; fds.len()]),
        Err(error) => Err(error),
        Ok(_) => Ok(entries.iter().map(|entry| entry.revents != 0).collect()),
    }
}

/// SIOCOUTQNSD, absent from libc's list on some architectures.
const SIOCOUTQNSD: libc::c_int = 0x894b;

/// Bytes in the send queue that have not left yet.
pub(super) fn unsent_bytes(socket: &impl AsRawFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQNSD on a TCP socket writes one int, to a place that holds one.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), SIOCOUTQNSD as _, &mut bytes) })?;
    Ok(bytes.max(0) as usize)
}

/// TCP_RTO_MAX_MS of Linux 6.15 and later, absent from libc's list.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Never wait longer than `ms` between two attempts to reach a silent peer.
pub(super) fn set_retry_cap(socket: &impl AsRawFd, ms: u32) -> io::Result<()> {
    let value = ms as libc::c_int;
    let size = size_of_val(&value) as libc::socklen_t;
    let (fd, place) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: `place` points to an int of `size` bytes that lives through the call.
    check(unsafe { libc::setsockopt(fd, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, place, size) })?;
    Ok(())
}

/// An address of this machine as the kernel lists it.
pub(super) struct RawAddress {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) address: IpAddr,
    pub(super) prefix_bits: u8,
    pub(super) is_loopback: bool,
}

/// All addresses of interfaces that are up.
pub(super) fn addresses() -> io::Result<Vec<RawAddress>> {
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: on success the call makes `list` a linked list that stays valid until it is freed.
    opened(|| check(unsafe { libc::getifaddrs(&mut list) }))?;
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is an entry of the list, which has not been freed yet.
        let entry = unsafe { &*next };
        // SAFETY: the entry's pointers are null or valid as long as the list.
        found.extend(unsafe { address_of(entry) });
        next = entry.ifa_next;
    }
    // SAFETY: `list` came from getifaddrs, is freed once, and nothing borrowed from it is left.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// One entry, where it is an IP address of an interface that is up.
///
/// # Safety
/// `entry` comes from a list of getifaddrs that has not been freed.
unsafe fn address_of(entry: &libc::ifaddrs) -> Option<RawAddress> {
    let flags = entry.ifa_flags as libc::c_int;
    if flags & libc::IFF_UP == 0 || entry.ifa_name.is_null() {
        return None;
    }
    // SAFETY: the caller says that the entry's pointers are null or valid.
    let address = unsafe { ip(entry.ifa_addr) }?;
    // SAFETY: as above.
    let mask = unsafe { ip(entry.ifa_netmask) };
    let prefix_bits = match mask {
        Some(IpAddr::V4(mask)) => u32::from(mask).leading_ones() as u8,
        Some(IpAddr::V6(mask)) => u128::from(mask).leading_ones() as u8,
        None => {
            if address.is_ipv4() {
                32
            } else {
                128
            }
        }
    };
    // SAFETY: the name is not null (checked above) and ends with a zero.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) };
    // SAFETY: the same string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    let is_loopback = flags & libc::IFF_LOOPBACK != 0;
    let name = name.to_string_lossy().into_owned();
    Some(RawAddress { name, index, address, prefix_bits, is_loopback })
}

/// The IP address in a socket address, if it is one.
///
/// # Safety
/// `address` is null or points to a socket address as long as its family says.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: every socket address starts with its family.
    match libc::c_int::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that this is a sockaddr_in; alignment is not relied on.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that this is a sockaddr_in6; alignment is not relied on.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}
