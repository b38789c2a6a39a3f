//! Whether files can be written that a command will write, found out before anything is started:
//! what is there stays as it is, and what is not there is not there afterwards either.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use brigade_offload::storage::{Partial, target};
use brigade_trainer::Output;

/// How people call standard output. Whoever does that wants no file of this name.
const STDOUT: &str = "-";

/// Refuse what cannot be written, naming it and the reason; and two outputs of one name.
pub(crate) fn check<'a>(outputs: impl IntoIterator<Item = Output<'a>>) -> Result<(), String> {
    let mut taken = BTreeSet::new();
    outputs.into_iter().try_for_each(|output| {
        let path = output.path();
        if path == Path::new(STDOUT) {
            return Err(String::from(
                "cannot write -: that is standard output for --json only; /dev/stdout is for every \
                 flag, and ./- is a file of this name",
            ));
        }
        let tried = match output {
            Output::File(path) => file(path),
            Output::Renamed(path) => renamed(path),
            Output::Folder(path) => folder(path),
        };
        if identity(path).is_some_and(|identity| !taken.insert(identity)) {
            let path = path.display();
            return Err(format!(
                "cannot write {path}: two flags name it, and one would write over the other"
            ));
        }
        tried.map_err(|error| match missing_folder(path) {
            Some(folder) if error.kind() == ErrorKind::NotFound => {
                format!("cannot write {}: there is no folder {}", path.display(), folder.display())
            }
            _ => format!("cannot write {}: {error}", path.display()),
        })
    })
}

/// Refuse to write to what flags name that read it. A checkpoint takes the place of the one that a
/// run goes on from only once it is whole.
pub(crate) fn check_apart<'a>(
    outputs: impl IntoIterator<Item = Output<'a>>,
    inputs: impl IntoIterator<Item = (&'static str, &'a Path)>,
) -> Result<(), String> {
    let inputs: Vec<_> = inputs.into_iter().map(|(flag, path)| (flag, identity(path))).collect();
    outputs.into_iter().try_for_each(|output| {
        let place = identity(output.path());
        let is_read = |(flag, read): &&(&str, Option<Identity>)| {
            let takes_over = *flag == "--resume" && matches!(output, Output::Renamed(_));
            place.is_some() && place == *read && !takes_over
        };
        match inputs.iter().find(is_read) {
            Some((flag, _)) => {
                Err(format!("cannot write {}: {flag} reads it", output.path().display()))
            }
            None => Ok(()),
        }
    })
}

/// The same of files by their paths. That for JSON may be `-`, standard output.
pub(crate) fn check_files<'a>(
    json: Option<&'a PathBuf>,
    files: impl IntoIterator<Item = &'a PathBuf>,
) -> Result<(), String> {
    let json = json.filter(|path| *path != Path::new(STDOUT));
    check(json.into_iter().chain(files).map(|path| Output::File(path)))
}

fn file(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(found) if found.is_file() => OpenOptions::new().append(true).open(path).map(drop),
        // To open a pipe is to wait for its reader, who would take its closing for the end.
        Ok(_) => Ok(()),
        // Links may lead to nothing yet.
        Err(error) if error.kind() == ErrorKind::NotFound => match target(path)? {
            Some(path) => make_and_remove(&path),
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// What tells a file from all others: its number, where it is there, or the path it will have.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identity {
    There(u64, u64),
    New(PathBuf),
}

/// Of what is written over; a device or a pipe takes what several write.
fn identity(path: &Path) -> Option<Identity> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() || found.is_dir() => {
            Some(Identity::There(found.dev(), found.ino()))
        }
        Ok(_) => None,
        // What cannot be made is refused as such.
        Err(_) => {
            let path = target(path).ok()??;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
            Some(Identity::New(folder.join(path.file_name()?)))
        }
    }
}

/// What takes its name at the end needs none of it before, only room beside it.
fn renamed(path: &Path) -> io::Result<()> {
    Partial::may_replace(path)?;
    make_and_remove(&beside(path))
}

/// One that is made with its parents, or is there.
fn folder(path: &Path) -> io::Result<()> {
    let there = path.ancestors().find(|at| at.symlink_metadata().is_ok());
    let there = there.unwrap_or(Path::new("."));
    match fs::metadata(there)?.is_dir() {
        true => make_and_remove(&beside(&there.join("output"))),
        false => Err(ErrorKind::NotADirectory.into()),
    }
}

/// A name that nobody else has, in the same folder.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".brigade-{}", std::process::id()));
    name.into()
}

