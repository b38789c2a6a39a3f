//! An open file's bytes: where they are, and what the system has to be asked for to have them.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::error::{Operation, StorageError};
use super::names::is_one;
use super::namespace::Namespace;
use super::owner;
use super::pieces::Grain;
use super::sys;

/// Where a file's bytes are.
#[derive(Debug)]
pub(crate) enum Body {
    /// In the system: a descriptor through the page cache, and one past it where there is one.
    System { buffered: fs::File, direct: Option<fs::File>, grain: Grain },
    /// A drive's namespace, by commands to the drive.
    Namespace { device: fs::File, namespace: Namespace },
    /// On a simulated device, by its path.
    Simulated,
}

impl Body {
    /// Open what exists in the system; gives its length too.
    pub(super) fn open(at: &Path) -> io::Result<(Self, u64)> {
        let file = options().open(at)?;
        if let Some(namespace) = Namespace::find(at)? {
            let bytes = namespace.bytes();
            return Ok((Body::Namespace { device: file, namespace }, bytes));
        }
        let bytes = length(&file)?;
        Ok((body(at, file), bytes))
    }

    /// The system's number of the device under it; of a block device, its own.
    pub(crate) fn device(&self) -> u64 {
        let file = match self {
            Body::System { buffered, .. } => buffered,
            Body::Namespace { device, .. } => device,
            Body::Simulated => return 0,
        };
        file.metadata().map_or(0, |found| if found.is_file() { found.dev() } else { found.rdev() })
    }

    /// Whether what was there before may still be read.
    pub(crate) fn is_device(&self) -> bool {
        match self {
            Body::System { buffered, .. } => {
                buffered.metadata().is_ok_and(|found| !found.is_file())
            }
            Body::Namespace { .. } => true,
            Body::Simulated => false,
        }
    }

    /// Let nobody else own this file while it is open here.
    pub(super) fn own(&self, path: &Path) -> Result<(), StorageError> {
        match self {
            Body::System { buffered: file, .. } | Body::Namespace { device: file, .. } => {
                owner::own(file, path)
            }
            Body::Simulated => Ok(()),
        }
    }

    /// The process that owns this file, where one does and the system tells.
    pub(super) fn owner(&self) -> Option<u32> {
        match self {
            Body::System { buffered: file, .. } | Body::Namespace { device: file, .. } => {
                owner::owner(file)
            }
            Body::Simulated => None,
        }
    }

    /// Let others own it.
    pub(crate) fn disown(&self) {
        match self {
            Body::System { buffered: file, .. } | Body::Namespace { device: file, .. } => {
                owner::disown(file);
            }
            Body::Simulated => {}
        }
    }
}

/// Open the way past the page cache too, where there is one. Not every file system has it; tmpfs
/// does since Linux 6.6.
pub(super) fn body(path: &Path, buffered: fs::File) -> Body {
    let direct = options().custom_flags(libc::O_DIRECT).open(path).ok();
    // Its name may lead to another by now.
    let direct = direct.filter(|direct| is_one(direct.metadata(), buffered.metadata()));
    let found = direct.as_ref().and_then(|_| sys::direct_grain(path));
    let grain = found.map_or(Grain::BUFFERED, |(file, memory)| Grain::direct(file, memory));
    Body::System { buffered, direct, grain }
}

/// Reserve the space up to `bytes`, or where the file system cannot, at least make it that long: a
/// full device then shows when it is written.
pub(super) fn reserve(file: &fs::File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // Asked first, because file systems take all that there is before they say that it is not
    // enough, and others would find the device full meanwhile.
    let held_bytes = 512 * file.metadata()?.blocks();
    if bytes.saturating_sub(held_bytes) > sys::free_bytes(file)? {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    match sys::allocate(file, bytes) {
        Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(bytes),
        other => other,
    }
}

pub(super) fn options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_CLOEXEC);
    options
}

/// Its length: of a block device, how far one can seek.
fn length(mut file: &fs::File) -> io::Result<u64> {
    io::Seek::seek(&mut file, io::SeekFrom::End(0))
}

pub(super) fn refused(
    operation: Operation,
    path: &Path,
    wanted_bytes: u64,
    e: &io::Error,
) -> StorageError {
    let errno = e.raw_os_error().unwrap_or(libc::EIO);
    let (offset, got_bytes) = (0, 0);
    StorageError::Refused { operation, path: path.into(), offset, wanted_bytes, got_bytes, errno }
}
