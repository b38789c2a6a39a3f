//! Where files are: in the system, or on a simulated device.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::claim::{Claimed, claim_all};
use super::error::{Operation, StorageError};
use super::namespace::Namespace;
use super::owner;
use super::pieces::Grain;
use super::simulated::SimulatedDevice;
use super::sys;

/// Makes and opens files.
#[derive(Debug, Clone)]
pub(super) enum Place {
    System,
    Simulated(SimulatedDevice),
}

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

impl Place {
    /// Make files of so many bytes with their space reserved, in the place of what was there. That
    /// is not touched before all of them are ours and there is room for them.
    pub(super) fn create(&self, files: &[(&Path, u64)]) -> Result<Vec<Body>, StorageError> {
        match self {
            Place::System => {
                let claimed = claim_all(files)?;
                claimed.into_iter().map(Claimed::make).collect()
            }
            Place::Simulated(device) => {
                let create = |&(path, bytes): &(&Path, u64)| {
                    let made = device.create(path, bytes).map_err(io::Error::from_raw_os_error);
                    let made = made.map(|()| Body::Simulated);
                    made.map_err(|e| refused(Operation::Allocate, path, bytes, &e))
                };
                files.iter().map(create).collect()
            }
        }
    }

    /// Let nobody else own this file while it is open here.
    pub(super) fn own(&self, path: &Path, body: &Body) -> Result<(), StorageError> {
        match body {
            Body::System { buffered: file, .. } | Body::Namespace { device: file, .. } => {
                owner::own(file, path)
            }
            Body::Simulated => Ok(()),
        }
    }

    /// The process that owns this file, where one does and the system tells.
    pub(super) fn owner(&self, body: &Body) -> Option<u32> {
        match body {
            Body::System { buffered: file, .. } | Body::Namespace { device: file, .. } => {
                owner::owner(file)
            }
            Body::Simulated => None,
        }
    }

    /// Open what exists; gives its length too.
    pub(super) fn open(&self, path: &Path) -> Result<(Body, u64), StorageError> {
        self.open_at(path, path)
    }

    /// The same of what is to be found `at` another place than errors name.
    pub(super) fn open_at(&self, path: &Path, at: &Path) -> Result<(Body, u64), StorageError> {
        let opened = match self {
            Place::System => options().open(at).and_then(|file| {
                if let Some(namespace) = Namespace::find(at)? {
                    let bytes = namespace.bytes();
                    return Ok((Body::Namespace { device: file, namespace }, bytes));
                }
                let bytes = length(&file)?;
                Ok((body(at, file), bytes))
            }),
            Place::Simulated(device) => device
                .length(at)
                .map(|bytes| (Body::Simulated, bytes))
                .map_err(io::Error::from_raw_os_error),
        };
        opened.map_err(|e| refused(Operation::Open, path, 0, &e))
    }

    /// Make a file longer, with its space reserved.
    pub(super) fn extend(&self, path: &Path, body: &Body, bytes: u64) -> Result<(), StorageError> {
        let extended = match (self, body) {
            (Place::Simulated(device), _) => {
                device.extend(path, bytes).map_err(io::Error::from_raw_os_error)
            }
            (Place::System, Body::System { buffered, .. }) => reserve(buffered, bytes),
            (Place::System, _) => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        };
        extended.map_err(|e| refused(Operation::Allocate, path, bytes, &e))
    }

    /// Remove a file's name; its bytes go with the last user.
    pub(super) fn remove(&self, path: &Path) -> Result<(), StorageError> {
        let removed = match self {
            Place::System => fs::remove_file(path).and_then(|()| sync_folder(path)),
            Place::Simulated(device) => device.remove(path).map_err(io::Error::from_raw_os_error),
        };
        removed.map_err(|e| refused(Operation::Remove, path, 0, &e))
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

/// Whether these are of one file.
pub(super) fn is_one(one: io::Result<fs::Metadata>, other: io::Result<fs::Metadata>) -> bool {
    let found = one.and_then(|one| Ok((one, other?)));
    found.is_ok_and(|(one, other)| (one.dev(), one.ino()) == (other.dev(), other.ino()))
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

/// A name survives a loss of power once its folder was synced.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    fs::File::open(folder(path))?.sync_all()
}

/// The folder that a file is in.
pub(super) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
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