/// A file that was not there, for a moment.
fn make_and_remove(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(_) => fs::remove_file(path),
        // Somebody else has made it meanwhile, and means to keep it.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// The folder of a file, if it is not there.
fn missing_folder(path: &Path) -> Option<&Path> {
    path.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed with everything in it.
    struct Folder(PathBuf);

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    /// A folder with a file, a folder, and links to nothing and to nowhere. Tests may be threads of
    /// one process.
    fn place(name: &str) -> Folder {
        let name = format!("brigade-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("file"), "kept").unwrap();
        fs::create_dir(folder.join("folder")).unwrap();
        // It stays when nobody listens any more.
        drop(std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap());
        std::os::unix::fs::symlink("new", folder.join("link")).unwrap();
        std::os::unix::fs::symlink("none/new", folder.join("lost")).unwrap();
        Folder(folder)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_can_be_written_is_left_as_it_was_and_what_cannot_is_named() {
        let place = place("written");
        let at = |name: &str| place.0.join(name);
        let before = names(&place.0);
        for name in ["file", "new", "link"] {
            assert_eq!(check([Output::File(&at(name))]), Ok(()), "{name}");
        }
        for name in ["file", "new"] {
            assert_eq!(check([Output::Renamed(&at(name))]), Ok(()), "{name}");
        }
        for name in ["folder", "new", "new/newer"] {
            assert_eq!(check([Output::Folder(&at(name))]), Ok(()), "{name}");
        }
        type Kind = fn(&Path) -> Output<'_>;
        let file: Kind = |path| Output::File(path);
        let (beside, folder): (Kind, Kind) =
            (|path| Output::Renamed(path), |path| Output::Folder(path));
        for (output, name, why) in [
            (file, "folder", "is a directory"),
            (file, "none/new", "there is no folder "),
            (file, "lost", "No such file"),
            (file, "file/new", "Not a directory"),
            (beside, "folder", "is a directory"),
            (beside, "socket", "a file would take its place"),
            (beside, "none/new", "there is no folder "),
            (folder, "file", "not a directory"),
            (folder, "file/new", "not a directory"),
        ] {
            let path = at(name);
            let refused = check([output(&path)]).unwrap_err();
            assert!(
                refused.starts_with(&format!("cannot write {}: ", path.display())),
                "{refused}"
            );
            assert!(refused.contains(why), "{refused} must say {why:?}");
        }
        assert_eq!(names(&place.0), before);
        assert_eq!(fs::read_to_string(at("file")).unwrap(), "kept");
        let (stdout, null) = (PathBuf::from("-"), PathBuf::from("/dev/null"));
        assert_eq!(check_files(Some(&stdout), [&null]), Ok(()));
        for file in [file, beside, folder] {
            let refused = check([file(&stdout)]).unwrap_err();
            assert!(refused.contains("/dev/stdout"), "{refused}");
        }
        assert!(check_files(None, [&stdout]).is_err());
        assert_eq!(check_files(None, [&PathBuf::from("./-")]), Ok(()));
    }

    #[test]
    fn what_another_flag_names_is_not_written_over() {
        let place = place("named");
        let at = |name: &str| place.0.join(name);
        std::os::unix::fs::symlink("file", at("alias")).unwrap();
        fs::hard_link(at("file"), at("twin")).unwrap();
        for (one, other) in [
            ("file", "file"),
            ("file", "alias"),
            ("twin", "file"),
            ("new", "new"),
            ("new", "folder/../new"),
            ("new", "link"),
        ] {
            let (one, other) = (at(one), at(other));
            let refused = check([Output::File(&one), Output::Renamed(&other)]).unwrap_err();
            assert!(refused.contains("two flags name it"), "{refused}");
            let refused = check_files(Some(&one), [&other]).unwrap_err();
            assert!(refused.contains("two flags name it"), "{refused}");
            let read = [("--text", one.as_path())];
            let refused = check_apart([Output::Renamed(&other)], read).unwrap_err();
            assert!(refused.ends_with(": --text reads it"), "{refused}");
            let read = [("--resume", one.as_path())];
            assert_eq!(check_apart([Output::Renamed(&other)], read), Ok(()));
            let refused = check_apart([Output::File(&other)], read).unwrap_err();
            assert!(refused.ends_with(": --resume reads it"), "{refused}");
        }
        let (null, new) = (PathBuf::from("/dev/null"), at("new"));
        assert_eq!(check_files(Some(&null), [&null, &new]), Ok(()));
        assert_eq!(check_apart([Output::File(&new)], [("--text", at("file").as_path())]), Ok(()));
    }
}
