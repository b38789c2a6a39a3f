//! An NVMe namespace, reached by its generic device.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::memory::ALIGNMENT;

/// What a drive takes in one command at most, where it would take more.
const TRANSFER_BYTES_MAX: usize = 1 << 20;

/// What commands for a namespace need to know of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Namespace {
    /// Its number on the drive.
    pub(crate) id: u32,
    pub(crate) block_bytes: u64,
    pub(crate) blocks: u64,
    /// The longest transfer: whole pages.
    pub(crate) transfer_bytes_max: usize,
}

impl Namespace {
    /// What the system says of the namespace at this path. None when it is none.
    ///
    /// Errors: the system knows the device and does not describe it.
    pub(crate) fn find(path: &Path) -> io::Result<Option<Self>> {
        let is_device = fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device());
        let real = path.canonicalize().unwrap_or_else(|_| path.into());
        let name = real.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        match name.strip_prefix("ng") {
            Some(rest) if is_device => {
                Self::described(&Path::new("/sys/block").join(format!("nvme{rest}"))).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// What the folder of the namespace's block device says.
    fn described(folder: &Path) -> io::Result<Self> {
        let number = |name: &str| number(&folder.join(name));
        let block_bytes = number("queue/logical_block_size")?;
        let sectors = number("size")?;
        let longest = longest(&folder.join("queue"), "max_hw_sectors_kb")?.min(TRANSFER_BYTES_MAX);
        if block_bytes == 0 || longest == 0 || !(ALIGNMENT as u64).is_multiple_of(block_bytes) {
            return Err(io::Error::other("blocks that do not divide a page"));
        }
        let id = number("nsid")? as u32;
        let blocks = sectors * 512 / block_bytes;
        Ok(Self { id, block_bytes, blocks, transfer_bytes_max: longest })
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.blocks * self.block_bytes
    }
}

/// The longest transfer that the device of this number takes as one request, as far as the system
/// says.
pub(super) fn longest_request(device: u64) -> Option<usize> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
    // A partition goes by the limits of what it is part of.
    let mut queues = [folder.join("queue"), folder.join("../queue")].into_iter();
    longest(&queues.find(|queue| queue.is_dir())?, "max_sectors_kb").ok()
}

/// The longest request by the limits in this folder: whole pages.
fn longest(queue: &Path, limit_kb: &str) -> io::Result<usize> {
    let bytes = (number(&queue.join(limit_kb))? as usize) << 10;
    // Memory of 4 KiB pages may need a segment for each, and one more when it begins within.
    let scattered = (number(&queue.join("max_segments"))? as usize).saturating_sub(1) * ALIGNMENT;
    Ok(bytes.min(scattered) / ALIGNMENT * ALIGNMENT)
}

fn number(file: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(file)?;
    text.trim().parse().map_err(|_| io::Error::other(format!("{} is no number", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_generic_device_is_no_namespace() {
        for path in ["/dev/null", "/dev/ng-missing", "/tmp"] {
            assert_eq!(Namespace::find(Path::new(path)).unwrap(), None, "{path}");
        }
    }

    #[test]
    fn the_longest_request_is_whole_pages_by_bytes_and_by_segments() {
        let name = format!("brigade-queue-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let say = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        let longest = || longest(&folder, "max_sectors_kb");
        assert!(longest().is_err());
        say("max_sectors_kb", "1281\n");
        say("max_segments", "65535\n");
        assert_eq!(longest().unwrap(), 1280 << 10);
        say("max_segments", "128\n");
        assert_eq!(longest().unwrap(), 127 * 4096);
        say("max_segments", "many");
        assert!(longest().is_err());
        assert_eq!(longest_request(0), None, "no block device has this number");
        fs::remove_dir_all(&folder).unwrap();
    }
}
