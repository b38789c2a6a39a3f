//! A folder for files that nobody needs afterwards.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A new folder, that is gone with everything in it when this is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// One that no other process has, nor another part of this one.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn new() -> io::Result<Self> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("brigade-fake-cuda-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever cleans the folder for temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}
