//! A file that is written in one go: it is what it was, or all that was to be written.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};

use super::names;
use super::partial::Partial;

/// As many links as Linux follows, too.
const LINKS_MAX: usize = 40;

/// Write a file of these bytes, in the place of what was there: whoever opens it finds what it was,
/// or all of it. What was there passes its owner and its mode on; of a link, what it leads to is
/// written. Another name of the same file (a hard link) stays with the old bytes.
///
/// It is written as it stands where nothing can take its place: a device, a pipe, what a program
/// has open (`/dev/stdout`), a file in a folder that cannot be written, or that is mounted
/// by itself, or whose owner no file can be given. That may be cut.
///
/// Errors: those of the file system, those too that it keeps for the end; nothing is left beside
/// the file then. A file that may not be written is not replaced either.
pub fn write_whole(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let bytes = bytes.as_ref();
    let old = match fs::metadata(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if old.as_ref().is_none_or(Metadata::is_file)
        && let Some(target) = target(path)?
    {
        match replace(&target, old.as_ref(), bytes) {
            Err(error) if is_about_the_place(&error) => {}
            replaced => return replaced,
        }
    }
    // Where everybody may write (`/tmp`), `create` is refused for files of others, though they may
    // be ours to write.
    let file = OpenOptions::new().write(true).truncate(true).create(old.is_none()).open(path)?;
    fill(&file, bytes)
}

/// What this name leads to, which need not be there; `None` where that is what a process has open,
/// whatever its name is or was.
///
/// Errors: those of the file system, about the folders on the way.
pub fn target(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        if !path.is_symlink() {
            return Ok(Some(path));
        }
        let folder = fs::canonicalize(names::folder(&path))?;
        if folder.starts_with("/proc") {
            return Ok(None);
        }
        path = folder.join(fs::read_link(&path)?);
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// Put a new file where the old one is, if there is one.
fn replace(path: &Path, old: Option<&Metadata>, bytes: &[u8]) -> io::Result<()> {
    if old.is_some() {
        OpenOptions::new().write(true).open(path)?;
    }
    let partial = Partial::create(path)?;
    if let Some(old) = old {
        let new = partial.file().metadata()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            fchown(partial.file(), Some(old.uid()), Some(old.gid()))?;
        }
        partial.file().set_permissions(old.permissions())?;
    }
    fill(partial.file(), bytes)?;
    partial.take_name()
}

/// Whether no other file may be here, though this one may be ours to write. If it is not, that is
/// found out next.
fn is_about_the_place(error: &io::Error) -> bool {
    // Busy is a mount, and a name that another process is just giving a file; invalid an owner whom
    // nobody may be here, as in a container.
    const KINDS: [ErrorKind; 5] = [
        ErrorKind::PermissionDenied,
        ErrorKind::ReadOnlyFilesystem,
        ErrorKind::InvalidFilename,
        ErrorKind::ResourceBusy,
        ErrorKind::InvalidInput,
    ];
    KINDS.contains(&error.kind())
}

fn fill(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    // Some file systems find only now that there is no room. Devices and pipes have nothing to say.
    if file.metadata()?.is_file() { file.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::super::folder::Folder;
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn another_file_takes_the_place_of_the_old_one_and_is_like_it() {
        let folder = Folder::new("whole");
        let path = folder.0.join("file");
        write_whole(&path, "first").unwrap();
        let usual = fs::metadata(&path).unwrap();
        fs::write(folder.0.join("made"), "").unwrap();
        assert_eq!(usual.mode(), fs::metadata(folder.0.join("made")).unwrap().mode());
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        // Only some may pass files on to others.
        let is_passed_on = fchown(File::open(&path).unwrap(), Some(1), Some(1)).is_ok();
        let reader = File::open(&path).unwrap();
        write_whole(&path, "second").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(io::read_to_string(reader).unwrap(), "first");
        let found = fs::metadata(&path).unwrap();
        assert_eq!(found.mode() & 0o777, 0o640);
        if is_passed_on {
            assert_eq!((found.uid(), found.gid()), (1, 1));
        }
        assert_eq!(folder.names(), ["file", "made"]);
    }

    #[test]
    fn links_stay_and_lead_to_what_is_written() {
        let folder = Folder::new("whole-links");
        let at = |name: &str| folder.0.join(name);
        fs::create_dir(at("inner")).unwrap();
        symlink("inner/second", at("first")).unwrap();
        symlink("../file", at("inner/second")).unwrap();
        for text in ["new", "newer"] {
            write_whole(&at("first"), text).unwrap();
            assert_eq!(fs::read_to_string(at("file")).unwrap(), text);
            assert!(at("first").is_symlink() && at("inner/second").is_symlink());
            assert!(!at("file").is_symlink());
        }
        assert_eq!(folder.names(), ["file", "first", "inner"]);
        symlink("round", at("round")).unwrap();
        assert!(target(&at("round")).is_err());
        assert!(write_whole(&at("round"), "").is_err());
        assert!(write_whole(&at("inner"), "").is_err_and(|e| e.kind() == ErrorKind::IsADirectory));
        assert!(write_whole(&at("none/file"), "").is_err_and(|e| e.kind() == ErrorKind::NotFound));
    }

    #[test]
    fn what_nothing_can_take_the_place_of_is_written_as_it_stands() {
        let folder = Folder::new("whole-straight");
        // What is open here has a name in /proc, and had another once.
        let path = folder.0.join("gone");
        fs::write(&path, "old, and longer").unwrap();
        let mut open = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&open);
        symlink(format!("/proc/self/fd/{descriptor}"), folder.0.join("out")).unwrap();
        write_whole(&folder.0.join("out"), "new").unwrap();
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), folder.names()), ("new", vec!["out".into()]));
        // There is no room for a longer one beside this name.
        let long = folder.0.join("n".repeat(255));
        for text in ["new", "newer"] {
            write_whole(&long, text).unwrap();
            assert_eq!(fs::read_to_string(&long).unwrap(), text);
        }
        assert_eq!(folder.names().len(), 2);
        // Root may write in any folder.
        fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o500)).unwrap();
        write_whole(&long, "newest").unwrap();
        assert_eq!(fs::read_to_string(&long).unwrap(), "newest");
    }

    #[test]
    fn devices_and_pipes_stay_what_they_are() {
        let folder = Folder::new("whole-devices");
        let (null, full) = (folder.0.join("null"), folder.0.join("full"));
        symlink("/dev/null", &null).unwrap();
        symlink("/dev/full", &full).unwrap();
        write_whole(&null, "nothing").unwrap();
        assert_eq!(write_whole(&full, "x").unwrap_err().kind(), ErrorKind::StorageFull);
        let (mut reader, writer) = io::pipe().unwrap();
        let descriptor = std::os::fd::AsRawFd::as_raw_fd(&writer);
        write_whole(Path::new(&format!("/dev/fd/{descriptor}")), "through a pipe").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(
            (text.as_str(), folder.names()),
            ("through a pipe", vec!["full".into(), "null".into()])
        );
    }
}
