//! A file that bears its name only once it is whole.
//!
//! Until then it has none, so nothing is left of it however its writer ends. Where the file system
//! has no files without names, it lies beside its own as `NAME.partial`, locked by its writer: who
//! is killed leaves that, and the next who writes there finds that nobody holds it, and removes it.
//! What a living process writes is left alone.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::{StorageError, in_mib};
use super::{names, owner, sys};

/// How long another process may take to rename its file, which has the name for that moment.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// What this process writes under names that end with `.partial`.
static NAMED: Mutex<Vec<Named>> = Mutex::new(Vec::new());

/// What has such a name: the path that it will have, and which file it is, as far as that is known.
#[derive(Debug)]
struct Named {
    path: PathBuf,
    file: Option<(u64, u64)>,
}

impl Named {
    fn of(path: &Path, file: &File) -> Self {
        let found = file.metadata().ok();
        Self { path: path.to_owned(), file: found.map(|found| (found.dev(), found.ino())) }
    }
}

/// A file that is being written.
#[derive(Debug)]
pub struct Partial {
    path: PathBuf,
    file: File,
    is_named: bool,
}

/// While this lives, no file of this process is given a name.
#[derive(Debug)]
#[must_use = "files may be given names once it is dropped"]
pub struct Abandoned {
    _named: MutexGuard<'static, Vec<Named>>,
}

impl Partial {
    /// Begin a file that will be `path`. What a dead process left of one is removed.
    ///
    /// Errors: the folder cannot be written; `ResourceBusy` if a living process writes `path`, as
    /// far as its file has a name; those of `may_replace`.
    pub fn create(path: &Path) -> io::Result<Self> {
        Self::may_replace(path)?;
        clear(path)?;
        let (file, is_named) = match without_name(path)? {
            Some(file) => (file, false),
            None => (with_name(path)?, true),
        };
        Ok(Self { path: path.to_owned(), file, is_named })
    }

    /// Refuse a path where there is something whose place no file shall take: who is allowed to
    /// replaces `/dev/null` for the whole machine.
    ///
    /// Errors: `IsADirectory`; `InvalidInput` for a device, a pipe or a socket.
    pub fn may_replace(path: &Path) -> io::Result<()> {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
            Ok(found) if !found.is_file() => {
                let problem = "it is a device or a pipe, and a file would take its place";
                Err(io::Error::new(ErrorKind::InvalidInput, problem))
            }
            // Nothing, a file, or what cannot be looked at: what follows tells.
            _ => Ok(()),
        }
    }

    /// Find out whether one of so many bytes can be made there, and be given a name. Nothing is
    /// reserved: others may take the room.
    ///
    /// Errors: as those of `create`; there is less room than that.
    pub fn probe(path: &Path, bytes: u64) -> io::Result<()> {
        let mut partial = Self::create(path)?;
        let named = partial.show()?;
        drop(named);
        let free_bytes = sys::free_bytes(&partial.file)?;
        if bytes > free_bytes {
            let problem = format!(
                "it will have {bytes} bytes{}, and {free_bytes}{} are free there, beside what has \
                 its name now: make room, or name a file elsewhere",
                in_mib(bytes),
                in_mib(free_bytes)
            );
            return Err(io::Error::new(ErrorKind::StorageFull, problem));
        }
        Ok(())
    }

    /// What is written to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// It is whole: have it survive a loss of power, and take the place of what had its name.
    ///
    /// Errors: those of the file system. What had its name has it still then; only where the folder
    /// could not be synced is it there already, and a loss of power may take it away again.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        let path = self.path.clone();
        self.take_name()?;
        names::sync_folder(&path)
    }

    /// Take the place of what had its name.
    ///
    /// Errors: those of the file system; then nothing is left of it.
    pub(super) fn take_name(mut self) -> io::Result<()> {
        // In one go, where nothing has the name yet. Else it takes two, and who is killed between
        // them leaves a name for the next to remove.
        if self.is_named || sys::link(&self.file, &self.path).is_err() {
            let mut named = self.show()?;
            // Where there are no locks somebody may have taken it for a left-over.
            if !is_at(&self.file, &beside(&self.path)) {
                let problem = "another process has taken its place while it was written";
                return Err(io::Error::other(problem));
            }
            fs::rename(beside(&self.path), &self.path)?;
            named.retain(|it| it.path != self.path);
            self.is_named = false;
        }
        Ok(())
    }

    /// Give it a name, which it keeps at least as long as the list of names is held.
    fn show(&mut self) -> io::Result<MutexGuard<'static, Vec<Named>>> {
        let start = Instant::now();
        loop {
            let mut named = named();
            if self.is_named {
                return Ok(named);
            }
            match sys::link(&self.file, &beside(&self.path)) {
                Ok(()) => {
                    named.push(Named::of(&self.path, &self.file));
                    self.is_named = true;
                    return Ok(named);
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => drop(named),
                Err(error) => return Err(error),
            }
            match clear(&self.path) {
                Err(error)
                    if error.kind() == ErrorKind::ResourceBusy && start.elapsed() < PATIENCE =>
                {
                    std::thread::sleep(PAUSE);
                }
                cleared => cleared?,
            }
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.is_named {
            let mut named = named();
            if is_at(&self.file, &beside(&self.path)) {
                // Something else has failed, which is told; the next who writes here removes it.
                let _ = fs::remove_file(beside(&self.path));
            }
            named.retain(|it| it.path != self.path);
        }
    }
}

