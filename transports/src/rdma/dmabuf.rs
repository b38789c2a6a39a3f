//! Whether devices can be shown memory of other devices, such as a GPU's, through a dma-buf.
//!
//! A device cannot be asked that, so it is tried, with a page of memory that the kernel exports in
//! the same way.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use brigade_verbs::{Access, Device, MemoryRegion, ProtectionDomain, VerbsError};

use super::sys::udmabuf;
use super::unmap::page_bytes;

/// Which devices can, and why others cannot, for a person to read.
pub(super) fn describe(devices: &[Arc<Device>]) -> String {
    let exported = match udmabuf(page_bytes()) {
        Ok(exported) => exported,
        Err(error) => {
            return format!(
                "memory of other devices (dma-buf): cannot be tried, since /dev/udmabuf answers: \
                 {error}"
            );
        }
    };
    let outcome = |device: &Arc<Device>| {
        let domain = ProtectionDomain::new(device)?;
        MemoryRegion::of_dmabuf(&domain, exported.as_fd(), 0, page_bytes(), Access::Local)
    };
    let word = |device: &Arc<Device>| match outcome(device) {
        Ok(_) => format!("{} can", device.name()),
        Err(VerbsError::Call { errno: libc::ENOSYS, what, .. }) => {
            format!("{} cannot ({what})", device.name())
        }
        Err(VerbsError::Call { errno, .. }) => {
            format!("{} cannot ({})", device.name(), io::Error::from_raw_os_error(errno))
        }
        Err(error) => format!("{} cannot ({error})", device.name()),
    };
    let words: Vec<_> = devices.iter().map(word).collect();
    format!("memory of other devices (dma-buf): {}", words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_first_tells_why_not() {
        let devices = match Device::open_all() {
            Ok(devices) if !devices.is_empty() => devices,
            Ok(_) => return println!("skipped: there is no RDMA device"),
            Err(error) => return println!("skipped: {error}"),
        };
        let line = describe(&devices);
        println!("{line}");
        assert!(!line.contains('\n'));
        for device in devices {
            // A device of software reads with the processor, which does not reach such memory.
            let soft = format!("{} cannot (Operation not supported", device.name());
            let is_known = line.contains(&soft) || line.contains("cannot be tried");
            assert!(device.is_hardware() || is_known, "{line}");
        }
    }
}
