//! The wall to the system's calls on nodes: which memory is near which processor.
//!
//! A machine with several sockets has memory at each of them, and what is far takes longer and less
//! at once. The kernel gives what is near the thread that touches it first, unless there is none
//! left or somebody has told it otherwise. An arena says so itself, because it is mapped once and
//! stays for as long as the process does.

use std::io;
use std::ptr::NonNull;

/// Nodes that a mask can name here.
const NODES_MAX: usize = 64;

/// How many nodes have memory. One where the system does not tell.
pub(super) fn nodes() -> usize {
    let list = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    count(&list).max(1)
}

/// The node of the processor that this thread runs on.
pub(super) fn node_here() -> io::Result<usize> {
    let (mut processor, mut node) = (0_u32, 0_u32);
    // SAFETY: both numbers are writable for as long as the call; the last argument is not used.
    let code = unsafe {
        libc::syscall(libc::SYS_getcpu, &raw mut processor, &raw mut node, std::ptr::null::<u8>())
    };
    checked(code).map(|()| node as usize)
}

/// Let this memory come from that node while it has any left, and from the others then.
///
/// Errors: the kernel's; some containers forbid the call.
pub(super) fn prefer(start: NonNull<u8>, bytes: usize, node: usize) -> io::Result<()> {
    if node >= NODES_MAX {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mask = 1_u64 << node;
    // SAFETY: the range is a mapping of the caller's, of which only the policy changes, and `mask`
    // is readable. The kernel counts one bit less than it is told.
    let code = unsafe {
        let (start, mask) = (start.as_ptr(), &raw const mask);
        libc::syscall(libc::SYS_mbind, start, bytes, libc::MPOL_PREFERRED, mask, NODES_MAX + 1, 0)
    };
    checked(code)
}

/// The node that this memory prefers, if it prefers one.
#[cfg(test)]
fn preferred(start: NonNull<u8>) -> io::Result<Option<usize>> {
    /// MPOL_F_ADDR in the kernel's headers.
    const OF_ADDRESS: libc::c_ulong = 2;
    let (mut mode, mut mask) = (0_i32, 0_u64);
    // SAFETY: `mode` and `mask` are writable, and nothing is done with the memory at `start`.
    let code = unsafe {
        let (mode, mask) = (&raw mut mode, &raw mut mask);
        let start = start.as_ptr();
        libc::syscall(libc::SYS_get_mempolicy, mode, mask, NODES_MAX + 1, start, OF_ADDRESS)
    };
    checked(code)?;
    Ok((mode == libc::MPOL_PREFERRED).then(|| mask.trailing_zeros() as usize))
}

/// How many numbers a list as `0-3,8` names.
fn count(list: &str) -> usize {
    let span = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (last.checked_sub(first)?).checked_add(1)
    };
    list.trim().split(',').filter_map(span).sum()
}

fn checked(code: libc::c_long) -> io::Result<()> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::region::{Pages, Region};
    use super::*;

    #[test]
    fn lists_of_nodes_are_counted() {
        for (list, wanted) in [("0", 1), ("0-3\n", 4), ("0-1,4,6-7", 5), ("", 0), ("x,3-1", 0)] {
            assert_eq!(count(list), wanted, "{list:?}");
        }
        assert!((1..=NODES_MAX).contains(&nodes()));
    }

    #[test]
    fn what_is_preferred_can_be_read_back() {
        let node = node_here().unwrap();
        // As the arena does it where there are several nodes, and not where there is one.
        let region = Region::map(4 << 20, Pages::Small).unwrap();
        match preferred(region.base()) {
            Ok(found) => assert_eq!(found, (nodes() > 1).then_some(node)),
            Err(e) => return println!("skipped: policies cannot be read here: {e}"),
        }
        if let Err(e) = prefer(region.base(), region.bytes(), node) {
            return println!("skipped: policies cannot be set here: {e}");
        }
        assert_eq!(preferred(region.base()).unwrap(), Some(node));
        prefer(region.base(), region.bytes(), NODES_MAX).unwrap_err();
    }
}
