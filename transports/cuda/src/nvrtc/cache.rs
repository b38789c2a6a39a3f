//! Compiled kernels on disk. A file's name says what it was made of, its first bytes are a hash of
//! the rest, and it gets its name when it is whole; so any number of processes may share a folder,
//! and a file that was cut or changed is as good as none.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// Where the code of one source for one architecture is kept.
pub(super) struct Cache {
    folder: Option<PathBuf>,
    /// The name without the compiler's version.
    stem: String,
}

impl Cache {
    pub(super) fn of(source: &Source, arch: &str) -> Self {
        Self { folder: folder(), stem: stem(source, arch) }
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
        let unique = std::process::id();
        let name = self.name(version);
        let temporary = folder.join(format!(".{name}.{unique}"));
        let mut whole = Vec::with_capacity(HASH_BYTES + image.len());
        whole.extend_from_slice(&Sha256::digest(image));
        whole.extend_from_slice(image);
        let written = fs::create_dir_all(folder)
            .and_then(|()| fs::write(&temporary, whole))
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

/// An image whose hash is right.
fn read(path: &Path) -> Option<Arc<[u8]>> {
    let whole = fs::read(path).ok()?;
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
}
