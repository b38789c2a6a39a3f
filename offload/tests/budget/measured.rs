//! What the system says about this process.

use std::fs;

/// Bytes of memory that are resident now, as the tables of pages say; where those cannot be had, as
/// the kernel's own count does, which may lag behind.
pub(crate) fn resident() -> u64 {
    let kib = number("/proc/self/smaps_rollup", "Rss:");
    kib.or_else(|| number("/proc/self/status", "VmRSS:")).expect("a process has memory") << 10
}

/// The most bytes that ever were resident since the last [`forget_peak`].
pub(crate) fn resident_peak() -> u64 {
    number("/proc/self/status", "VmHWM:").expect("a process has a peak") << 10
}

/// Bytes that this process has had read from and written to devices, as the kernel counts them.
pub(crate) fn device_bytes() -> [u64; 2] {
    ["read_bytes:", "write_bytes:"].map(|name| number("/proc/self/io", name).unwrap_or(0))
}

/// Count the peak of resident memory anew. Where the kernel cannot, the peak is that of all that
/// was before too.
pub(crate) fn forget_peak() {
    // Nothing is lost: an older peak is a higher one.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

fn number(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