/// Remove what a process that has died left of a file that should become `path`.
///
/// Errors: `ResourceBusy` if its writer lives; that it cannot be removed.
pub fn clear(path: &Path) -> io::Result<()> {
    let name = beside(path);
    let told = |error: io::Error| {
        io::Error::new(error.kind(), format!("{} is in the way: {error}", name.display()))
    };
    // Neither what a link leads to nor a pipe is a file that was begun here.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().write(true).custom_flags(flags).open(&name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        opened => opened.map_err(told)?,
    };
    if !file.metadata().map_err(told)?.is_file() {
        return Err(told(io::Error::other("it is no file")));
    }
    owner::own(&file, &name).map_err(|error| match error {
        StorageError::Owned { .. } => io::Error::new(ErrorKind::ResourceBusy, error),
        error => io::Error::other(error),
    })?;
    match is_at(&file, &name) {
        true => fs::remove_file(&name).map_err(told),
        false => Ok(()),
    }
}

/// Remove the partial files of this process that have names, for a process that is about to end.
pub fn abandon() -> Abandoned {
    let named = named();
    for Named { path, file } in named.iter() {
        let name = beside(path);
        let there = fs::symlink_metadata(&name).map(|found| (found.dev(), found.ino()));
        // Where there are no locks it may be another's by now.
        if there.ok() == *file {
            // The process ends, and nobody is left to be told.
            let _ = fs::remove_file(name);
        }
    }
    Abandoned { _named: named }
}

/// A file without a name, if there may be such in this folder and they can be given names later.
fn without_name(path: &Path) -> io::Result<Option<File>> {
    if !Path::new(sys::OWN_FILES).exists() {
        return Ok(None);
    }
    let mut options = OpenOptions::new();
    match options.write(true).custom_flags(libc::O_TMPFILE).open(names::folder(path)) {
        Ok(file) => Ok((!is_taken(&file)).then_some(file)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOSYS) => Ok(None),
            _ => Err(error),
        },
    }
}

