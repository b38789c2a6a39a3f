//! Compiled kernels on disk. A file's name says what it was made of, its first bytes are a hash of
//! the rest, and it gets its name when it is whole; so any number of processes may share a folder,
//! and a file that was cut is as good as none.
//!
//! What lies there is code that this process will run, so it is nobody else's: a folder or a file
//! that neither this user nor root owns, or that others may write, is not looked into.

use std::fs::{self, DirBuilder, Metadata, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::Source;
use crate::Version;

/// The variable that names the folder for what is kept between runs.
pub const CACHE_VARIABLE: &str = "BRIGADE_CACHE";

const HASH_BYTES: usize = 32;

/// Where compiled kernels are kept: below `BRIGADE_CACHE`, or the user's folder for caches. None
/// where neither is known; then kernels are compiled every time.
pub fn folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let below = named(CACHE_VARIABLE)
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(named("XDG_CACHE_HOME")?).join("brigade")))
        .or_else(|| Some(PathBuf::from(named("HOME")?).join(".cache/brigade")))?;
    Some(below.join("kernels"))
}

/// Why kernels are compiled every time although there is such a folder: others could put theirs in.
pub fn doubt() -> Option<String> {
    doubt_of(&folder()?)
}

fn doubt_of(folder: &Path) -> Option<String> {
    let found = fs::metadata(folder).ok()?;
    let why = match is_others(&found) {
        true => format!("belongs to user {}, who is neither root nor this one", found.uid()),
        false if is_open(&found) => format!("may be written by others (chmod go-w {folder:?})"),
        false => return None,
    };
    let folder = folder.display();
    Some(format!("compiled kernels are neither taken from {folder} nor kept there, as it {why}"))
}

/// Whether somebody else than this user and root may change it at will.
fn is_others(found: &Metadata) -> bool {
    const ROOT: u32 = 0;
    // What a process has there belongs to its effective user.
    let own = fs::metadata("/proc/self").map_or(ROOT, |own| own.uid());
    ![ROOT, own].contains(&found.uid())
}

/// Whether somebody else than its owner may write it.
fn is_open(found: &Metadata) -> bool {
    found.mode() & 0o022 != 0
}

/// Where it is this user's own, its group writes there no more, as that of a folder of before does
/// where the user's mask lets it. One in which everybody writes is meant to be so.
fn close(folder: &Path) {
    let Ok(found) = fs::metadata(folder) else { return };
    if found.mode() & 0o022 == 0o020 && !is_others(&found) {
        // Where that fails, it is doubted.
        let _ = fs::set_permissions(folder, Permissions::from_mode(found.mode() & 0o7755));
    }
}

/// Where the code of one source for one architecture is kept.
pub(super) struct Cache {
    folder: Option<PathBuf>,
    /// The name without the compiler's version.
    stem: String,
}

impl Cache {
    pub(super) fn of(source: &Source, arch: &str) -> Self {
        let folder = folder();
        folder.iter().for_each(|folder| close(folder));
        let folder = folder.filter(|folder| doubt_of(folder).is_none());
        Self { folder, stem: stem(source, arch) }
    }

    /// What tells it from those of other sources and architectures.
    pub(super) fn stem(&self) -> &str {
        &self.stem
    }

    /// What a compiler of this version made of it.
    pub(super) fn read(&self, version: Version) -> Option<Arc<[u8]>> {
        read(&self.folder.as_ref()?.join(self.name(version)))
    }

    /// What a compiler of any version made of it, the newest first.
    pub(super) fn any(&self) -> Option<Arc<[u8]>> {
        self.before(u32::MAX)
    }

