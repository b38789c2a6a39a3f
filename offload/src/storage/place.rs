//! Where files are: in the system, or on a simulated device.

use std::fs;
use std::io;
use std::path::Path;

use super::body::{Body, refused, reserve};
use super::claim::{Claimed, claim_all};
use super::error::{Operation, StorageError};
use super::names::sync_folder;
use super::simulated::SimulatedDevice;

/// Makes and opens files.
#[derive(Debug, Clone)]
pub(super) enum Place {
    System,
    Simulated(SimulatedDevice),
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

    /// Open what exists; gives its length too.
    pub(super) fn open(&self, path: &Path) -> Result<(Body, u64), StorageError> {
        self.open_at(path, path)
    }

    /// The same of what is to be found `at` another place than errors name.
    pub(super) fn open_at(&self, path: &Path, at: &Path) -> Result<(Body, u64), StorageError> {
        let opened = match self {
            Place::System => Body::open(at),
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