/// A file beside `path`, new and locked by this process.
fn with_name(path: &Path) -> io::Result<File> {
    let name = beside(path);
    loop {
        let mut named = named();
        match OpenOptions::new().write(true).create_new(true).open(&name) {
            // Whoever saw it before it was locked may have taken it for a left-over.
            Ok(file) if !is_taken(&file) && is_at(&file, &name) => {
                named.push(Named::of(path, &file));
                return Ok(file);
            }
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                drop(named);
                clear(path)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Lock it, where there are locks; whether somebody else has.
fn is_taken(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Whether this file has that name.
fn is_at(file: &File, name: &Path) -> bool {
    names::is_one(file.metadata(), fs::symlink_metadata(name))
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn named() -> MutexGuard<'static, Vec<Named>> {
    // Changed by code that does not panic between its lines.
    NAMED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::folder::Folder;
    use super::*;
    use std::io::Write;

    /// As where the file system has no files without names.
    fn create_named(path: &Path) -> io::Result<Partial> {
        clear(path)?;
        Ok(Partial { path: path.to_owned(), file: with_name(path)?, is_named: true })
    }

    type Create = fn(&Path) -> io::Result<Partial>;
    const WAYS: [(&str, Create); 2] = [("unnamed", Partial::create), ("named", create_named)];

    #[test]
    fn what_is_whole_takes_its_name_and_what_is_not_leaves_nothing() {
        for (name, create) in WAYS {
            let folder = Folder::new(&format!("partial-{name}"));
            let path = folder.0.join("file");
            for text in ["first", "second, which is longer", "third"] {
                let partial = create(&path).unwrap();
                partial.file().write_all(text.as_bytes()).unwrap();
                assert_eq!(folder.names().contains(&"file.partial".into()), name == "named");
                partial.finish().unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), text, "{name}");
                create(&path).unwrap().file().write_all(b"never whole").unwrap();
                Partial::probe(&path, 1).unwrap();
                let full = Partial::probe(&path, u64::MAX - 1).unwrap_err();
                assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
                assert_eq!(full.to_string().matches(" MiB)").count(), 2, "{full}");
                assert_eq!(folder.names(), ["file"], "{name}");
                assert_eq!(fs::read_to_string(&path).unwrap(), text, "{name}");
            }
        }
    }

    #[test]
    fn a_left_over_goes_and_what_somebody_writes_stays() {
        for (name, create) in WAYS {
            let folder = Folder::new(&format!("left-{name}"));
            let (path, left) = (folder.0.join("file"), folder.0.join("file.partial"));
            fs::write(&left, "of a dead process, and longer than what comes").unwrap();
            let partial = create(&path).unwrap();
            partial.file().write_all(b"new").unwrap();
            // Who holds the lock lives, by its own file or by one that another process has open.
            let writer = match name {
                "named" => None,
                _ => {
                    fs::write(&left, "of a living one").unwrap();
                    let file = File::open(&left).unwrap();
                    file.try_lock().unwrap();
                    Some(file)
                }
            };
            let refused = create(&path).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ResourceBusy, "{name}: {refused}");
            assert!(refused.to_string().contains("file.partial"), "{name}: {refused}");
            assert_eq!(folder.names(), ["file.partial"], "{name}");
            drop(writer);
            // Taking the place of another goes by way of the name that was left.
            fs::write(&path, "old").unwrap();
            partial.finish().unwrap();
            assert_eq!(
                (folder.names(), fs::read_to_string(&path).unwrap()),
                (vec!["file".into()], "new".into())
            );
        }
    }

    #[test]
    fn what_is_no_file_is_not_touched() {
        let folder = Folder::new("partial-odd");
        let path = folder.0.join("file");
        fs::write(folder.0.join("other"), "kept").unwrap();
        std::os::unix::fs::symlink("other", folder.0.join("file.partial")).unwrap();
        let refused = Partial::create(&path).unwrap_err().to_string();
        assert!(refused.contains("file.partial is in the way"), "{refused}");
        assert_eq!(fs::read_to_string(folder.0.join("other")).unwrap(), "kept");
        fs::remove_file(folder.0.join("file.partial")).unwrap();
        fs::create_dir(folder.0.join("file.partial")).unwrap();
        assert!(Partial::create(&path).is_err());
        assert_eq!(folder.names(), ["file.partial", "other"]);
        assert_eq!(Partial::probe(&folder.0, 0).unwrap_err().kind(), ErrorKind::IsADirectory);
        assert!(Partial::create(&folder.0.join("none/file")).is_err());
        // As a device is, but anybody may make one.
        let socket = folder.0.join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for refused in [Partial::probe(&socket, 0), Partial::create(&socket).map(drop)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(folder.names(), ["file.partial", "other", "socket"]);
        assert!(!fs::metadata(&socket).unwrap().is_file());
    }

    #[test]
    fn a_process_that_ends_takes_its_files_along_and_names_no_more() {
        let folder = Folder::new("abandoned");
        let partial = create_named(&folder.0.join("file")).unwrap();
        let abandoned = abandon();
        assert_eq!(folder.names(), [""; 0]);
        let path = folder.0.join("late");
        fs::write(&path, "old").unwrap();
        let late = std::thread::spawn(move || Partial::create(&path).unwrap().finish());
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(folder.names(), ["late"]);
        assert_eq!(fs::read_to_string(folder.0.join("late")).unwrap(), "old");
        drop(abandoned);
        late.join().unwrap().unwrap();
        drop(partial);
        assert_eq!(folder.names(), ["late"]);
        assert_eq!(fs::read_to_string(folder.0.join("late")).unwrap(), "");
    }
}