    /// What a compiler of this generation or an older one made of it, the newest first.
    pub(super) fn before(&self, generation: u32) -> Option<Arc<[u8]>> {
        let entries = fs::read_dir(self.folder.as_ref()?).ok()?;
        let version = |path: &PathBuf| {
            let name = path.file_name()?.to_str()?;
            let version = name.strip_prefix(&self.stem)?.strip_prefix('-')?;
            let (major, minor) = version.strip_suffix(".cubin")?.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut found: Vec<((u32, u32), PathBuf)> = paths
            .filter_map(|path| Some((version(&path)?, path)))
            .filter(|((major, _), _)| *major <= generation)
            .collect();
        found.sort();
        found.iter().rev().find_map(|(_, path)| read(path))
    }

    /// Keep it. A folder that cannot be written is no error: the next run compiles again.
    pub(super) fn write(&self, version: Version, image: &[u8]) {
        let Some(folder) = &self.folder else { return };
        // Containers that share a folder may have processes of one number.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos());
        let thread = std::thread::current().id();
        let name = self.name(version);
        let temporary = folder.join(format!(".{name}.{}.{thread:?}.{now}", std::process::id()));
        let mut whole = Vec::with_capacity(HASH_BYTES + image.len());
        whole.extend_from_slice(&Sha256::digest(image));
        whole.extend_from_slice(image);
        // No user's mask makes them what others may write.
        let create =
            || OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary);
        let written = DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)
            .and_then(|()| create()?.write_all(&whole))
            .and_then(|()| fs::rename(&temporary, folder.join(name)));
        if written.is_err() {
            // Nothing may be there; what is there is of no use.
            let _ = fs::remove_file(&temporary);
        }
    }

    fn name(&self, version: Version) -> String {
        format!("{}-{version}.cubin", self.stem)
    }
}

/// A name with a hash of everything that the code depends on, but for the compiler.
fn stem(source: &Source, arch: &str) -> String {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    part(source.text);
    for (name, text) in source.all_headers() {
        part(name);
        part(text);
    }
    part("options");
    source.options.iter().for_each(|option| part(option));
    let hash = hash.finalize();
    let hex: String = hash.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{arch}-{hex}", source.name)
}

/// An image whose hash is right, of a file that nobody else could have put there.
fn read(path: &Path) -> Option<Arc<[u8]>> {
    let mut file = fs::File::open(path).ok()?;
    let found = file.metadata().ok()?;
    if is_others(&found) || is_open(&found) {
        return None;
    }
    let mut whole = Vec::new();
    file.read_to_end(&mut whole).ok()?;
    let (hash, image) = whole.split_at_checked(HASH_BYTES)?;
    (Sha256::digest(image).as_slice() == hash).then(|| image.into())
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn what_is_kept_is_the_newest_that_a_driver_takes() {
        let folder = std::env::temp_dir().join(format!("brigade-cache-{}", std::process::id()));
        let cache = Cache { folder: Some(folder.clone()), stem: "one-sm_90-abc".to_string() };
        let other = Cache { folder: Some(folder.clone()), stem: "one-sm_90-abcd".to_string() };
        let version = |major, minor| Version { major, minor };
        cache.write(version(12, 8), b"12.8");
        cache.write(version(9, 9), b"9.9");
        cache.write(version(13, 0), b"13.0");
        other.write(version(12, 9), b"other");
        let text = |image: Option<Arc<[u8]>>| image.map(|image| image.to_vec());
        assert_eq!(text(cache.any()), Some(b"13.0".to_vec()));
        assert_eq!(text(cache.before(12)), Some(b"12.8".to_vec()));
        assert_eq!(text(cache.before(11)), Some(b"9.9".to_vec()));
        assert_eq!(text(cache.before(8)), None);
        // What was cut is as good as none.
        std::fs::write(folder.join(cache.name(version(12, 8))), b"12").unwrap();
        assert_eq!(text(cache.before(12)), Some(b"9.9".to_vec()));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_others_may_write_is_not_believed() {
        let folder = std::env::temp_dir().join(format!("brigade-doubt-{}", std::process::id()));
        let cache = Cache { folder: Some(folder.clone()), stem: "one-sm_90-abc".to_string() };
        let version = Version { major: 12, minor: 8 };
        cache.write(version, b"code");
        let chmod = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        assert_eq!(doubt_of(&folder), None);
        assert_eq!(cache.read(version).as_deref(), Some(&b"code"[..]));
        let file = folder.join(cache.name(version));
        for mode in [0o666, 0o664, 0o646] {
            chmod(&file, mode);
            assert_eq!(cache.read(version), None, "{mode:o}");
        }
        // What replaces it is the owner's again.
        cache.write(version, b"code");
        assert_eq!(cache.read(version).as_deref(), Some(&b"code"[..]));
        for mode in [0o777, 0o775, 0o1757] {
            chmod(&folder, mode);
            let doubt = doubt_of(&folder).expect("others could put theirs in");
            assert!(doubt.contains("chmod go-w"), "{doubt}");
            close(&folder);
            assert_eq!(doubt_of(&folder).is_none(), mode == 0o775, "{mode:o}");
        }
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(doubt_of(&folder), None, "there is nothing to doubt yet");
    }
}
