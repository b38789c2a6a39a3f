//! Names of files: what they lead to, and how they last.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether these are of one file.
pub(super) fn is_one(one: io::Result<fs::Metadata>, other: io::Result<fs::Metadata>) -> bool {
    let found = one.and_then(|one| Ok((one, other?)));
    found.is_ok_and(|(one, other)| (one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// A name survives a loss of power once its folder was synced.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    fs::File::open(folder(path))?.sync_all()
}

/// The folder that a file is in.
pub(super) fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
