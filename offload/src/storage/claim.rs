//! Files in the making: what was at their paths is there until all of them are ours, and fit.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::body::{Body, body, options, refused, reserve};
use super::error::{Operation, StorageError};
use super::names::{is_one, sync_folder};
use super::owner;
use super::sys;

/// How often a file may go between its opening and its owning.
const TRIES: usize = 16;

/// A file or a device that is ours, with what was in it. A file that was not there before goes with
/// this, unless it is made.
#[derive(Debug)]
pub(super) struct Claimed {
    path: PathBuf,
    bytes: u64,
    held: Held,
}

#[derive(Debug)]
enum Held {
    File { file: fs::File, is_new: bool },
    Device(Body),
    Made,
}

/// Own what is at these paths, or empty files where nothing is, and see that so many bytes fit.
///
/// Errors: the system's; somebody else owns one of them; the devices under them are too small for
/// all. Nothing was done then.
pub(super) fn claim_all(files: &[(&Path, u64)]) -> Result<Vec<Claimed>, StorageError> {
    let claim = |&(path, bytes): &(&Path, u64)| Claimed::new(path, bytes);
    let claimed = files.iter().map(claim).collect::<Result<Vec<_>, _>>()?;
    // By device: what is wanted of it beyond what the files hold already.
    let mut wanted: HashMap<u64, u64> = HashMap::new();
    for it in &claimed {
        let Held::File { file, .. } = &it.held else { continue };
        let fits = fits(file, it.bytes, &mut wanted);
        fits.map_err(|e| refused(Operation::Allocate, &it.path, it.bytes, &e))?;
    }
    Ok(claimed)
}

fn fits(file: &fs::File, bytes: u64, wanted: &mut HashMap<u64, u64>) -> io::Result<()> {
    let found = file.metadata()?;
    let of_device = wanted.entry(found.dev()).or_default();
    *of_device = of_device.saturating_add(bytes.saturating_sub(512 * found.blocks()));
    match *of_device > sys::free_bytes(file)? {
        true => Err(io::Error::from_raw_os_error(libc::ENOSPC)),
        false => Ok(()),
    }
}

impl Claimed {
    fn new(path: &Path, bytes: u64) -> Result<Self, StorageError> {
        let refused = |operation, e: io::Error| refused(operation, path, bytes, &e);
        let found = fs::metadata(path).ok();
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            let (body, there) =
                Body::open(path).map_err(|e| self::refused(Operation::Open, path, 0, &e))?;
            if there < bytes {
                return Err(refused(
                    Operation::Allocate,
                    io::Error::from_raw_os_error(libc::ENOSPC),
                ));
            }
            body.own(path)?;
            return Ok(Self { path: path.into(), bytes, held: Held::Device(body) });
        }
        for _ in 0..TRIES {
            // Emptied only once it is ours: somebody may be writing there.
            let found = there(path).map_err(|e| refused(Operation::Open, e))?;
            let Some((file, is_new)) = found else { continue };
            owner::own(&file, path)?;
            // Who had it until now may have removed it.
            if is_one(file.metadata(), fs::metadata(path)) {
                let held = Held::File { file, is_new };
                return Ok(Self { path: path.into(), bytes, held });
            }
        }
        Err(refused(Operation::Open, io::Error::from_raw_os_error(libc::EBUSY)))
    }

    /// Make it what was asked for. What was in a file is gone; a device is what it is.
    ///
    /// Errors: the system's; a file is removed then, which is of no use.
    pub(super) fn make(mut self) -> Result<Body, StorageError> {
        let held = std::mem::replace(&mut self.held, Held::Made);
        let (path, bytes) = (&self.path, self.bytes);
        let refused = |operation, e: io::Error| refused(operation, path, bytes, &e);
        let file = match held {
            Held::File { file, .. } => file,
            Held::Device(body) => return Ok(body),
            Held::Made => unreachable!("made once"),
        };
        if let Err(e) = file.set_len(0).and_then(|()| reserve(&file, bytes)) {
            // Ours alone as long as it is open, and of no use; that it could not be removed is the
            // lesser trouble.
            let _ = fs::remove_file(path);
            return Err(refused(Operation::Allocate, e));
        }
        sync_folder(path).map_err(|e| refused(Operation::Sync, e))?;
        Ok(body(path, file))
    }
}

/// The file at this path, and whether it was made here; none if it went in that moment.
fn there(path: &Path) -> io::Result<Option<(fs::File, bool)>> {
    match options().create_new(true).open(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            // A link may lead to where nothing is yet.
            let is_link = path.is_symlink();
            match options().create(is_link).truncate(false).open(path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
                opened => Ok(Some((opened?, false))),
            }
        }
        made => Ok(Some((made?, true))),
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        if matches!(self.held, Held::File { is_new: true, .. }) {
            // It is empty, and was not there before.
            let _ = fs::remove_file(&self.path);
        }
    }
}
